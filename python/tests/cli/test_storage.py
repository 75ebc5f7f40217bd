"""`rowmill storage`: settings, output, metrics and end of a node; plans, fills and followers. Hosts are tested in Rust."""

from __future__ import annotations

import importlib.util
import json
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

import rowmill
from python.tests.distributed.elastic import Run
from python.tests.nodes import KEY, OTHER_KEY, access_file, serving
from python.tests.small_disk import small_disk
from python.tests.warm import warm_python
from rowmill.cli import main

if TYPE_CHECKING:
    from collections.abc import Generator

_SETTINGS = """
listen = "127.0.0.1:0"
metrics = "127.0.0.1:0"
wire_memory = "32MiB"

[[subsystem]]
folder = "disk"
blocks = "1GiB"
any_host = "write"
"""


def _command(config: Path) -> list[str | Path]:
    return [sys.executable, "-m", "rowmill", "storage", "serve", "--config", config]


@contextmanager
def _node(
    config: Path, log: Path | None = None
) -> Generator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A node, and what it prints when it listens. It is killed at the end, if it still runs."""
    with (
        nullcontext() if log is None else log.open("w") as to,
        subprocess.Popen(_command(config), stdout=subprocess.PIPE, stderr=to, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


def _refused(config: Path) -> tuple[int, str]:
    found = subprocess.run(
        _command(config), capture_output=True, text=True, timeout=60, check=False
    )
    return found.returncode, found.stderr


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "node.toml"
    file.write_text(_SETTINGS)
    return file


def test_a_node_serves_until_sigterm_and_keeps_its_names(config: Path) -> None:
    with _node(config) as (process, ready):
        (url,) = ready["ready"]
        assert url.startswith("nvme+tcp://127.0.0.1:")
        name = url.rpartition("/")[2]
        with urllib.request.urlopen(f"http://{ready['metrics']}/metrics", timeout=10) as response:
            text = response.read().decode()
        assert f'rowmill_storage_reads_total{{subsystem="{name}"}} 0' in text
        assert "rowmill_storage_connections 0" in text
        with urllib.request.urlopen(f"http://{ready['metrics']}/healthz", timeout=10) as response:
            assert response.read() == b"ok\n"

        code, message = _refused(config)
        assert code == 1
        assert "disk" in message, "the folder is in use"

        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
    with _node(config) as (process, ready):
        assert ready["ready"][0].endswith(name)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"write"', '"all"', "any_host"),
        ("1GiB", "1GB", "1GB"),
        ('listen = "127.0.0.1:0"', 'listen = "192.0.2.1:0"', "key_file"),
        ("wire_memory", "wire_memry", "wire_memry"),
    ],
)
def test_wrong_settings_are_named(config: Path, old: str, new: str, message: str) -> None:
    config.write_text(_SETTINGS.replace(old, new))
    code, text = _refused(config)
    assert code == 2
    assert message in text


_FILLED = """
listen = "127.0.0.1:0"
metrics = "127.0.0.1:0"
wire_memory = "96MiB"
pooling_threads = 2

[[subsystem]]
folder = "{folder}"
filled = true
memory = "64MiB"
any_host = "write"
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A store with a feed, two tables and a checkpoint."""
    folder = tmp_path / "store"
    with rowmill.open(folder, memory="16MiB", seed=3, feed="32MiB") as store:
        users = store.table("users", dim=8, optimizer=rowmill.optim.Adagrad(lr=0.1))
        store.table("items", dim=4, optimizer=rowmill.optim.SGD(lr=0.1), num_rows=1000)
        users.put(torch.arange(2000), torch.rand(2000, 8))
        store.checkpoint()
    return folder


def _storage(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [warm_python(), "-m", "rowmill", "storage", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_access_file_gives_the_name_and_the_keys(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(run, tmp_path / "node", with_key=True, own_key=OTHER_KEY) as (url, _):

        def status(node_key: str) -> int:
            access = access_file(tmp_path / "access", KEY, node_key=node_key)
            return main(["storage", "status", url, "--access", str(access)])

        assert status(OTHER_KEY) == 0
        assert "users" in capsys.readouterr().out
        assert status(KEY) == 1
        assert "the controller did not prove its key" in capsys.readouterr().err


def test_a_store_is_planned_filled_shown_and_followed(run: Path, tmp_path: Path) -> None:
    plan = _storage("plan", run)
    assert plan.returncode == 0, plan.stderr
    assert "users" in plan.stdout
    assert "memory: 64.0 MiB at least" in plan.stdout, "a node takes no less"

    config = tmp_path / "node.toml"
    config.write_text(_FILLED.format(folder="node"))
    with _node(config) as (_, ready):
        (url,) = ready["ready"]
        filled = _storage("fill", run, url)
        assert filled.returncode == 0, filled.stderr
        assert "filled 2 tables with 2,000 rows" in filled.stdout
        status = _storage("status", url)
        assert status.returncode == 0, status.stderr
        assert "[0, 1,000)" in status.stdout
        # The fill has the checkpoint's place in the feed, so no other fill is needed.
        followed = _storage("follow", run, url, "--seconds", "3")
        assert followed.returncode == 0, followed.stderr
        assert "0 fills" in followed.stdout
        assert _storage("fill", tmp_path / "none", url).returncode == 2
        wrong = url.rpartition("/")[0] + "/nqn.2014-08.org.nvmexpress:uuid:0"
        refused = _storage("status", wrong)
        assert refused.returncode == 1
        assert "no subsystem of this name" in refused.stderr


def test_a_pushed_checkpoint_is_filled(run: Path, tmp_path: Path) -> None:
    pushed = (tmp_path / "pushed").as_uri()
    with rowmill.open(run, memory="16MiB", feed="32MiB") as store:
        store.push(pushed)
        # The node gets what was pushed, and not what came after it.
        expected = store.open_table("users").get(torch.arange(3000))
        store.open_table("users").put(torch.arange(2000), torch.zeros(2000, 8))
        store.checkpoint()
    config = tmp_path / "node.toml"
    config.write_text(_FILLED.format(folder="node"))
    with _node(config) as (_, ready):
        (url,) = ready["ready"]
        filled = _storage("fill", pushed, url)
        assert filled.returncode == 0, filled.stderr
        assert "filled 2 tables with 2,000 rows" in filled.stdout
        with rowmill.open(url) as rows:
            assert torch.equal(rows.open_table("users").get(torch.arange(3000)), expected)
        absent = _storage("fill", (tmp_path / "absent").as_uri(), url)
        assert absent.returncode != 0
        assert "absent" in absent.stderr


def test_the_stores_of_a_run_of_many_ranks_are_merged(tmp_path: Path) -> None:
    # Each of two ranks writes 10,000 rows, whose weights are the number of the row.
    Run("fill", tmp_path, count=2, rows=10_000).results()
    pushed = (tmp_path / "pushed").as_uri()
    assert main(["push", str(tmp_path / "run"), pushed]) == 0
    config = tmp_path / "node.toml"
    config.write_text(_FILLED.format(folder="node"))
    ids = torch.arange(0, 20_000, 7)
    with _node(config) as (_, ready):
        (url,) = ready["ready"]
        for source in (tmp_path / "run", pushed):
            filled = _storage("fill", source, url)
            assert filled.returncode == 0, filled.stderr
            assert "filled 1 tables with 20,000 rows" in filled.stdout
            with rowmill.open(url) as rows:
                found = rows.open_table("t").get(ids)
            assert torch.equal(found, ids[:, None].float().expand(-1, 128))


def test_rows_that_every_rank_has_are_planned_and_filled_once(tmp_path: Path) -> None:
    placement = "rows,user=replicated"
    results = Run("train", tmp_path, count=2, until=6, every=6, placement=placement).results()
    assert results[0]["rows"]["user"].keys() == results[1]["rows"]["user"].keys()
    counts = {
        name: len({id_ for result in results for id_ in result["rows"][name]})
        for name in results[0]["rows"]
    }
    plan = _storage("plan", tmp_path / "run")
    assert plan.returncode == 0, plan.stderr
    lines = [line.split() for line in plan.stdout.splitlines()]
    assert {line[0]: int(line[1]) for line in lines if line[0] in counts} == counts
    config = tmp_path / "node.toml"
    config.write_text(_FILLED.format(folder="node"))
    with _node(config) as (_, ready):
        (url,) = ready["ready"]
        filled = _storage("fill", tmp_path / "run", url)
        assert filled.returncode == 0, filled.stderr
        assert f"with {sum(counts.values()):,} rows" in filled.stdout


def test_stores_of_many_ranks_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "CHECKPOINT").write_text("")
    found = _storage("follow", tmp_path, "nvme+tcp://127.0.0.1:1/nqn.2014-08.x")
    assert found.returncode == 2
    assert "many ranks" in found.stderr


@pytest.mark.parametrize("seconds", ["0", "-1", "nan"])
def test_a_follower_has_some_time(run: Path, seconds: str) -> None:
    url = "nvme+tcp://127.0.0.1:1/nqn.2014-08.x"
    found = _storage("follow", run, url, "--seconds", seconds)
    assert found.returncode == 2
    assert "--seconds must be > 0" in found.stderr


def test_a_plan_of_no_store_prints_an_error_only(tmp_path: Path) -> None:
    found = _storage("plan", tmp_path / "none")
    assert found.returncode == 2
    assert found.stdout == ""
    assert "has no checkpoint" in found.stderr


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A store with a checkpoint of 40 MB."""
    folder = tmp_path / "large"
    with rowmill.open(folder, memory="64MiB") as store:
        table = store.table("users", dim=256, optimizer=rowmill.optim.SGD(lr=0.1))
        table.put(torch.arange(40_000), torch.rand(40_000, 256))
        store.checkpoint()
    return folder


def test_a_fill_whose_node_is_killed_leaves_the_old_tables(
    run: Path, large: Path, tmp_path: Path
) -> None:
    config = tmp_path / "node.toml"
    config.write_text(_FILLED.format(folder="node"))
    with _node(config) as (process, ready):
        (url,) = ready["ready"]
        assert _storage("fill", run, url).returncode == 0
        command = [sys.executable, "-m", "rowmill", "storage", "fill", large, url]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as fill:
            while not list((tmp_path / "node/rows-2").glob("*.log")):
                assert fill.poll() is None, "the fill ended before it was seen"
            process.kill()
            _, said = fill.communicate(timeout=60)
        assert fill.returncode == 1
        assert said.startswith(f"rowmill: {url}: "), said
        assert "serves its old tables until a fill is complete: run the same" in said, said
        assert said.count("\n") == 1, said
    with _node(config) as (_, ready):
        (url,) = ready["ready"]
        status = _storage("status", url)
        assert "items" in status.stdout, "the tables from before are served"
        with rowmill.open(url) as rows, rowmill.open(run, memory="16MiB", read_only=True) as store:
            ids = torch.arange(3000)
            assert torch.equal(
                rows.open_table("users").get(ids), store.open_table("users").get(ids)
            )
        filled = _storage("fill", large, url)
        assert filled.returncode == 0, filled.stderr
        assert "filled 1 tables with 40,000 rows" in filled.stdout


@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
def test_a_fill_that_finds_the_disk_full_changes_nothing(
    run: Path, large: Path, tmp_path: Path, kind: str
) -> None:
    with small_disk(kind, tmp_path, 12) as disk:
        config = tmp_path / "node.toml"
        config.write_text(_FILLED.format(folder=disk / "node"))
        with _node(config) as (_, ready):
            (url,) = ready["ready"]
            assert _storage("fill", run, url).returncode == 0
            failed = _storage("fill", large, url)
            assert failed.returncode == 1
            assert "capacity exceeded" in failed.stderr, failed.stderr
            status = _storage("status", url)
            assert "items" in status.stdout, "the tables from before are served"
            assert _storage("fill", run, url).returncode == 0, "the space is free again"


@pytest.mark.parametrize(
    ("checkpoint", "rows"),
    [
        pytest.param(0.5, 300_000, id="checkpoint"),
        # The node has no memory for all rows, and makes no checkpoint before the end.
        pytest.param(3600, 1_600_000, id="rows that leave memory"),
    ],
)
def test_a_follower_goes_on_when_the_full_disk_of_its_node_has_space(
    run: Path, tmp_path: Path, checkpoint: float, rows: int
) -> None:
    said, log = tmp_path / "said", tmp_path / "log"
    with small_disk("tmpfs", tmp_path, 384) as disk, said.open("w") as to:
        config = tmp_path / "node.toml"
        config.write_text(_FILLED.format(folder=disk / "node") + f"checkpoint = {checkpoint}\n")
        with (
            _node(config, log) as (_, ready),
            rowmill.open(run, memory="64MiB", feed="512MiB", feed_waiting="256MiB") as store,
        ):
            (url,) = ready["ready"]
            assert _storage("fill", run, url).returncode == 0
            users = store.open_table("users")
            ids = torch.arange(rows)
            ballast = disk / "ballast"
            ballast.write_bytes(b"\0" * (shutil.disk_usage(disk).free - (4 << 20)))
            command = [sys.executable, "-m", "rowmill", "storage", "follow", run, url]
            with subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=to, text=True
            ) as follower:
                users.put(ids, torch.rand(rows, 8))
                while not said.read_text():
                    # The frame after the failed checkpoint is refused.
                    users.put(ids[:100], torch.rand(100, 8))
                    time.sleep(0.05)
                    assert follower.poll() is None
                assert "refuses the next change: its disk is full" in said.read_text()
                assert "the disk is full: frames of the feed are refused" in log.read_text()
                assert str(disk / "node") in log.read_text()
                with rowmill.open(url) as node:
                    # Rows of before, or of a frame that was taken.
                    assert node.open_table("users").get(ids[:1000]).shape == (1000, 8)
                    ballast.unlink()
                    users.put(ids[100:200], torch.rand(100, 8))
                    expected = users.get(ids)
                    while not torch.equal(_rows_of(node, ids), expected):
                        time.sleep(0.1)
                follower.send_signal(signal.SIGINT)
                told, _ = follower.communicate(timeout=30)
            assert {line.split(" fills")[0] for line in told.splitlines()} == {"0"}, told


def _rows_of(node: rowmill.Store, ids: torch.Tensor) -> torch.Tensor:
    """Rows of users; none while the node opens its store."""
    try:
        return node.open_table("users").get(ids)
    except rowmill.errors.StorageError:
        return torch.empty(0)


def test_the_unit_of_systemd_is_valid(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    # The unit's program must exist to be verified.
    text = (Path(__file__).parents[3] / "deploy/rowmill-storage.service").read_text()
    assert "ExecStart=/opt/rowmill/bin/rowmill storage serve --config" in text
    unit = tmp_path / "rowmill-storage.service"
    unit.write_text(text.replace("/opt/rowmill/bin/rowmill", sys.executable))
    found = subprocess.run(
        [analyze, "verify", unit], capture_output=True, text=True, timeout=60, check=False
    )
    # Other units of this machine may have warnings of their own.
    own = [line for line in found.stderr.splitlines() if "rowmill" in line]
    assert (found.returncode, own) == (0, []), found.stderr


@pytest.mark.slow
def test_the_demo_ends_with_equal_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    program = Path(__file__).parents[3] / "examples/storage_demo.py"
    spec = importlib.util.spec_from_file_location("storage_demo", program)
    assert spec is not None
    assert spec.loader is not None
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "ROWS", 5000)
    monkeypatch.setattr(demo, "TABLE_ROWS", 2000)
    demo.demo()  # Raises if bits differ.
    said = capfd.readouterr().out
    assert "scores that differ         0 of 5,000\n" in said
    assert "rows looked up on the node 130,000" in said
