"""The command `rowmill alter`: copies a run with another dim or row optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rowmill.cli.importing import importing
from rowmill.cli.subcommand import add_command

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from pathlib import Path

_FLAGS = {
    "dim": ("model", "dim", "N", "embedding dimension"),
    "row_optimizer": ("rows", "optimizer", "NAME", "optimizer of the rows"),
    "row_lr": ("rows", "lr", "X", "learning rate of the rows"),
    "eps": ("rows", "eps", "X", "eps of the optimizer of the rows"),
    "memory": ("store", "memory", "SIZE", "memory budget of the store"),
}


def add_alter(commands: Any, path: Callable[[str], Path], run: str) -> None:
    """Add the command to the parser; `path` parses a path, `run` describes RUN."""
    parser = add_command(
        commands, "alter", "copy a stopped run with another embedding dim or row optimizer"
    )
    parser.add_argument("run", type=path, metavar="RUN", help=run)
    parser.add_argument(
        "--out", type=path, required=True, metavar="NEW", help="new folder for the altered run"
    )
    parser.add_argument(
        "--config",
        type=path,
        metavar="FILE",
        help="TOML file with the new settings; flags override it",
    )
    for name, (section, key, metavar, said) in _FLAGS.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            metavar=metavar,
            help=f"new {section}.{key}: {said} (default: that of the run)",
        )
    parser.add_argument(
        "--table",
        action="append",
        default=[],
        metavar="NAME:KEY=VALUE",
        help="new optimizer, lr or parameter of one table, such as user:eps=1e-6; may be given several times",
    )
    parser.set_defaults(command=_alter, interrupted="; nothing was written")


def _alter(parsed: argparse.Namespace) -> int:
    with importing():
        from rowmill.saved.altered_run import alter

    flags = {
        (section, key): value
        for name, (section, key, *_) in _FLAGS.items()
        if (value := getattr(parsed, name)) is not None
    }
    done = alter(parsed.run, parsed.out, file=parsed.config, flags=flags, tables=parsed.table)
    print(f"wrote {parsed.out}: {done.rows:,} rows of {done.tables} tables")
    if done.begun_anew:
        print(f"optimizer state was reset in {', '.join(done.begun_anew)}")
    more = f"rowmill train --continue {parsed.out} --data DATA"
    print(f"to continue training: {more}, or --resume with the new settings")
    return 0
