"""Settings: a file, then flags, and an error that names key, value and fix for whatever does not fit."""

from pathlib import Path

import pytest

from rowmill.config import SECTIONS, Config, ConfigError, load_config, settings_of


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(text)
    return path


def test_defaults_are_those_of_the_dataclasses() -> None:
    assert load_config(None) == Config()


def test_a_file_fills_sections_and_flags_win(tmp_path: Path) -> None:
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
        ("[train]\nbatch = 0", r"train\.batch = 0; it must be an integer of at least 1"),
        ("[train]\nbatch = 1.5", r"train\.batch = 1\.5; it must be an integer"),
        ("[train]\nbatch = true", r"train\.batch = True; it must be an integer"),
        ('[train]\nbatch = "many"', r"train\.batch = 'many'; it must be an integer"),
        ("[train]\nresume = 1", r"train\.resume = 1; it must be true or false"),
        ("[train]\nbach = 1", r"unknown key train\.bach; known: epochs, batch"),
        ("[trian]\nbatch = 1", r"unknown section \[trian\]; known: data, model"),
        ("train = 1", "train is a section"),
        ('[model]\nkind = "wide"', r"model\.kind = 'wide'; it must be one of dlrm, dcn_v2, ffnn"),
        ("[model]\ntop = 5", r"model\.top = 5; it must be a list of integers"),
        ("[model]\ntop = [5, 0]", r"model\.top = 0; it must be an integer of at least 1"),
        ("[rows]\nlr = -1", r"rows\.lr = -1; it must be a number of at least 0"),
        ("[train]\nthreads = 257", r"train\.threads = 257; .* at least 1 and at most 256"),
        ("[train]\nseed = 18446744073709551616", r"train\.seed = .* at most 18446744073709551615"),
        ("[model]\ndim = 65537", r"model\.dim = 65537; .* at most 65536"),
        ("[model]\ntop = [100000]", r"model\.top = 100000; .* at most 65536"),
        ("[data]\nbuckets = 2147483648", r"data\.buckets = 2147483648; .* at most 2147483647"),
        ("[store]\nstaleness_bound = 256", r"store\.staleness_bound = 256; .* at most 255"),
        ("[train]\ndense_lr = 1e300", r"train\.dense_lr = 1e\+300; .* at most 3e\+38"),
        ('[train]\nout = " "', r"train\.out is empty; give a path, or leave it out"),
        (
            '[rows]\noptimizer = "lion"',
            r"rows\.optimizer = 'lion'; .* one of sgd, momentum_sgd, .*ftrl",
        ),
        ("[rows]\nmomentum = 1", r"rows\.momentum = 1; .* at least 1e-06 and at most 0.999999"),
        ("[rows]\nnesterov = 1", r"rows\.nesterov = 1; it must be true or false"),
        ("[rows]\nl1 = -0.5", r"rows\.l1 = -0\.5; it must be a number of at least 0"),
        ("[rows]\nalpha = 1", r"unknown key rows\.alpha; known: optimizer, lr, .*momentum"),
        ("[rows]\nlr = nan", r"rows\.lr = nan; it must be a number"),
        ("[data]\npath = 1.5", r"data\.path = 1\.5; it must be text"),
        (
            '[store]\nmemory = "2 pounds"',
            r'store\.memory must be a number of bytes or a size such as "2GiB"',
        ),
        ('[store]\nrow_memory = "x"', r"store\.row_memory must be"),
        ("[generate]\nseed = 1", r"generate\.rows is not set: rows of the log"),
        (
            '[rows]\ndtype = "fp16"',
            r"rows\.dtype = 'fp16'; it must be one of fp32, bf16, split-bf16",
        ),
        (
            '[rows]\ndtype = "bf16"\n[train]\nplain = true',
            r"rows\.dtype = 'bf16' needs a store: drop --plain or --row-dtype",
        ),
        ("[train]\nplain = true\nresume = true", "needs a store"),
        ("[train\n", "not valid TOML"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, text: str, message: str) -> None:
    with (
        pytest.raises(ConfigError, match=message)
        if "memory" not in text
        else pytest.raises(ValueError, match=message)
    ):
        load_config(write(tmp_path, text))


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"config file nowhere\.toml does not exist"):
        load_config(Path("nowhere.toml"))


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
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
    assert plain["train"]["out"] == "out/train"
    assert plain["generate"] is None


def test_a_task_has_a_model_of_its_own_if_none_is_named() -> None:
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
