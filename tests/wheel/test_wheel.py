"""The wheel in clean environments: what `pip install rowmill` gives to a user.

With torch and numpy only, README's program runs, all modules import or name the extra that is missing, and so does the
command. With `rowmill[train]`, a click model is trained and used. `make test-wheel` does this with the newest torch, the one
that requirements.lock has; `make test-long` with older ones, and with the quick tests of the package. These environments take
5 to 8 GB each, one at a time, and are deleted.

Both targets build the wheel before. Nothing of the repository is importable in the environments.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
UV = str(Path(sys.executable).with_name("uv"))
DISK_BYTES = 12 << 30
# Export needs a newer torch. Tests of other parts that are not here print or warn differently with it.
TOOLS = ("pytest", "pytest-xdist", "pytest-timeout", "hypothesis", "polars", "pandas")
FOLDERS = ("store", "nn", "optim", "conversion", "kge", "gnn", "ctr", "train")
QUICK = (
    *("-m", "not slow and not long", "-k", "not export and not compiled", "-n", "2"),
    *("--dist", "loadfile", "-p", "no:cacheprovider", "-W", "ignore::FutureWarning"),
)
IMPORTS = """
import importlib, pkgutil, rowmill
from rowmill.errors import ExtraMissing, TorchTooOld
for module in pkgutil.walk_packages(rowmill.__path__, "rowmill."):
    if module.name != "rowmill.__main__":
        try:
            importlib.import_module(module.name)
        except (ExtraMissing, TorchTooOld) as error:
            print(f"{module.name}: {error}")
"""


@dataclass(frozen=True)
class Environment:
    """A virtual environment, and a folder to run programs in."""

    folder: Path
    variables: dict[str, str]

    def run(self, *command: str | Path, code: int = 0, timeout: float = 600) -> str:
        """Run a command; returns its standard output, or its standard error if it is to fail."""
        done = subprocess.run(
            [str(part) for part in command],
            cwd=self.folder,
            env=self.variables,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert done.returncode == code, done.stdout[-4000:] + done.stderr[-4000:]
        return done.stderr if code else done.stdout

    def python(self, *arguments: str | Path) -> str:
        return self.run(self.program("python"), "-I", *arguments)

    def program(self, name: str) -> Path:
        return self.folder / "venv/bin" / name

    def install(self, *packages: str, constraints: Path) -> None:
        command = [UV, "pip", "install", "--quiet", "--python", self.program("python")]
        self.run(*command, "--constraints", constraints, *packages, timeout=1800)


def wheel() -> Path:
    found = list((ROOT / "dist").glob("rowmill-*.whl"))
    assert len(found) == 1, "build one wheel before: make wheel"
    return found[0]


@contextmanager
def environment(python: str, variables: dict[str, str] | None = None) -> Iterator[Environment]:
    """An environment without packages, in a temporary folder on the disk of the repository."""
    outside = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "VIRTUAL_ENV")
    }
    with tempfile.TemporaryDirectory(prefix="wheel-", dir=ROOT / "dist") as folder:
        made = Environment(Path(folder), outside | (variables or {}))
        # Shims of pyenv run the version that the variable names.
        made.run(
            "env", f"PYENV_VERSION={python}", UV, "venv", "--quiet", "--python", python, "venv"
        )
        yield made


def readme_program(folder: Path) -> Path:
    """README's program, as a file."""
    program = folder / "readme.py"
    text = (ROOT / "README.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    program.write_text("\n".join(blocks))
    return program


def check_base(made: Environment) -> None:
    """With torch and numpy only."""
    lines = made.python(readme_program(made.folder)).splitlines()
    assert [line.split()[0] for line in lines] == ["10", "20", "30", "40", "50", "60", "rows"]
    missing = dict(line.split(": ", 1) for line in made.python("-c", IMPORTS).splitlines())
    assert missing["rowmill.train.run"] == "rich is not installed: pip install 'rowmill[train]'"
    assert missing["rowmill.integrations.pyg"].endswith("pip install 'rowmill[pyg]'")
    complete = {"rowmill.train", "rowmill.store.store", "rowmill.nn.collection"}
    assert not complete & set(missing)
    said = made.run(made.program("rowmill"), "train", "--data", "log", code=1)
    assert said == "rowmill: rich is not installed: pip install 'rowmill[train]'\n"


def check_trainer(made: Environment) -> None:
    """With `rowmill[train]`: a click model is trained, resumed and asked for scores."""
    rowmill = made.program("rowmill")
    made.run(
        rowmill, "data", "generate", "--out", "log", "--rows", "4000", "--rows-per-table", "500"
    )
    train = ["train", "--data", "log", "--memory", "64MiB", "--batch", "256"]
    made.run(rowmill, *train, "--out", "run")
    made.run(rowmill, *train, "--out", "run", "--resume")
    made.run(rowmill, "predict", "run", "--data", "log", "--out", "scores.parquet")
    made.run(rowmill, "fsck", "run/store")


@pytest.mark.timeout(1200)
def test_the_newest_torch() -> None:
    """Packages are hard links into the cache of uv, which `make setup` has filled."""
    with environment(f"{sys.version_info.major}.{sys.version_info.minor}") as made:
        made.install(str(wheel()), constraints=ROOT / "requirements.lock")
        check_base(made)
        made.install(f"{wheel()}[train]", constraints=ROOT / "requirements.lock")
        check_trainer(made)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("python", "torch"), [("3.11", "2.4"), ("3.13", "2.8")])
def test_an_older_torch(python: str, torch: str) -> None:
    free = shutil.disk_usage(ROOT).free
    assert free >= DISK_BYTES, f"the test needs {DISK_BYTES:,} bytes of disk, {free:,} are free"
    with environment(python) as made:
        # A cache of its own, which goes with the folder.
        made.variables["UV_CACHE_DIR"] = str(made.folder / "cache")
        constraints = made.folder / "constraints.txt"
        constraints.write_text(f"torch=={torch}.*\n")
        made.install(str(wheel()), constraints=constraints)
        check_base(made)
        made.install(f"{wheel()}[train]", constraints=constraints)
        check_trainer(made)
        made.install(*TOOLS, constraints=constraints)
        tests = [ROOT / "python/tests" / folder for folder in FOLDERS]
        made.run(made.program("pytest"), "--rootdir", ROOT, *QUICK, *tests, timeout=3600)
