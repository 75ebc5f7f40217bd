"""The log of a group is missing: each command that needs it names it and the fix, and creates none in its place."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from python.tests.train.kept import check_whole, contents
from rowmill.cli import main
from rowmill.ctr.settings import GenerateConfig

if TYPE_CHECKING:
    from collections.abc import Callable

LOG = GenerateConfig(rows=2_000, seed=3, rows_per_table=50)
FEW = ("--train-rows", "512")


@pytest.fixture
def refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Run a command that must fail and change no file here; returns its line on standard error."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, code: int = 2) -> str:
        before = contents(tmp_path)
        capsys.readouterr()
        assert main(arguments) == code
        assert contents(tmp_path) == before
        (line,) = capsys.readouterr().err.splitlines()
        return line

    return run


def train(log: Path, *more: str) -> list[str]:
    return ["train", "--data", str(log), "--memory", "64MiB", "--threads", "1", *more]


# The export needs a newer torch than the rest.
@pytest.mark.parametrize(
    "names", [("resume", "continue", "evaluate", "vectors", "alter"), ("export",)], ids="-".join
)
def test_a_missing_log_is_named_with_what_to_do(
    log: Path, refused: Callable[..., str], names: tuple[str, ...]
) -> None:
    assert main(train(log, *FEW, "--out", "run")) == 0
    Path("out").mkdir()
    file = Path("run/store/group-0.log")
    shutil.copy(file, "copy")
    file.unlink()
    commands = {
        "resume": train(log, *FEW, "--out", "run", "--resume"),
        "continue": ["train", "--continue", "run", "--data", "day"],
        "evaluate": ["evaluate", "run", "--data", str(log)],
        "vectors": ["vectors", "run", "--out", "vectors"],
        "alter": ["alter", "run", "--out", "altered", "--eps", "1e-6"],
        "export": ["export", "run", "--out", "bundle"],
    }
    for name in names:
        said = refused(*commands[name], code=1)
        assert "group-0.log of run/store does not exist" in said, said
        assert "restore the folder from a copy, or run rowmill fsck" in said, said
    shutil.copy("copy", file)
    check_whole(Path("run/store"))
