"""`rowmill plan`: the plan of a config file and of a run, refused arguments, and the probe on two ranks.

Ranks are processes of the command with the environment variables of torchrun. The plan of long bags is tested in
`python/tests/distributed/test_auto.py`; here settings must reach the planner, and the plan must be printed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from python.tests.train.ranked import printed, start
from python.tests.train.runs import ended
from rowmill.cli.command import main
from rowmill.ctr.settings import GenerateConfig
from rowmill.distributed import Speeds

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext
    from pathlib import Path


LOG = GenerateConfig(rows=1_000, seed=3, rows_per_table=500)


def test_a_config_is_planned_for_any_number_of_ranks(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    speeds, config = tmp_path / "speeds.toml", tmp_path / "run.toml"
    speeds.write_text(str(Speeds(link_bytes_per_s=1e6)))
    config.write_text(f'[data]\npath = "{log}"\n[train]\nspeeds = "{speeds}"\n')
    tables: list[list[str]] = []
    for more in ([], ["--rows-on-wire", "bf16"], ["--placement", "auto,C1=whole:3"]):
        assert main(["plan", str(config), "--ranks", "4", *more]) == 0
        tables.append(capsys.readouterr().out.splitlines())
    header, first = tables[0][:2]
    assert [word for word in header.split("  ") if word][:2] == ["table", "placement"]
    assert first.split()[:2] == ["C1", "rows"]
    assert first.endswith("pooled vectors would save less than a tenth of the time")
    assert tables[0][-1].startswith("estimated exchange: ")
    assert sent(tables[1][1]) < sent(first)
    assert tables[2][1].split()[:2] == ["C1", "whole:3"]
    assert tables[2][1].endswith("fixed by hand")


def sent(line: str) -> int:
    """The bytes of `rows` in a line of a plan."""
    return int(line.split()[2].rstrip(",").replace(",", ""))


def test_a_run_is_planned_and_its_own_placements_are_named(
    log: Path, server: ForkServerContext, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    arguments = ["train", "--data", str(log), "--out", str(out), "--memory", "64MiB"]
    more = ["--batch", "64", "--train-rows", "128", "--placement", "auto,C2=whole:1"]
    ranks = start(server, 2, [[*arguments, *more]] * 2, out)
    assert [ended(rank) for rank in ranks] == [0, 0], printed(out, 2)
    assert main(["plan", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split()[:2] == ["C2", "whole:1"]
    kept = "was written by 2 ranks, and keeps its placements when it resumes: rows,C2=whole:1"
    assert lines[-1] == f"{out} {kept}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give the folder of a run or a config file, or --probe FILE under torchrun"),
        (["run.toml"], "--ranks is not set, and run.toml is no run of many ranks: give --ranks"),
        (["run.toml", "--ranks", "0"], "--ranks must be an integer of at least 1, got 0"),
        (["none.toml", "--ranks", "2"], "config file none.toml does not exist"),
        (
            ["run.toml", "--ranks", "2", "--placement", "split"],
            "placement must be auto, rows, pooled, whole, whole:RANK or replicated, got 'split'",
        ),
        (
            ["run.toml", "--ranks", "2", "--speeds", "none.toml"],
            "file of speeds none.toml cannot be read: No such file or directory",
        ),
        (["run.toml", "--probe", "speeds.toml"], "--probe only measures"),
        (["--probe", "speeds.toml"], "--probe speeds.toml measures the link between ranks"),
    ],
)
def test_invalid_arguments_are_refused(
    log: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(f'[data]\npath = "{log}"\n')
    assert main(["plan", *arguments]) == 2
    assert f"rowmill: {message}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("link_bytes_per_s = 0\n", "link_bytes_per_s must be a number > 0, got 0"),
        ("link_bytes_per_s = true\n", "link_bytes_per_s must be a number > 0, got True"),
        ("links = 1\n", "has the unknown key links; known: link_bytes_per_s, weight_bytes_per_s"),
        ("links\n", "is not valid TOML"),
    ],
)
def test_an_invalid_file_of_speeds_is_refused(
    log: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    content: str,
    message: str,
) -> None:
    speeds, config = tmp_path / "speeds.toml", tmp_path / "run.toml"
    speeds.write_text(content)
    config.write_text(f'[data]\npath = "{log}"\n')
    assert main(["plan", str(config), "--ranks", "2", "--speeds", str(speeds)]) == 2
    said = capsys.readouterr().err
    assert f"file of speeds {speeds}" in said
    assert message in said


def test_the_probe_writes_speeds(server: ForkServerContext, tmp_path: Path) -> None:
    file = tmp_path / "speeds.toml"
    ranks = start(server, 2, [["plan", "--probe", str(file)]] * 2, tmp_path)
    assert [ended(rank) for rank in ranks] == [0, 0], printed(tmp_path, 2)
    found = Speeds.read(file)
    # From a shared core and a slow link to a fast machine.
    assert 1e5 < found.link_bytes_per_s < 1e12
    assert 1e5 < found.weight_bytes_per_s < 1e12
    assert str(found) in printed(tmp_path, 2)[0]
