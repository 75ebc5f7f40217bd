"""Settings from a file and flags, and errors with key, value and fix for invalid settings."""

from pathlib import Path

import pytest

from rowmill.config import SECTIONS, Config, ConfigError, load_config, settings_of


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(text)
    return path


def test_defaults_come_from_the_dataclasses() -> None:
    assert load_config(None) == Config()


def test_flags_override_the_file(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        '[data]\npath = "log"\ntrain_rows = 10\n[model]\nbottom = [8, 4]\n[train]\nbatch = 7\n'
        '[store]\nstaleness_bound = "infinite"\n[rows]\nlr = 1\n[generate]\nrows = 5\n',
    )
    config = load_config(path, {("train", "batch"): "1_000", ("train", "resume"): True})
    assert config.data.path == Path("log")
    assert (config.data.train_rows, config.train.batch, config.train.resume) == (10, 1000, True)
    assert config.model.bottom == (8, 4)
    assert config.store.staleness_bound is None
    assert isinstance(config.rows.lr, float)
    assert config.generate is not None
    assert config.generate.rows == 5


def test_flags_alone_make_a_config() -> None:
    flags = {("data", "path"): "log", ("store", "staleness_bound"): "3", ("rows", "lr"): "0.5"}
    config = load_config(None, flags)
    assert (config.data.path, config.store.staleness_bound, config.rows.lr) == (Path("log"), 3, 0.5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[train]\nbatch = 0", r"train\.batch must be an integer of at least 1, got 0"),
        ("[train]\nbatch = 1.5", r"train\.batch must be an integer .* got 1\.5"),
        ("[train]\nbatch = true", r"train\.batch must be an integer .* got True"),
        ('[train]\nbatch = "many"', r"train\.batch must be an integer .* got 'many'"),
        ("[train]\nresume = 1", r"train\.resume must be true or false, got 1"),
        ("[train]\nbach = 1", r"unknown key train\.bach; known: epochs, batch"),
        ("[trian]\nbatch = 1", r"unknown section \[trian\]; known: data, model"),
        ("train = 1", "train is a section"),
        ('[model]\nkind = "wide"', r"model\.kind must be one of dlrm, dcn_v2, ffnn.* got 'wide'"),
        ("[model]\ntop = 5", r"model\.top must be a list of integers, got 5"),
        ("[model]\ntop = [5, 0]", r"model\.top must be an integer of at least 1 .* got 0"),
        ("[rows]\nlr = -1", r"rows\.lr must be a number of at least 0 .* got -1"),
        (
            "[train]\nthreads = 257",
            r"train\.threads must be .* at least 1 and at most 256, got 257",
        ),
        (
            "[train]\nseed = 18446744073709551616",
            r"train\.seed must be .* at most 18446744073709551615, got",
        ),
        ("[model]\ndim = 65537", r"model\.dim must be .* at most 65536, got 65537"),
        ("[model]\ntop = [100000]", r"model\.top must be .* at most 65536, got 100000"),
        (
            "[data]\nbuckets = 2147483648",
            r"data\.buckets must be .* at most 2147483647, got 2147483648",
        ),
        (
            "[store]\nstaleness_bound = 256",
            r"store\.staleness_bound must be .* at most 255, got 256",
        ),
        ("[train]\ndense_lr = 1e300", r"train\.dense_lr must be .* at most 3e\+38, got 1e\+300"),
        ('[train]\nout = " "', r"train\.out is empty; give a path, or leave it out"),
        (
            '[rows]\noptimizer = "lion"',
            r"rows\.optimizer must be one of sgd, momentum_sgd, .*ftrl, got 'lion'",
        ),
        (
            "[rows]\nmomentum = 1",
            r"rows\.momentum must be .* at least 1e-06 and at most 0.999999, got 1",
        ),
        ("[rows]\nnesterov = 1", r"rows\.nesterov must be true or false, got 1"),
        ("[rows]\nl1 = -0.5", r"rows\.l1 must be a number of at least 0 .* got -0\.5"),
        ("[rows]\nalpha = 1", r"unknown key rows\.alpha; known: momentum, .*optimizer, lr"),
        ("[rows]\nlr = nan", r"rows\.lr must be a number .* got nan"),
        ("[data]\npath = 1.5", r"data\.path must be text, got 1\.5"),
        (
            '[store]\nmemory = "2 pounds"',
            r'store\.memory must be a number of bytes or a size such as "2GiB"',
        ),
        ('[store]\nrow_memory = "x"', r"store\.row_memory must be"),
        ("[generate]\nseed = 1", r"generate\.rows is not set: number of rows of the log"),
        (
            '[rows]\ndtype = "fp16"',
            r"rows\.dtype must be one of fp32, bf16, split-bf16, got 'fp16'",
        ),
        (
            '[rows]\ndtype = "bf16"\n[train]\nplain = true',
            r"rows\.dtype = 'bf16' needs a store: drop --plain or --row-dtype",
        ),
        ("[train]\nplain = true\nresume = true", "needs a store"),
        ("[train\n", "not valid TOML"),
    ],
)
def test_invalid_settings_are_named(tmp_path: Path, text: str, message: str) -> None:
    with (
        pytest.raises(ConfigError, match=message)
        if "memory" not in text
        else pytest.raises(ValueError, match=message)
    ):
        load_config(write(tmp_path, text))


def test_a_missing_file_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"config file nowhere\.toml does not exist"):
        load_config(Path("nowhere.toml"))


def test_an_unreadable_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_config(tmp_path)


def test_every_field_has_help_and_flags_are_distinct() -> None:
    for sections in (("data", "model", "rows", "store", "train"), ("generate",)):
        flags = [s.flag for name in sections for _, s in settings_of(name).values() if s.flag]
        assert len(flags) == len(set(flags))
    assert all(setting.help for name in SECTIONS for _, setting in settings_of(name).values())


def test_a_config_becomes_plain_values() -> None:
    plain = load_config(None, {("data", "path"): "a/b"}).as_dict()
    assert plain["data"]["path"] == "a/b"
    assert plain["train"]["out"] == "out/latest"
    assert plain["generate"] is None


def test_each_task_has_a_default_model() -> None:
    assert load_config(None, {("train", "task"): "gnn"}).model.kind == "graphsage"
    assert load_config(None, {("train", "task"): "kge"}).model.kind == "complex"
    assert (
        load_config(None, {("train", "task"): "kge", ("model", "kind"): "transe"}).model.kind
        == "transe"
    )
    assert load_config(None, {("train", "task"): "ctr"}).model.kind == load_config(None).model.kind


def test_a_task_that_is_a_list_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('[train]\ntask = ["kge"]\n')
    with pytest.raises(ConfigError, match=r"train\.task"):
        load_config(path)
