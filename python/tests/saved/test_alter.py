"""`rowmill alter`: another dim, optimizer or eps for a stopped run.

New inputs of dense layers have the weight 0. So with initial values of rows near 0, a model of a larger dim has the scores of
the old one, and altering it back gives the old rows and weights to the bit.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import rowmill
from python.tests.partition.runs import CLICK_MODELS, trained, write_log
from python.tests.saved.conftest import Trained, node_config
from python.tests.small_disk import small_disk
from python.tests.train.configs import quiet
from rowmill.cli import main
from rowmill.config.sections import ModelConfig
from rowmill.ctr.dim_names import dim_names
from rowmill.ctr.loaded_clicks import click_columns
from rowmill.errors import StoreFull
from rowmill.saved.altered_rows import AlteredTable
from rowmill.saved.altered_run import alter
from rowmill.saved.saved_run import SavedRun
from rowmill.train import train

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext
    from pathlib import Path

    from rowmill.config import Config
    from rowmill.store.changes import ChangedRows


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


def with_out(config: Config, out: Path, **model: Any) -> Config:
    """The settings to resume a run in another folder."""
    return replace(
        config,
        train=replace(config.train, out=out, resume=True, epochs=2),
        model=replace(config.model, **model),
    )


def rows_of(run: Path) -> dict[str, tuple[np.ndarray[Any, Any], ...]]:
    """Ids, weights and optimizer state of every table, ordered by id."""
    found: dict[str, tuple[np.ndarray[Any, Any], ...]] = {}
    with rowmill.open(run / "store", memory="32MiB", read_only=True) as store:
        for name in store.table_names():
            table = store.open_table(name)
            ids = np.sort(np.concatenate([ids for ids, _ in table.scan()]))
            found[name] = (ids, table.get(ids), table.get_state(ids))
    return found


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, arrays in one.items():
        for mine, theirs in zip(arrays, other[name], strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("kind", [kind for kind in CLICK_MODELS if kind != "bst"])
def test_a_model_with_a_larger_dim_scores_as_before_and_trains_on(
    kind: str, tmp_path: Path
) -> None:
    config = trained(tmp_path, kind, rows__initial_width=1e-9)
    before, new, back = config.train.out, tmp_path / "new", tmp_path / "back"
    untouched = contents(before)
    data = config.data.path
    assert data is not None

    done = alter(before, new, flags={("model", "dim"): 12})

    assert contents(before) == untouched
    assert (done.rows, done.begun_anew) == (sum(len(r[0]) for r in rows_of(before).values()), ())
    with rowmill.load(before) as old, rowmill.load(new) as loaded:
        assert loaded.config.model.dim == 12
        assert loaded.step == old.step
        torch.testing.assert_close(loaded.predict(data), old.predict(data), rtol=0, atol=2e-6)
    # Back to the old dim: every weight that was there is there again.
    alter(new, back, flags={("model", "dim"): 8})
    same(rows_of(back), rows_of(before))
    with SavedRun.open(before) as old, SavedRun.open(back) as again:
        assert old.weights.keys() == again.weights.keys()
        for name, value in old.weights.items():
            torch.testing.assert_close(again.weights[name], value, rtol=0, atol=0)
        assert again.identity == old.identity
    report = train(with_out(config, new, dim=12), quiet())
    assert report["run"]["steps"] == 2 * done.config.train.epochs * -(-500 // 64)
    with rowmill.load(new) as loaded, rowmill.load(before) as old:
        assert not torch.equal(loaded.predict(data), old.predict(data))


def test_every_model_is_tested_or_refused() -> None:
    kinds = set(get_args(get_type_hints(ModelConfig)["kind"]))
    of_graphs = {"transe", "rotate", "distmult", "complex", "graphsage", "gat"}
    assert kinds == {*CLICK_MODELS, *of_graphs}


def test_names_have_the_sizes_of_the_weights(tmp_path: Path) -> None:
    config = trained(tmp_path, "dcn_v2", model__deep=[])
    with SavedRun.open(config.train.out) as saved:
        names = dim_names(saved.config.model, click_columns(saved)[0]).dense
        for name, of_weight in names.items():
            for entries, size in zip(of_weight, saved.weights[name].shape, strict=True):
                assert entries is None or len(entries) == size


def test_new_weights_have_the_initial_values_of_the_table(tmp_path: Path) -> None:
    config = trained(tmp_path, "ncf", rows__initial_accumulator=0.25)
    new = tmp_path / "new"
    alter(config.train.out, new, flags={("model", "dim"): 12})
    empty = rowmill.open(tmp_path / "empty", memory="32MiB", seed=config.train.seed)
    # A row of an NCF has two vectors.
    kept = [0, 1, 2, 3, 6, 7, 8, 9]
    added = [4, 5, 10, 11]
    old, altered = rows_of(config.train.out), rows_of(new)
    # Initial values depend on the order in which tables are created.
    for name in ("user", "item"):
        ids, weights, state = old[name]
        table = empty.table(
            name,
            dim=12,
            optimizer=rowmill.optim.Adagrad(lr=0.02),
            initializer=rowmill.init.Uniform(-0.01, 0.01),
            num_rows=None,
        )
        np.testing.assert_array_equal(altered[name][0], ids)
        np.testing.assert_array_equal(altered[name][1][:, kept], weights)
        np.testing.assert_array_equal(altered[name][1][:, added], table.get(ids)[:, added])
        np.testing.assert_array_equal(altered[name][2][:, kept], state)
        assert (altered[name][2][:, added] == 0.25).all()
    empty.close()


@pytest.mark.parametrize(
    ("optimizer", "floats"), [("adam", 16), ("rowwise_adagrad", 1), ("sgd", 0), ("ftrl", 16)]
)
def test_another_optimizer_begins_with_the_weights_of_the_run(
    optimizer: str, floats: int, tmp_path: Path
) -> None:
    config = trained(tmp_path, "ffnn", rows__eps=1e-6)
    new = tmp_path / "new"
    done = alter(config.train.out, new, flags={("rows", "optimizer"): optimizer})
    assert set(done.begun_anew) == {"user", "item", "shop"}
    assert done.config.rows.eps is None
    old = rows_of(config.train.out)
    with rowmill.open(new / "store", memory="32MiB") as store:
        for name, (ids, weights, _) in old.items():
            table = store.open_table(name)
            np.testing.assert_array_equal(table.get(ids), weights)
            assert table.get_state(ids).shape[1] == floats
            if optimizer != "ftrl":
                assert not table.get_state(ids).any()
            table.rmw(ids, np.zeros_like(weights))
            # The weights of FTRL follow from its state.
            np.testing.assert_allclose(table.get(ids), weights, rtol=1e-5, atol=1e-8)
        store.close()
    resumed = with_out(config, new)
    resumed = replace(resumed, rows=replace(resumed.rows, optimizer=optimizer, eps=None))
    assert train(resumed, quiet())["test"]["logloss"] < 0.8


@pytest.mark.parametrize("optimizer", ["adam", "rowwise_adam"])
def test_adam_goes_on_with_its_state_and_steps(optimizer: str, tmp_path: Path) -> None:
    config = trained(tmp_path, "ffnn", rows__optimizer=optimizer, rows__lr=0.001)
    assert alter(config.train.out, tmp_path / "new", flags={("model", "dim"): 12}).begun_anew == ()
    assert alter(tmp_path / "new", tmp_path / "back", flags={("model", "dim"): 8}).begun_anew == ()
    same(rows_of(tmp_path / "back"), rows_of(config.train.out))
    # The next steps have the bits of the run that was not altered: bias correction depends on the count of steps.
    found: list[dict[str, Any]] = []
    for run in (tmp_path / "run", tmp_path / "back"):
        train(with_out(config, run), quiet())
        found.append(rows_of(run))
    same(*found)


def test_eps_of_one_table_is_kept_with_the_state_of_its_rows(tmp_path: Path) -> None:
    config = trained(tmp_path, "ffnn")
    new = tmp_path / "new"
    command = ["alter", str(config.train.out), "--out", str(new), "--table", "item:eps=0.5"]
    assert main([*command, "--table", "item:lr=0.1"]) == 0
    same(rows_of(new), rows_of(config.train.out))
    with rowmill.open(new / "store", memory="32MiB", read_only=True) as store:
        assert store.open_table("item").optimizer == rowmill.optim.Adagrad(lr=0.1, eps=0.5)
        assert store.open_table("user").optimizer == rowmill.optim.Adagrad(lr=0.02)
    # The next data: its settings are those of the altered run.
    write_log(tmp_path / "later", "ffnn")
    table = pq_rows(tmp_path / "later" / "log.parquet", 300)
    assert main(["train", "--continue", str(new), "--data", str(table)]) == 0
    with rowmill.open(new / "store", memory="32MiB", read_only=True) as store:
        assert store.open_table("item").optimizer == rowmill.optim.Adagrad(lr=0.1, eps=0.5)


def pq_rows(file: Path, first: int) -> Path:
    """A file with the rows from this one on."""
    out = file.with_name(f"rest-{first}.parquet")
    pq.write_table(pq.read_table(file).slice(first), out)  # pyright: ignore[reportUnknownArgumentType]
    return out


def test_a_run_whose_columns_changed(tmp_path: Path) -> None:
    config = trained(tmp_path, "wide_deep", rows__initial_width=1e-9, data__ids="full")
    rest = pq_rows(tmp_path / "log" / "log.parquet", 300)
    schema, new = tmp_path / "schema.toml", tmp_path / "new"
    # The column shop is dropped, and bought is added.
    schema.write_text('label = "y"\ndense = ["price"]\nids = ["bought", "item", "user"]\n')
    command = ["train", "--continue", str(config.train.out), "--data", str(rest)]
    assert main([*command, "--schema", str(schema)]) == 0
    alter(config.train.out, new, flags={("model", "dim"): 12})
    with rowmill.load(config.train.out) as old, rowmill.load(new) as loaded:
        torch.testing.assert_close(loaded.predict(rest), old.predict(rest), rtol=0, atol=2e-6)
    # The table of the dropped column has the new dim too, so the column can be added again.
    assert {spec["dim"] for spec in SavedRun.open(new).specs()} == {12}
    schema.write_text('label = "y"\ndense = ["age"]\nids = ["user", "shop"]\n')
    later = pq_rows(tmp_path / "log" / "log.parquet", 450)
    command = ["train", "--continue", str(new), "--data", str(later), "--schema", str(schema)]
    assert main(command) == 0


def test_a_config_file_says_what_changes(tmp_path: Path) -> None:
    config = trained(tmp_path, "dlrm", train__dense_optimizer="adagrad", train__precision="fp32")
    new, file = tmp_path / "new", tmp_path / "new.toml"
    file.write_text(
        f'[data]\npath = "{config.data.path}"\n[model]\nkind = "dlrm"\ndim = 4\n'
        '[rows]\nlr = 0.5\n[rows.tables.user]\noptimizer = "adam"\nbeta1 = 0.5\n'
    )
    done = alter(config.train.out, new, file=file, flags={("model", "dim"): 6})
    assert (done.config.model.dim, done.begun_anew) == (6, ("user",))
    with SavedRun.open(new) as saved:
        assert saved.config.rows == done.config.rows
        assert saved.weights["bottom.4.weight"].shape[0] == 6
        optimizers = {spec["name"]: spec["optimizer"]["kind"] for spec in saved.specs()}
    assert optimizers == {"user": "adam", "item": "adagrad", "shop": "adagrad"}
    assert main(["evaluate", str(new), "--data", str(config.data.path)]) == 0


@pytest.mark.parametrize("dtype", ["bf16", "split-bf16"])
def test_rows_of_other_types_keep_their_bits(dtype: str, tmp_path: Path) -> None:
    config = trained(tmp_path, "ffnn", rows__dtype=dtype)
    new, back = tmp_path / "new", tmp_path / "back"
    alter(config.train.out, new, flags={("model", "dim"): 10})
    alter(new, back, flags={("model", "dim"): 8})
    same(rows_of(back), rows_of(config.train.out))


def test_a_run_of_complex_numbers_keeps_both_halves(
    triples: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = triples.copy(tmp_path / "run")
    new, back = tmp_path / "new", tmp_path / "back"
    alter(run, new, flags={("model", "dim"): 24})
    old, altered = rows_of(run), rows_of(new)
    for name, (_, weights, _) in old.items():
        np.testing.assert_array_equal(altered[name][1][:, :8], weights[:, :8])
        np.testing.assert_array_equal(altered[name][1][:, 12:20], weights[:, 8:])
    alter(new, back, flags={("model", "dim"): 16})
    same(rows_of(back), old)
    assert main(["kge", "query", str(new), "e1", "r0", "?"]) == 0
    assert "e2" in capsys.readouterr().out
    config = with_out(triples.config, new, dim=24)
    config = replace(config, train=replace(config.train, epochs=3))
    assert train(config, quiet())["test"]["mrr"] > 0.1


def test_a_run_of_learned_nodes(node_graph: Path, tmp_path: Path) -> None:
    config = node_config(
        tmp_path / "run", node_graph, gnn__rows="learned", gnn__choose="last", model__dim=8
    )
    config = replace(config, rows=replace(config.rows, initial_width=1e-9))
    train(config, quiet())
    new = tmp_path / "new"
    alter(config.train.out, new, flags={("model", "dim"): 12, ("rows", "eps"): 1e-5})
    with rowmill.load(config.train.out) as old, rowmill.load(new) as loaded:
        chosen = np.arange(50)
        torch.testing.assert_close(loaded.predict(chosen), old.predict(chosen), rtol=0, atol=1e-5)
    resumed = with_out(config, new, dim=12)
    resumed = replace(
        resumed,
        rows=replace(resumed.rows, eps=1e-5),
        train=replace(resumed.train, epochs=config.train.epochs),
    )
    assert train(resumed, quiet())["run"]["steps"] > 0


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Config:
    return trained(tmp_path_factory.mktemp("run"), "ffnn")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing is altered: the settings are those of the run; give --dim"),
        (["--dim", "8"], "nothing is altered"),
        (["--memory", "64MiB"], "nothing is altered"),
        (["--dim", "0"], "model.dim must be an integer of at least 1 and at most 65536, got '0'"),
        (["--row-optimizer", "lion"], "rows.optimizer must be one of sgd, .*got 'lion'"),
        (
            ["--row-optimizer", "sgd", "--eps", "1e-6"],
            "rows.eps = 1e-06, but sgd takes lr: drop rows.eps, or set rows.optimizer",
        ),
        (["--table", "user"], "--table must be NAME:KEY=VALUE, such as user:eps=1e-6, got 'user'"),
        (
            ["--table", "user:dim=4"],
            "--table user:dim=4: the tables of a run have one dim, because its model joins",
        ),
        (["--table", "user:width=4"], "unknown key rows.tables.user.width; known: "),
        (
            ["--table", "shops:eps=1e-4"],
            "rows.tables.shops names a table that this run does not have; its tables: user, item, shop",
        ),
        (
            ["--table", "user:l1=0.1"],
            "rows.tables.user.l1 = 0.1, but adagrad takes lr, eps, initial_accumulator",
        ),
    ],
)
def test_a_wrong_option_is_named(
    run: Config,
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "new"
    assert main(["alter", str(run.train.out), "--out", str(out), *arguments]) == 2
    assert re.search(re.escape(message).replace(r"\.\*", ".*"), capsys.readouterr().err)
    assert not list(tmp_path.iterdir())
    assert main(["fsck", str(run.train.out / "store")]) == 0


def test_what_cannot_be_altered_is_refused_with_the_reason(
    run: Config,
    nodes: Trained,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "new"

    def refused(arguments: list[str], message: str) -> None:
        assert main(["alter", *arguments, "--out", str(out)]) == 2
        assert message in capsys.readouterr().err
        assert not out.exists()

    refused([str(tmp_path / "none"), "--dim", "4"], "has no checkpoint: give the folder of a run")
    inside = run.train.out / "store" / "new"
    assert main(["alter", str(run.train.out), "--dim", "4", "--out", str(inside)]) == 2
    assert f"--out {inside} is in the folder of the rows of RUN" in capsys.readouterr().err
    assert not inside.exists()
    refused([str(nodes.run), "--dim", "4"], "its rows are the features of the graph")
    file = tmp_path / "more.toml"
    file.write_text("[train]\nbatch = 512\n[model]\ndim = 4")
    refused(
        [str(run.train.out), "--config", str(file)],
        "train.batch is 64 and would be 512: alter changes the dim, and the optimizer of rows",
    )
    (tmp_path / "bst").mkdir()
    bst = trained(tmp_path / "bst", "bst")
    refused([str(bst.train.out), "--dim", "12"], "for model.kind = 'bst': its attention heads")
    with rowmill.open(run.train.out / "store", memory="32MiB"):
        assert main(["alter", str(run.train.out), "--dim", "4", "--out", str(out)]) == 1
    assert "is open for writing in another process: stop the run" in capsys.readouterr().err
    out.mkdir()
    assert main(["alter", str(run.train.out), "--dim", "4", "--out", str(out)]) == 2
    assert f"--out {out} exists: remove it, or give another path" in capsys.readouterr().err


def _killed(run: Path, out: Path, rows: int) -> None:
    original = AlteredTable.put
    written = 0

    def put(self: AlteredTable, batch: ChangedRows) -> None:
        nonlocal written
        original(self, batch)
        written += len(batch.ids)
        if written >= rows:
            os.kill(os.getpid(), signal.SIGKILL)

    AlteredTable.put = put
    alter(run, out, flags={("model", "dim"): 12})


@pytest.mark.parametrize("rows", [1, 100])
def test_a_kill_leaves_nothing_that_looks_like_a_run(
    run: Config, rows: int, tmp_path: Path, server: ForkServerContext
) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    out = folder / "new"
    process = server.Process(target=_killed, args=(run.train.out, out, rows))
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    assert not out.exists()
    left = list(folder.iterdir())
    assert [path.name.startswith(".new.") for path in left] == [True]
    with pytest.raises(rowmill.RowmillError, match="no checkpoint"):
        SavedRun.open(left[0])
    assert alter(run.train.out, out, flags={("model", "dim"): 12}).rows > 0
    assert main(["fsck", str(run.train.out / "store")]) == 0


def test_a_full_disk_is_one_error_and_leaves_nothing(
    run: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with small_disk("tmpfs", tmp_path, 2) as disk:
        with pytest.raises(StoreFull, match=r"no space left for .*new on the disk"):
            alter(run.train.out, disk / "new", flags={("model", "dim"): 4096})
        assert not list(disk.iterdir())
        arguments = ["alter", str(run.train.out), "--out", str(disk / "new"), "--dim", "4096"]
        assert main(arguments) == 1
        assert str(disk) in capsys.readouterr().err
    shutil.rmtree(tmp_path / "disk", ignore_errors=True)


def test_the_rows_alone_name_a_run_too(run: Config, tmp_path: Path) -> None:
    shutil.copytree(run.train.out / "store", tmp_path / "rows")
    alter(tmp_path / "rows", tmp_path / "new", flags={("model", "dim"): 4})
    assert rowmill.versions(tmp_path / "new" / "store") == []
    with rowmill.load(tmp_path / "new") as loaded:
        assert loaded.config.model.dim == 4
        assert loaded.config.train.out == tmp_path / "new"
        assert loaded.config.store.path is None
