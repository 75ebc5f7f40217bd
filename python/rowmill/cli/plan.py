"""The command `rowmill plan`: where the rows of a run on many ranks would be, and the probe of links and cores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rowmill._extras import extra
from rowmill.cli.importing import importing
from rowmill.cli.subcommand import add_command
from rowmill.config.config import load_config, settings_of
from rowmill.config.setting import ConfigError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from pathlib import Path

    from rowmill.config.config import Config

_FLAGS = {
    ("data", "path"): "PATH",
    ("train", "batch"): "N",
    ("train", "placement"): "PLACEMENT",
    ("train", "speeds"): "FILE",
    ("train", "rows_on_wire"): "fp32|bf16",
}
"""Settings that can be given as flags, and the names of their values in the help."""

_MEETING_S, _WAIT_S = 60.0, 60.0


def add_plan(commands: Any, path: Callable[[str], Path]) -> None:
    """Add the command to the parser; `path` parses a path."""
    parser = add_command(
        commands,
        "plan",
        "print where the rows of a run on many ranks would be, or measure links and cores",
    )
    parser.add_argument(
        "of",
        type=path,
        nargs="?",
        metavar="RUN|CONFIG",
        help="folder of a run (--out of rowmill train), or a TOML file with settings",
    )
    parser.add_argument(
        "--ranks", type=int, metavar="N", help="number of ranks to plan for (default: those of RUN)"
    )
    for (section, key), metavar in _FLAGS.items():
        setting = settings_of(section)[key][1]
        assert setting.flag is not None
        said = setting.help.removeprefix("under torchrun: ")
        parser.add_argument(setting.flag, dest=f"{section}.{key}", help=said, metavar=metavar)
    parser.add_argument(
        "--probe",
        type=path,
        metavar="FILE",
        help="under torchrun: measure links and cores, and write FILE for --speeds",
    )
    parser.add_argument(
        "--backend",
        choices=("gloo", "oneccl"),
        default="gloo",
        help="backend of --probe (default gloo)",
    )
    parser.set_defaults(command=_plan, interrupted="")


def _plan(parsed: argparse.Namespace) -> int:
    flags = {
        (section, key): value
        for section, key in _FLAGS
        if (value := getattr(parsed, f"{section}.{key}")) is not None
    }
    if parsed.probe is not None:
        if parsed.of is not None or parsed.ranks is not None or flags:
            raise ConfigError(
                "--probe only measures: give it under torchrun, without a run, --ranks and settings"
            )
        return _probe(parsed.probe, parsed.backend)
    if parsed.of is None:
        raise ConfigError(
            "give the folder of a run or a config file, or --probe FILE under torchrun"
        )
    run = _placements_of(parsed.of) if parsed.of.is_dir() else None
    ranks = run[1] if parsed.ranks is None and run else parsed.ranks
    if ranks is None:
        raise ConfigError(
            f"--ranks is not set, and {parsed.of} is no run of many ranks: give --ranks"
        )
    if ranks < 1:
        raise ConfigError(f"--ranks must be an integer of at least 1, got {ranks}")
    with importing():
        with extra("train"):
            from rich.console import Console

        from rowmill.train.planned import plan_run
    config = _settings_of(parsed.of, flags) if parsed.of.is_dir() else load_config(parsed.of, flags)
    print(plan_run(config, Console(stderr=True), ranks=ranks))
    if run:
        print(
            f"{parsed.of} was written by {run[1]} ranks, and keeps its placements when it resumes: {run[0]}"
        )
    return 0


def _placements_of(run: Path) -> tuple[str, int] | None:
    """The placements of a run and the number of its ranks; None if one process wrote it."""
    with importing():
        from rowmill.distributed import Manifest
        from rowmill.saved.saved_run import folder_of_rows

    manifest = Manifest.load(folder_of_rows(run))
    if manifest is None:
        return None
    named = (f"{name}={text}" for name, text in manifest.placements.items())
    return ",".join(["rows", *named]), len(manifest.epochs)


def _settings_of(run: Path, flags: dict[tuple[str, str], Any]) -> Config:
    """The settings of a run, overridden by flags."""
    with importing():
        from rowmill.saved.saved_run import SavedRun

    with SavedRun.open(run) as saved:
        settings = saved.config.as_dict()
    known = {name: values for name, values in settings.items() if values is not None}
    return load_config(None, flags, known)


def _probe(file: Path, backend: str) -> int:
    with importing():
        import torch.distributed as dist

        from rowmill.distributed import Ranks, write_durable
        from rowmill.distributed.probe import probe
        from rowmill.distributed.torchrun import Launched, meet
    here = Launched.here()
    if here is None:
        raise ConfigError(
            f"--probe {file} measures the link between ranks: start the command with torchrun"
        )
    meet(here, backend, meeting_s=_MEETING_S, wait_s=_WAIT_S)
    try:
        ranks = Ranks(timeout_s=_WAIT_S)
        speeds = probe(ranks)

        def write() -> tuple[tuple[()], dict[str, Any]]:
            if ranks.rank == 0:
                write_durable(file, str(speeds).encode())
                print(speeds, end="")
            return (), {}

        ranks.agree(write, "the file of speeds")
    finally:
        dist.destroy_process_group()
    return 0
