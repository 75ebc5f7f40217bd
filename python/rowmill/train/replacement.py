"""`Replacement`: the old run of `--replace`, which is kept as RUN.replaced until the new run has its first checkpoint.

The steps, between any two of which the process may be killed:

1. `RUN.replaced/.moves` is written: the entries of RUN, and other folders of rows, that belong to the old run.
2. These are renamed, one by one: first the rows, then reports and events. Other files in RUN stay where they are.
3. The new run starts in RUN, and makes its first checkpoint.
4. `.moves` is renamed to `.removes`.
5. The old run is removed, then `RUN.replaced`.

After a kill in step 2 or 3, RUN has no checkpoint, so `check` raises an error that names both folders and says what to do.
After a kill in step 4 or 5, the next command that starts or continues a run in RUN removes the rest.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rowmill.config.setting import ConfigError
from rowmill.distributed import take_lock, write_durable
from rowmill.errors import StoreLocked
from rowmill.train.found_run import FoundRun, check_names, has_checkpoint

if TYPE_CHECKING:
    from collections.abc import Generator

    from rowmill.config.config import Config

_SUFFIX = ".replaced"
_MOVES, _REMOVES = ".moves", ".removes"
_ENTRIES = re.compile(r"report\.(json|html)|events")
_ENTRIES_OF = {
    "ctr": re.compile(r"$"),
    "kge": re.compile(r"(entities|relations)\.txt"),
    "gnn": re.compile(r"splits\.json|split-\d+"),
}
"""Files and folders that a run writes into RUN beside `store`: those of every task, and those of one."""
_EVENTS = "events.out.tfevents."


class Replacement:
    """An old run that is being replaced.

    Attributes:
        out: RUN.
        folder: RUN.replaced.
    """

    def __init__(
        self, out: Path, entries: list[str], rows: list[str], *, garbage: bool = False
    ) -> None:
        self.out = out
        self.folder = place_of_old(out)
        self._entries = entries
        self._rows = rows
        self._garbage = garbage
        self._moves = [(Path(path), place_of_old(Path(path))) for path in rows]
        self._moves += [(out / name, self.folder / name) for name in entries]

    # What a command finds.

    @classmethod
    def found(cls, out: Path) -> Replacement | None:
        """The replacement in RUN that an earlier command has begun; None if there is none."""
        folder = place_of_old(out)
        for name in (_MOVES, _REMOVES):
            with suppress(FileNotFoundError, NotADirectoryError):
                plan = json.loads((folder / name).read_text(encoding="utf-8"))
                return cls(out, plan["entries"], plan["rows"], garbage=name == _REMOVES)
        return None

    @classmethod
    def check(cls, config: Config) -> None:
        """Raise `ConfigError` if an earlier replacement is in the way, or `--replace` cannot move the old run."""
        found = cls.found(config.train.out)
        if found is not None and found.keeps_old:
            if not config.train.replace:
                raise found._in_the_way()
        elif config.train.replace and (new := cls._planned(config)) is not None and found is None:
            new._check_room()

    @property
    def keeps_old(self) -> bool:
        """Whether RUN.replaced holds the only checkpoint: the new run has none yet."""
        moved = [os.path.lexists(target) for _, target in self._moves]
        if self._garbage or not any(moved):
            return False
        return not all(moved) or not any(map(has_checkpoint, rows_in(self.out)))

    def _in_the_way(self) -> ConfigError:
        rows = [place_of_old(Path(path)) for path in self._rows] or rows_in(self.folder)
        old = next((found for path in rows if (found := FoundRun.look(path, "--out"))), None)
        return ConfigError(
            f"{self.folder} keeps a run that --replace moved there from {self.out}"
            f"{'' if old is None else f' ({old})'}, and the new run in {self.out} has no checkpoint yet: pass --replace to "
            f"start the new run again, or bring the old one back with: {self._commands()}"
        )

    def _commands(self) -> str:
        """Commands of the shell that bring the old run back."""
        moved = [move for move in self._moves if os.path.lexists(move[1])]
        new = [str(source) for source, _ in moved if os.path.lexists(source)]
        commands = [["rm", "-r", *new]] if new else []
        for source, target in moved:
            if target.is_symlink():
                rows = str(target.readlink()).removesuffix(_SUFFIX)
                commands.append(["ln", "-s", rows, str(source)])
            else:
                commands.append(["mv", str(target), str(source)])
        return " && ".join(map(shlex.join, [*commands, ["rm", "-r", str(self.folder)]]))

    # Steps.

    @classmethod
    def begin(cls, config: Config) -> None:
        """Move the old run aside, if there is one with a checkpoint.

        Raises:
            ConfigError: A folder cannot be moved.
            StoreLocked: A process has the old run open.
        """
        out = config.train.out
        if (found := cls.found(out)) is not None:
            if found.keeps_old:
                with _locks([source for source, _ in found._pending()]):
                    found._move()
                return
            found.remove()
        if (new := cls._planned(config)) is None:
            return
        new._check_room()
        with _locks([source for source, _ in new._moves]):
            new.folder.mkdir(exist_ok=True)
            plan = {"entries": new._entries, "rows": new._rows}
            write_durable(new.folder / _MOVES, json.dumps(plan).encode())
            try:
                new._move()
            except OSError as error:
                if not any(os.path.lexists(target) for _, target in new._moves):
                    new.remove()
                raise ConfigError(
                    f"{error.filename} cannot be moved to {error.filename2} ({error.strerror}): pass another --out or "
                    "--store"
                ) from None

    @classmethod
    def _planned(cls, config: Config) -> Replacement | None:
        """The replacement of the run in the folders of the settings; None if there is none with a checkpoint."""
        out, given = config.train.out, config.store.path
        own = out / "store"
        tasks = {run.task for rows in rows_in(out) if (run := FoundRun.look(rows, "--out"))}
        entries = [name for name in _names(out) if _is_entry(name, tasks)] if tasks else []
        rows: list[str] = []
        if has_checkpoint(own):
            entries.insert(0, own.name)
            rows += [os.path.realpath(own)] if own.is_symlink() else []
        if given is not None and FoundRun.look(given, "--store"):
            if given.is_symlink():
                raise ConfigError(
                    f"store {given} is a link, which --replace does not move: pass the folder itself, or another --store"
                )
            if os.path.realpath(given) not in (os.path.realpath(own), *rows):
                rows.append(os.path.realpath(given))
        if not entries and not rows:
            return None
        new = cls(out, entries, rows)
        for source, _ in new._moves:
            _check_removable(source)
        return new

    def _check_room(self) -> None:
        """Raise `ConfigError` if something is where the old run would be kept."""
        for there in (self.folder, *(target for _, target in self._moves)):
            # A command that was killed in step 1 leaves the folder, perhaps with an unfinished plan.
            begun = there == self.folder and {*_names(there)} <= {f"{_MOVES}.new"}
            if os.path.lexists(there) and not (begun and there.is_dir()):
                raise ConfigError(
                    f"--replace would keep the old run as {there}, which exists: rename it, or pass another --out"
                )

    def _pending(self) -> list[tuple[Path, Path]]:
        """The moves that are still to be done."""
        exists = os.path.lexists
        return [(of, to) for of, to in self._moves if exists(of) and not exists(to)]

    def _move(self) -> None:
        for source, target in self._pending():
            if source.is_symlink():
                # The rows to which it points have moved.
                target.symlink_to(place_of_old(Path(os.path.realpath(source))))
                source.unlink()
            else:
                source.rename(target)
        for folder in {folder.parent for move in self._moves for folder in move}:
            _sync(folder)

    @classmethod
    def undo(cls, out: Path) -> None:
        """Bring the old run back, if the new one has no checkpoint and no process has it open."""
        found = cls.found(out)
        if found is None or not found.keeps_old:
            return
        new = [source for source, target in found._moves if os.path.lexists(target)]
        try:
            with _locks(new):
                # The rows come last: until then the plan says that the old run is aside.
                for source, target in reversed(found._moves):
                    if os.path.lexists(target):
                        _remove(source)
                        _bring_back(source, target)
        except StoreLocked:
            return
        found.remove()

    def remove(self) -> None:
        """Remove the old run; what cannot be removed now is left to a later command."""
        if not self._garbage:
            (self.folder / _MOVES).rename(self.folder / _REMOVES)
            self._garbage = True
        targets = [target for _, target in reversed(self._moves)]
        for target in targets:
            with suppress(OSError):
                _remove(target)
        if not any(map(os.path.lexists, targets)):
            (self.folder / _REMOVES).unlink()
            with suppress(OSError):  # A user may have put files there.
                self.folder.rmdir()


def rows_in(out: Path) -> list[Path]:
    """The folders of rows that a run in `out` has: its own, and those of its splits."""
    return [out / "store", *sorted(out.glob("split-*/store"))]


def place_of_old(folder: Path) -> Path:
    """Where `--replace` keeps what was in a folder."""
    named = folder if folder.name not in ("", "..") else folder.resolve()
    return named.with_name(named.name + _SUFFIX)


@contextmanager
def _locks(entries: list[Path]) -> Generator[None]:
    """Hold the locks of all rows in entries of a run."""
    with ExitStack() as locks:
        for entry in entries:
            for rows in (entry, *rows_in(entry)):
                if (rows / "LOCK").exists() and not rows.is_symlink():
                    locks.callback(take_lock(rows).release)
        yield


def _bring_back(source: Path, target: Path) -> None:
    if target.is_symlink():
        source.symlink_to(str(target.readlink()).removesuffix(_SUFFIX))
        target.unlink()
    else:
        target.rename(source)


def _remove(entry: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry)
    else:
        entry.unlink(missing_ok=True)


def _names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []


def _is_entry(name: str, tasks: set[str]) -> bool:
    return any(form.fullmatch(name) for form in (_ENTRIES, *(_ENTRIES_OF[task] for task in tasks)))


def _check_removable(entry: Path) -> None:
    """Raise `ConfigError` if an entry of the old run holds files that the run has not written."""
    if has_checkpoint(entry) or entry.name == "store":
        check_names(entry, "replace")
        return
    for name in _names(entry):
        if entry.name == "events":
            known = name.startswith(_EVENTS)
        else:
            known = name == "store" or _is_entry(name, {"gnn"})
        if not known:
            raise ConfigError(
                f"this run would replace {entry}, but it holds {name}, which is not a file of a run: move that file, or pass "
                "another --out"
            )
        if entry.name != "events":
            _check_removable(entry / name)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
