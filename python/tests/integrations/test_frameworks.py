"""rowmill with the real TorchRec, PyKEEN and PyTorch Geometric. `tools/frameworks.py` installs them into their own folder,
and each is imported in its own process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.frameworks import frameworks_folder
from tools.locked import with_folder

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
CASES = ROOT / "python/tests/integrations"


@pytest.fixture(scope="module")
def folder() -> Path:
    try:
        return frameworks_folder()
    except RuntimeError as error:
        pytest.skip(f"the other frameworks cannot be installed here: {error}")


@pytest.mark.parametrize(
    ("framework", "which"),
    [
        ("torchrec", "not long"),
        ("torchrec_export", "not long"),
        pytest.param("torchrec_export", "long", marks=pytest.mark.long),
        ("torchrec_ranks", "not long"),
        ("pykeen", "not long"),
        ("pyg", "not long"),
    ],
)
def test_cases_of_a_framework(framework: str, which: str, folder: Path) -> None:
    """Run cases of one framework; their failures are printed here."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore"]
    run = subprocess.run(
        [*command, "-m", which, str(CASES / f"{framework}_cases.py")],
        env={**os.environ, "PYTHONPATH": with_folder(folder), "ROWMILL_FRAMEWORKS": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_rowmill_does_not_import_frameworks_itself(folder: Path) -> None:
    program = (
        "import sys, rowmill.cli, rowmill.conversion, rowmill.ctr.task, rowmill.kge.task, rowmill.gnn.task\n"
        "print({'torchrec', 'pykeen', 'torch_geometric'} & set(sys.modules))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": with_folder(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout == "set()\n"
