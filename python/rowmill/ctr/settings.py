"""Settings of click logs that are made: sections of the file that `rowmill.config` reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path  # noqa: TC003  annotations are evaluated
from typing import Annotated

from rowmill.config.setting import Setting


@dataclass(frozen=True, kw_only=True)
class GenerateConfig:
    """Section `[generate]`: a click log to make first, if it is not there yet."""

    rows: Annotated[int, Setting("rows of the log", "--rows", 1)]
    seed: Annotated[int, Setting("seed of everything random", "--seed", 0, (1 << 44) - 1)] = 0
    tables: Annotated[int, Setting("id features", "--tables", 1, 4096)] = 26
    rows_per_table: Annotated[
        int | None,
        Setting(
            "distinct ids of every feature (default: as in the Criteo log)",
            "--rows-per-table",
            1,
            1 << 40,
        ),
    ] = None
    zipf: Annotated[
        float | None,
        Setting(
            "one Zipf exponent for all ids (default: the law fitted to production)", "--zipf", 0
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class SequencesConfig:
    """Section `[sequences]`: a log of sequences to make first, if it is not there yet."""

    interactions: Annotated[
        Path | None,
        Setting(
            "parquet or TSV file with the columns user, item, timestamp and perhaps rating (default: generate some)",
            "--interactions",
        ),
    ] = None
    places: Annotated[
        int, Setting("items before the one shown that a row tells", "--places", 1, 10_000)
    ] = 20
    negatives: Annotated[
        int, Setting("rows without a click for each with one, to train on", "--negatives", 0, 1000)
    ] = 4
    candidates: Annotated[
        int, Setting("items to tell a user's last one from, itself included", "--candidates", 2)
    ] = 100
    seed: Annotated[int, Setting("seed of everything random", "--seed", 0, (1 << 44) - 1)] = 0
    users: Annotated[int, Setting("generated: users", "--users", 1)] = 1000
    items: Annotated[int, Setting("generated: items", "--items", 4)] = 1000
    events: Annotated[
        int, Setting("generated: interactions of a user, on average", "--events", 2)
    ] = 50
