"""The command `rowmill`: its parser, and the subcommands that have no module of their own.

Flags come from the fields of `rowmill.config`. Every error is one line on standard error. The exit code is 2 for bad
input, 1 for a failure of the store or the machine, and 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import os
import sys
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from rowmill._extras import extra
from rowmill.cli.alter import add_alter
from rowmill.cli.importing import importing
from rowmill.cli.load import add_loadtest
from rowmill.cli.openmp import spin_briefly
from rowmill.cli.plan import add_plan
from rowmill.cli.serving import add_serve
from rowmill.cli.storage import add_storage
from rowmill.cli.subcommand import add_command
from rowmill.cli.trained import RUN, add_trained
from rowmill.cli.versions import add_versions
from rowmill.config.config import SECTIONS, load_config, section_from, settings_of
from rowmill.config.setting import ConfigError
from rowmill.errors import (
    BundleExists,
    CheckpointMissing,
    InvalidInput,
    MemoryTooSmall,
    RowmillError,
    StoreMissing,
    TableMissing,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rowmill.config.config import Config
    from rowmill.train.report.figures import Figure

_TRAIN_SECTIONS = ("data", "model", "gnn", "rows", "store", "train", "checkpoint")
_METAVARS = {int: "N", float: "X", str: "SIZE", Path: "PATH"}
_COUNT_DIGITS = 6
_CHECKPOINT_DIGITS = 18
_RESUME = " with --resume"
_BAD_INPUT = (
    BundleExists,
    CheckpointMissing,
    InvalidInput,
    MemoryTooSmall,
    StoreMissing,
    TableMissing,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    parsed = command_parser().parse_args(arguments)
    interrupted: str = parsed.interrupted
    if getattr(parsed, "continued", None) is not None:
        interrupted = interrupted.removesuffix(_RESUME)
    return exit_code(lambda: parsed.command(parsed), "rowmill", interrupted)


def exit_code(command: Callable[[], int], program: str, interrupted: str) -> int:
    """Run a command and return its exit code; print an error that it raises as one line.

    Args:
        command: Returns an exit code.
        program: Name of the program, with which the line starts.
        interrupted: Text to print after "interrupted" on Ctrl-C.
    """
    try:
        return command()
    except _BAD_INPUT as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 2
    except RowmillError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader closed the pipe. Buffered output goes to /dev/null, so that Python's flush at exit does not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        print(
            f"{program}: {error.strerror or error}: {error.filename or ''}".rstrip(": "),
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print(f"{program}: interrupted{interrupted}", file=sys.stderr)
        return 130


def command_parser() -> argparse.ArgumentParser:
    """The parser of all commands and flags."""
    parser = argparse.ArgumentParser(
        prog="rowmill",
        description="Train models with embedding tables larger than memory.",
        epilog="To begin: rowmill data generate --out log --rows 100000, and then rowmill train --data log --out run",
    )
    parser.add_argument("--version", action=_Version)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    train = add_command(
        commands,
        "train",
        "train and test a click model, a knowledge graph embedding or a graph neural network",
    )
    train.add_argument(
        "--config", type=_path, metavar="FILE", help="TOML file with settings; flags override it"
    )
    train.add_argument(
        "--continue",
        dest="continued",
        type=_path,
        metavar="RUN",
        help="train the model of RUN, the --out of an earlier command, on new data; settings that are not given "
        "are taken from RUN",
    )
    train.add_argument(
        "--warm-start",
        action="append",
        default=[],
        metavar="TABLE=FILE",
        help="initial rows of TABLE in a new run, from FILE (.npy, .parquet, or a state dict .pt); give it once per table; "
        "FILE,vectors=NAME,ids=NAME selects the column or matrix of vectors, and the column or file of ids",
    )
    for section in _TRAIN_SECTIONS:
        _add_flags(train, section)
    train.set_defaults(
        command=_train,
        interrupted=f"; to continue from the last checkpoint, run the same command{_RESUME}",
    )

    add_plan(commands, _path)
    add_trained(commands, _path)
    add_alter(commands, _path, RUN)

    inspect = add_command(
        commands, "inspect", "print the tables, sizes and most looked-up rows of a store"
    )
    inspect.add_argument("store", type=_path, metavar="STORE", help="folder of a store")
    inspect.add_argument(
        "--hottest",
        type=_count,
        default=10,
        metavar="N",
        help="number of most looked-up rows to list (default 10)",
    )
    inspect.set_defaults(command=_inspect, interrupted="")

    fsck = add_command(
        commands,
        "fsck",
        "check every block of a store; exit code 0: clean, 1: damaged, 2: cannot be read",
    )
    fsck.add_argument("store", type=_path, metavar="STORE", help="folder of a store")
    fsck.add_argument(
        "--repair",
        action="store_true",
        help="if the store is damaged, write a new checkpoint with the intact rows and list the dropped ones",
    )
    fsck.add_argument(
        "--dropped",
        type=_path,
        metavar="FILE",
        help="write the list of dropped rows to FILE instead of printing it",
    )
    fsck.set_defaults(command=_fsck, interrupted="; the store is still at its last checkpoint")

    push = add_command(
        commands,
        "push",
        "copy the last checkpoint of a store or of all ranks, or a version, to an object store",
    )
    push.add_argument(
        "store", type=_path, metavar="STORE", help="folder of a store, or of the rows of a run"
    )
    push.add_argument(
        "url", metavar="URL", help="target: s3://, gs://, az:// or file://, and a path"
    )
    push.add_argument(
        "--keep",
        type=_count,
        default=3,
        metavar="K",
        help="number of checkpoints to keep at URL (default 3)",
    )
    push.add_argument(
        "--version",
        metavar="VERSION",
        help="name or number of a version, from rowmill versions; it needs a URL that no other checkpoint uses (default: the "
        "last checkpoint)",
    )
    push.set_defaults(
        command=_push,
        interrupted="; the URL shows no new checkpoint; run the same command to start again",
    )

    checkpoints = add_command(commands, "checkpoints", "list the checkpoints at a URL")
    checkpoints.add_argument("url", metavar="URL", help="URL that was given to rowmill push")
    checkpoints.set_defaults(command=_checkpoints, interrupted="")

    restore = add_command(commands, "restore", "download a checkpoint from a URL into a new store")
    restore.add_argument("url", metavar="URL", help="URL that was given to rowmill push")
    restore.add_argument(
        "folder", type=_path, metavar="FOLDER", help="folder for the store, new or empty"
    )
    restore.add_argument(
        "--checkpoint",
        type=_count,
        metavar="N",
        help="number of the checkpoint, as printed by rowmill checkpoints (default: the latest)",
    )
    restore.set_defaults(command=_restore, interrupted="; run the same command to continue")

    add_versions(commands, _path)

    changes = add_command(
        commands,
        "changes",
        "count or export the rows that changed between an earlier checkpoint and the last one",
    )
    changes.add_argument("store", type=_path, metavar="STORE", help="folder of a store")
    changes.add_argument(
        "--since",
        type=_checkpoint,
        required=True,
        metavar="N",
        help="number (epoch) of the earlier checkpoint; 0 for all rows",
    )
    changes.add_argument(
        "--out", type=_path, metavar="FILE", help="write the changed rows to a Parquet file"
    )
    changes.set_defaults(command=_changes, interrupted="; the output file is incomplete")

    follow = add_command(
        commands,
        "follow",
        "follow the feed of a run or store during training, and print counts and lag",
    )
    follow.add_argument(
        "store",
        type=_path,
        metavar="RUN",
        help="folder of a run (--out of rowmill train), or of a store",
    )
    follow.add_argument(
        "--since",
        type=_event,
        metavar="N",
        help="start after event N, as printed: a number, or a position of all ranks such as 1:12:740,815 (default: start "
        "with the rows of the last checkpoint)",
    )
    follow.add_argument(
        "--seconds",
        type=_count,
        metavar="N",
        help="stop after N seconds without an event (default: never)",
    )
    follow.set_defaults(
        command=_follow,
        interrupted="; to continue, pass the last event printed as --since",
    )

    add_serve(commands)
    add_loadtest(commands)
    add_storage(commands)

    data = add_command(commands, "data", "generate or convert training data").add_subparsers(
        required=True, metavar="COMMAND"
    )
    generate = add_command(data, "generate", "generate a click log with a known best possible AUC")
    generate.add_argument(
        "--out", type=_path, required=True, metavar="DIR", help="folder for the log"
    )
    _add_flags(generate, "generate")
    generate.set_defaults(
        command=_generate,
        interrupted="; the log is incomplete; run the same command to start again",
    )

    sequences = add_command(
        data,
        "sequences",
        "write a log with item histories, from a file of interactions or generated",
    )
    sequences.add_argument(
        "--out", type=_path, required=True, metavar="DIR", help="folder for the log"
    )
    _add_flags(sequences, "sequences")
    sequences.set_defaults(command=_sequences, interrupted="; run the same command to start again")

    nodes = add_command(
        data,
        "nodes",
        "generate a graph whose node classes can be predicted from features and neighbours",
    )
    nodes.add_argument(
        "--out", type=_path, required=True, metavar="FILE", help=".npz file to write"
    )
    _add_flags(nodes, "nodes")
    nodes.set_defaults(command=_nodes, interrupted="; run the same command to start again")
    return parser


def _path(text: str) -> Path:
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty; give a path")
    return Path(text)


def _count(text: str) -> int:
    if not text.isdecimal() or len(text) > _COUNT_DIGITS:
        raise argparse.ArgumentTypeError(
            f"must be an integer from 0 to {10**_COUNT_DIGITS - 1}, got {text[:20]!r}"
        )
    return int(text)


def _checkpoint(text: str) -> int:
    if not text.isdecimal() or len(text) > _CHECKPOINT_DIGITS:
        raise argparse.ArgumentTypeError(f"must be the number of a checkpoint, got {text[:20]!r}")
    return int(text)


def _event(text: str) -> int | str:
    """The number of an event, or the position of a feed of many ranks, which the feed checks."""
    if ":" in text:
        return text
    if not text.isdecimal() or len(text) > _CHECKPOINT_DIGITS:
        raise argparse.ArgumentTypeError(f"must be the number of an event, got {text[:20]!r}")
    return int(text)


def _add_flags(parser: argparse.ArgumentParser, section: str) -> None:
    group = parser.add_argument_group(f"[{section}]")
    defaults = {entry.name: entry.default for entry in fields(SECTIONS[section])}
    for key, (hint, setting) in settings_of(section).items():
        if setting.flag is None:
            continue
        default = defaults[key]
        if default is MISSING:
            note = " (required)"
        elif default is None or default is False:
            note = ""
        else:
            note = f" (default {default})"
        options: dict[str, Any] = {
            "dest": f"{section}.{key}",
            "default": None,
            "help": setting.help + note,
        }
        # The first member of `Literal["a", "b"]` is a text, that of `int | None` a type.
        kind = next(iter(get_args(hint)), hint)
        if hint is bool:
            options["action"] = "store_true"
        elif isinstance(kind, str):
            options["metavar"] = "|".join(get_args(hint))
        else:
            options["metavar"] = setting.metavar or _METAVARS[kind]
        group.add_argument(setting.flag, **options)


def _flags(parsed: argparse.Namespace, section: str) -> dict[tuple[str, str], Any]:
    return {
        (section, key): value
        for key in settings_of(section)
        if (value := getattr(parsed, f"{section}.{key}", None)) is not None
    }


def _train(parsed: argparse.Namespace) -> int:
    spin_briefly()
    flags = {
        key: value for section in _TRAIN_SECTIONS for key, value in _flags(parsed, section).items()
    }
    if parsed.warm_start:
        with importing():
            from rowmill.train.warm_start import flag_of

        flags["warm_start", "tables"] = flag_of(parsed.warm_start)
    if parsed.continued is None:
        config = load_config(parsed.config, flags)
    else:
        config = _continued(parsed.continued, parsed.config, flags)
    if config.data.path is None:
        raise ConfigError(
            "no data: pass a click log, or the folder or file of a graph, with --data, or set path in [data] of the "
            "config file"
        )
    with importing():
        with extra("train"):
            from rich.console import Console

        from rowmill._allocator import keep_freed_memory
        from rowmill.gnn.splits import train_splits
        from rowmill.train import train
        from rowmill.train.ranks import is_first
        from rowmill.train.run import task_opener

        task_opener(config)

    keep_freed_memory()
    # torch's modules live until exit. Scanning them on every full garbage collection took 4 % of the time of some steps.
    gc.freeze()
    atexit.register(gc.unfreeze)
    console = Console(quiet=not is_first())
    if config.train.task == "gnn" and config.gnn.splits > 1:
        _print_splits(train_splits(config, console), console)
        return 0
    report = train(config, console)
    _print_result(report, config, console)
    return 0


def _continued(run: Path, file: Path | None, flags: dict[tuple[str, str], Any]) -> Config:
    """The settings of a run that is trained on new data: its own, overridden by a file and by flags."""
    for section, key in (
        ("train", "out"),
        ("train", "resume"),
        ("train", "replace"),
        ("store", "path"),
    ):
        if (section, key) in flags:
            flag = settings_of(section)[key][1].flag
            raise ConfigError(f"--continue {run} already names the run to continue: drop {flag}")
    with importing():
        from rowmill.train.saved_files import saved_settings

    train = {"out": run, "resume": True, "replace": False, "continues": True}
    here = {("train", key): value for key, value in train.items()}
    return load_config(file, {**flags, **here}, saved_settings(run))


def _print_result(report: dict[str, Any], config: Config, console: Any) -> None:
    with extra("train"):
        from rich.markup import escape

    from rowmill.train.out import LATEST
    from rowmill.train.report import figures_of

    figures = figures_of(report)
    train = report["train"]
    teacher: dict[str, float | None] = report.get("teacher") or {}
    # Without --out, the run named its folder.
    out = Path(report["config"]["train"]["out"]) if config.train.out == LATEST else config.train.out

    def shown(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    def against(figure: Figure) -> str:
        value = figure.of(report["test"])
        return f"{value}   (teacher {figure.of(teacher)})" if figure.key in teacher else value

    for name, value in [
        *((figure.name, against(figure)) for figure in figures.tested(report["test"])),
        (f"{figures.unit} per second", shown(train["rows_per_s"], ",.0f")),
        ("hit rate", shown(train["hit_rate"], ".2%")),
        ("stall share", shown(train["stall_share"], ".2%")),
        ("report", str(out / "report.html")),
    ]:
        console.print(f"[dim]{name:<20}[/dim]{escape(value)}", highlight=False, soft_wrap=True)


def _print_splits(result: dict[str, Any], console: Any) -> None:
    from rowmill.train.report import figures_of

    found = result["test"]
    for figure in figures_of(result).tested(found):
        of = found[figure.key]
        mean, deviation = (
            "-" if of[name] is None else f"{of[name]:.4f}" for name in ("mean", "deviation")
        )
        console.print(
            f"[dim]{figure.name:<20}[/dim]{mean} +- {deviation}, {len(result['splits'])} splits",
            highlight=False,
            soft_wrap=True,
        )


def _inspect(parsed: argparse.Namespace) -> int:
    with importing():
        with extra("train"):
            from rich.console import Console

        from rowmill.cli.inspection import print_store

    print_store(parsed.store, Console(), hottest=parsed.hottest)
    return 0


def _fsck(parsed: argparse.Namespace) -> int:
    with importing():
        from rowmill.cli.inspection import print_fsck

    try:
        clean = print_fsck(parsed.store, repair=parsed.repair, dropped=parsed.dropped)
    except RowmillError as error:
        print(f"rowmill: {error}", file=sys.stderr)
        return 2
    return 0 if clean else 1


def _push(parsed: argparse.Namespace) -> int:
    with importing():
        from rowmill.cli.remote import push

    print(push(parsed.store, parsed.url, keep=parsed.keep, version=parsed.version))
    return 0


def _checkpoints(parsed: argparse.Namespace) -> int:
    from datetime import UTC, datetime

    with importing():
        from rowmill.cli.remote import checkpoints_at

    found = checkpoints_at(parsed.url)
    for checkpoint in found:
        pushed = datetime.fromtimestamp(checkpoint["pushed_s"], UTC)
        print(
            f"{checkpoint['epoch']:>10}  {pushed:%Y-%m-%d %H:%M:%S} UTC  {checkpoint['rows']:>15,} rows  "
            f"{checkpoint['bytes']:>18,} bytes"
        )
    if not found:
        print(f"no checkpoint at {parsed.url}")
    return 0


def _restore(parsed: argparse.Namespace) -> int:
    with importing():
        from rowmill.cli.remote import restore_from

    done = restore_from(parsed.url, parsed.folder, checkpoint=parsed.checkpoint)
    print(f"{parsed.folder} is at checkpoint {done['epoch']}: {done['rows']:,} rows")
    return 0


def _changes(parsed: argparse.Namespace) -> int:
    with importing():
        from rowmill.cli.inspection import print_changes

    print_changes(parsed.store, since=parsed.since, out=parsed.out)
    return 0


def _follow(parsed: argparse.Namespace) -> int:
    with importing():
        from rowmill.cli.follow import print_feed

    print_feed(parsed.store, since=parsed.since, seconds=parsed.seconds)
    return 0


def _generate(parsed: argparse.Namespace) -> int:
    with importing():
        from rowmill.ctr.data.generate import generate

    values = {key: value for (_, key), value in _flags(parsed, "generate").items()}
    sidecar = generate(parsed.out, section_from("generate", values))
    print(
        f"wrote {parsed.out}; best possible metrics (scores of the teacher) are in {sidecar.name}"
    )
    return 0


def _sequences(parsed: argparse.Namespace) -> int:
    with importing():
        from rowmill.ctr.data.sequences import make_sequences

    values = {key: value for (_, key), value in _flags(parsed, "sequences").items()}
    sidecar = make_sequences(parsed.out, section_from("sequences", values))
    print(f"wrote {parsed.out}; the start rows of its candidate lists are in {sidecar.name}")
    return 0


def _nodes(parsed: argparse.Namespace) -> int:
    with importing():
        from rowmill.gnn.planted_nodes import make_nodes

    values = {key: value for (_, key), value in _flags(parsed, "nodes").items()}
    print(make_nodes(parsed.out, section_from("nodes", values)))
    return 0


class _Version(argparse.Action):
    """Prints the version; imports the binding only when the flag is given."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help="print the version")

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from rowmill import __version__

        print(f"rowmill {__version__}")
        parser.exit()
