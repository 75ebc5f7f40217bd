"""What a result was measured with: the state of the source tree, and the processor.

A rebase rewrites commits, but the hashes of the trees `crates/` and `python/` change only with the code, so a result
records these too. Results are recorded from a clean tree only, unless `--allow-dirty` is given.
"""

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
CODE = ("crates/", "python/", "benchmarks/")
"""Folders in which untracked files count as changes."""


@dataclass(frozen=True)
class Source:
    """The state of the source tree."""

    commit: str
    dirty: bool
    crates: str
    python: str

    @classmethod
    def now(cls, repository: Path = REPOSITORY) -> "Source":
        """Read the state from git. Without a repository every hash is "unknown" and the tree counts as dirty."""
        commit, crates, python = (
            _git(repository, "rev-parse", name).strip() or "unknown"
            for name in ("HEAD", "HEAD:crates", "HEAD:python")
        )
        return cls(commit, commit == "unknown" or bool(changes(repository)), crates, python)

    def until_now(self, repository: Path = REPOSITORY) -> "Source":
        """This state, marked as dirty if the code has changed since."""
        now = Source.now(repository)
        same = (now.crates, now.python) == (self.crates, self.python)
        return replace(self, dirty=self.dirty or now.dirty or not same)


def changes(repository: Path = REPOSITORY) -> list[str]:
    """Lines of `git status` for uncommitted changes, without recorded results."""
    status = _git(repository, "status", "--porcelain", "--", ".", ":(exclude)benchmarks/results")
    return [
        line
        for line in status.splitlines()
        if not line.startswith("??") or line[3:].startswith(CODE)
    ]


def check_recordable(out: Path, *, quick: bool, dirty: bool, repository: Path = REPOSITORY) -> None:
    """Exit with an error if `out` must not be written.

    Args:
        out: File of the result.
        quick: Whether this is a quick run, which must not overwrite the result of a full run.
        dirty: Whether a tree with uncommitted changes is allowed.
        repository: The source tree.
    """
    if not dirty and Source.now(repository).dirty:
        found = "\n".join(f"    {line}" for line in changes(repository)) or "    no git repository"
        sys.exit(
            f"--out {out}: the source tree has uncommitted changes, so the result would not identify its code:\n"
            f"{found}\nCommit or stash them, or pass --allow-dirty, which marks the result as dirty."
        )
    if quick and out.is_file():
        command = json.loads(out.read_text())["command"]
        if "--quick" not in command.split():
            sys.exit(
                f"--out {out}: holds the result of a full run ({command}), which --quick does not overwrite. "
                "Name another file, or delete this one first."
            )


def processor() -> dict[str, str]:
    """Vendor, family and model of the first processor; "unknown" if the kernel does not report them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    fields = {"vendor": "vendor_id", "family": "cpu family", "model": "model"}
    said = {
        name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    return {name: said.get(field, "unknown") for name, field in fields.items()}


def utc_now() -> str:
    """The current time in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _git(repository: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "--no-optional-locks", *arguments],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout if done.returncode == 0 else ""
