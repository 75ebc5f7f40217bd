"""`rowmill versions` and `rowmill rollback`: the checkpoints that a run keeps, of one process or of many ranks."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rowmill.cli.subcommand import add_command
from rowmill.errors import CheckpointMissing, StoreLocked

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Generator
    from pathlib import Path


def add_versions(commands: Any, path: Callable[[str], Path]) -> None:
    """Add both commands to the parser; `path` parses a path."""
    where = "folder of a run (--out of rowmill train), or the folder of its rows"
    versions = add_command(commands, "versions", "list or drop the checkpoints that a run keeps")
    versions.add_argument("run", type=path, metavar="RUN", help=where)
    versions.add_argument(
        "--drop", metavar="VERSION", help="drop the version of this name or number"
    )
    versions.set_defaults(command=_versions, interrupted="; no version was dropped")
    rollback = add_command(
        commands,
        "rollback",
        "make a version the last checkpoint of a run, which no process may have open",
    )
    rollback.add_argument("run", type=path, metavar="RUN", help=where)
    rollback.add_argument(
        "version", metavar="VERSION", help="name or number of a version, from rowmill versions"
    )
    rollback.set_defaults(command=_rollback, interrupted="; the last checkpoint is unchanged")


def _versions(parsed: argparse.Namespace) -> int:
    folder, of_ranks = _folder(parsed.run)
    if parsed.drop is not None:
        with _unlocked(folder):
            _drop(folder, of_ranks, parsed.drop)
        print(f"dropped version {parsed.drop} of {folder}")
    found = _listed(folder, of_ranks)
    if not found:
        print(f"no versions in {folder}: rowmill train keeps them with --versions N")
        return 0
    print(
        f"{'number':>8}  {'name':<20}  {'made (UTC)':<19}  {'step':>12}  {'metric':>10}  {'bytes alone':>18}"
    )
    for version in found:
        made = datetime.fromtimestamp(version["made_s"], UTC)
        step = "-" if version["step"] is None else f"{version['step']:,}"
        metric = "-" if version["metric"] is None else f"{version['metric']:.6f}"
        print(
            f"{version['number']:>8}  {version['name']:<20}  {made:%Y-%m-%d %H:%M:%S}  {step:>12}  {metric:>10}  "
            f"{version['bytes_alone']:>18,}"
        )
    return 0


def _rollback(parsed: argparse.Namespace) -> int:
    folder, of_ranks = _folder(parsed.run)
    with _unlocked(folder):
        if of_ranks:
            from rowmill.distributed import rollback_ranks

            number = rollback_ranks(folder, parsed.version)
        else:
            from rowmill.store.versions import rollback

            number = rollback(folder, parsed.version)
    print(
        f"{folder} is at version {parsed.version}, as checkpoint {number}; later versions are kept until newer ones displace "
        "them. To continue training from it, run the training command with --resume"
    )
    return 0


def _listed(folder: Path, of_ranks: bool) -> list[dict[str, Any]]:
    if of_ranks:
        from rowmill.distributed import versions_of_ranks

        return versions_of_ranks(folder)
    from rowmill.store.versions import versions

    return versions(folder)


def _drop(folder: Path, of_ranks: bool, version: str) -> None:
    if of_ranks:
        from rowmill.distributed import drop_version_of_ranks

        drop_version_of_ranks(folder, version)
    else:
        from rowmill.store.versions import drop_version

        drop_version(folder, version)


@contextmanager
def _unlocked(folder: Path) -> Generator[None]:
    """Say what to do if another process has the run open."""
    try:
        yield
    except StoreLocked:
        raise StoreLocked(
            f"{folder} is in use by another process: stop it, then run this command again"
        ) from None


def _folder(run: Path) -> tuple[Path, bool]:
    """The folder of a run's rows, and whether many ranks wrote it."""
    for folder in (run / "store", run):
        if (folder / "CHECKPOINT").exists():
            return folder, True
        if (folder / "MANIFEST").exists():
            return folder, False
    raise CheckpointMissing(
        f"{run} has no checkpoint: give the folder that --out of `rowmill train` named, or that of --store"
    )
