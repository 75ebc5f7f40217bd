"""A new run begins with rows of files, once: neither a resume nor a later part of the data reads them again.

The rows come from another run (`rowmill vectors`), and from a state dict.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import rowmill
from python.tests.train.configs import Make, quiet
from python.tests.train.cut_off import cut_off
from rowmill.cli import main
from rowmill.config import ConfigError, load_config
from rowmill.ctr.settings import GenerateConfig
from rowmill.errors import DataError
from rowmill.saved.vectors import write_vectors
from rowmill.train import train
from rowmill.train.rows import StoredRows
from rowmill.train.run import open_trainer

if TYPE_CHECKING:
    from pathlib import Path

    from rowmill.config import Config

LOG = GenerateConfig(rows=1500, seed=1, tables=3, rows_per_table=100)
SETTINGS = {
    "train__batch": 100,
    "train__checkpoint_every": 5,
    "data__ids": "hash",
    "data__buckets": 200,
    "model__kind": "ffnn",
    "model__dim": 4,
    "generate__rows": LOG.rows,
    "generate__seed": LOG.seed,
    "generate__tables": LOG.tables,
    "generate__rows_per_table": LOG.rows_per_table,
    "store__memory": "32MiB",
}
IDS = np.arange(200)


@pytest.fixture
def vectors(make: Make, tmp_path: Path) -> Path:
    """The vectors of a run with another seed, one file per table."""
    run = make("before", train__seed=7)
    train(run, quiet())
    write_vectors(run.train.out, tmp_path / "vectors")
    return tmp_path / "vectors"


def warm(vectors: Path) -> dict[str, Any]:
    names = sorted(file.stem for file in vectors.glob("*.parquet"))
    assert len(names) == 3
    return {
        names[0]: str(vectors / f"{names[0]}.parquet"),
        names[1]: {"file": str(vectors / f"{names[1]}.npy")},
    }


def rows_of(config: Config) -> dict[str, bytes]:
    with rowmill.open(config.train.out / "store", memory="32MiB", read_only=True) as store:
        tables = [store.open_table(name) for name in store.table_names()]
        return {t.name: t.get(IDS).tobytes() + t.get_state(IDS).tobytes() for t in tables}


def test_rows_of_the_files_are_there_before_the_first_step(make: Make, vectors: Path) -> None:
    given = warm(vectors)
    with open_trainer(make(warm_start__tables=given), quiet()) as trainer:
        assert isinstance(trainer.rows, StoredRows)
        for table in trainer.rows.tables:
            ids = np.load(vectors / f"{table.name}.ids.npy")
            expected = np.load(vectors / f"{table.name}.npy")
            if table.name in given:
                assert len(table) == len(ids) > 0
                assert table.get(ids).tobytes() == expected.tobytes()
            else:
                assert len(table) == 0


def test_a_run_that_resumes_does_not_read_them_again(
    make: Make, vectors: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = warm(vectors)
    whole = make("whole", warm_start__tables=given)
    train(whole, quiet())
    cold = make("cold")
    train(cold, quiet())
    assert rows_of(cold) != rows_of(whole)

    # Killed before its first checkpoint, it begins anew, and with these rows.
    with cut_off(3, monkeypatch):
        train(make("cut", warm_start__tables=given), quiet())
    with cut_off(8, monkeypatch):
        train(make("cut", train__resume=True, warm_start__tables=given), quiet())
    for file in vectors.iterdir():
        file.unlink()
    resumed = make("cut", train__resume=True, warm_start__tables=given)
    train(resumed, quiet())
    assert rows_of(resumed) == rows_of(whole)


def test_the_next_data_of_a_run_begins_with_the_rows_of_the_run(
    make: Make, vectors: Path, tmp_path: Path, log: Path
) -> None:
    config = make(warm_start__tables=warm(vectors), data__train_rows=1500)
    train(config, quiet())
    for file in vectors.iterdir():
        file.unlink()
    out = tmp_path / "next"
    assert main(["data", "generate", "--out", str(out), "--rows", "500", "--tables", "3"]) == 0
    assert main(["train", "--continue", str(config.train.out), "--data", str(out)]) == 0


def test_a_flag_names_table_file_and_matrix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], log: Path
) -> None:
    matrix = torch.arange(800.0).view(200, 4) / 1000
    torch.save({"users": matrix, "items": -matrix}, tmp_path / "model.pt")
    out = tmp_path / "run"
    command = ["train", "--data", str(log), "--out", str(out), "--model", "ffnn", "--dim", "4"]
    command += ["--schema", str(schema_of(tmp_path)), "--ids", "hash", "--buckets", "200"]
    command += ["--memory", "32MiB", "--epochs", "0"]
    file = f"{tmp_path / 'model.pt'},vectors=items"
    assert main([*command, "--warm-start", f"C1={file}"]) == 0
    assert f"Warm start: 200 rows of table C1 from {tmp_path / 'model.pt'}" in " ".join(
        capsys.readouterr().out.split()
    )
    assert main([*command, "--resume"]) == 0
    with rowmill.open(out / "store", memory="32MiB", read_only=True) as store:
        np.testing.assert_array_equal(store.open_table("C1").get(IDS), -matrix.numpy())


def schema_of(folder: Path) -> Path:
    from rowmill.ctr.data.generate import generated_schema

    schema = generated_schema(LOG)
    file = folder / "schema.toml"
    dense, ids = list(schema.dense), list(schema.ids)
    file.write_text(f'label = "{schema.label}"\ndense = {dense}\nids = {ids}\n')
    return file


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("user", "--warm-start must be TABLE=FILE"),
        ("user=", "--warm-start must be TABLE=FILE"),
        (
            "user=a.npy,dim=3",
            "--warm-start must be TABLE=FILE, and then ,vectors=NAME or ,ids=NAME",
        ),
        ("user=a.npy user=b.npy", "--warm-start names table 'user' twice"),
    ],
)
def test_a_wrong_flag_is_named(
    given: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [part for text in given.split() for part in ("--warm-start", text)]
    assert main(["train", "--data", "log", "--out", str(tmp_path / "run"), *flags]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_what_does_not_fit_is_refused(make: Make, tmp_path: Path) -> None:
    np.save(tmp_path / "wide.npy", np.zeros((200, 5), np.float32))
    np.save(tmp_path / "long.npy", np.zeros((300, 4), np.float32))
    for tables, kind, message in [
        ({"nowhere": "a.npy"}, ConfigError, "warm_start.tables.nowhere names a table that"),
        ({"C1": str(tmp_path / "none.npy")}, DataError, "none.npy does not exist"),
        ({"C1": str(tmp_path / "wide.npy")}, DataError, r"rows of table 'C1' have 4 weights"),
        ({"C1": str(tmp_path / "long.npy")}, DataError, r"row 20\d: ids of table 'C1' are in"),
    ]:
        with pytest.raises(kind, match=message):
            train(make(warm_start__tables=tables), quiet())
    with pytest.raises(ConfigError, match="warm_start needs a store: drop --plain"):
        make(warm_start__tables={"C1": "a.npy"}, train__plain=True)
    with pytest.raises(
        ConfigError, match="warm_start sets the initial rows of a new run, but --continue uses"
    ):
        make(warm_start__tables={"C1": "a.npy"}, train__resume=True, train__continues=True)


def test_settings_of_a_table(make: Make, tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    tables = {"C1": {"optimizer": "adam", "beta1": 0.5}, "C2": {"lr": 0.5}}
    config = make(rows__eps=1e-6, rows__tables=tables)
    train(config, quiet())
    with rowmill.open(config.train.out / "store", memory="32MiB", read_only=True) as store:
        found = {name: store.open_table(name).optimizer for name in store.table_names()}
    assert found == {
        "C1": rowmill.optim.Adam(lr=0.02, beta1=0.5),
        "C2": rowmill.optim.Adagrad(lr=0.5, eps=1e-6),
        "C3": rowmill.optim.Adagrad(lr=0.02, eps=1e-6),
    }
    with pytest.raises(ConfigError, match=r"cannot resume: rows\.tables was"):
        train(make(rows__eps=1e-6, train__resume=True), quiet())
    for tables, message in [
        (
            {"C9": {"lr": 1}},
            "rows.tables.C9 names a table that this run does not have; its tables: C1",
        ),
        ({"C1": {"l1": 1}}, "rows.tables.C1.l1 = 1.0, but adagrad takes lr"),
    ]:
        with pytest.raises(ConfigError, match=message):
            train(make("other", rows__tables=tables), quiet())
    for text, message in [
        ("C1 = 5", r"rows.tables.C1 must be a section, got 5"),
        ("C1 = { lr = -1 }", r"rows.tables.C1.lr must be a number of at least 0 .* got -1"),
    ]:
        file.write_text(f"[rows.tables]\n{text}")
        with pytest.raises(ConfigError, match=message):
            load_config(file)
