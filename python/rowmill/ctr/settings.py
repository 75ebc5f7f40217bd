"""Settings of generated click logs: sections of the file that `rowmill.config` reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path  # noqa: TC003  annotations are evaluated
from typing import Annotated

from rowmill.config.setting import Setting


@dataclass(frozen=True, kw_only=True)
class GenerateConfig:
    """Section `[generate]`: the click log to generate before training, if it does not exist yet."""

    rows: Annotated[int, Setting("number of rows of the log", "--rows", 1)]
    seed: Annotated[int, Setting("random seed", "--seed", 0, (1 << 44) - 1)] = 0
    tables: Annotated[int, Setting("number of id features", "--tables", 1, 4096)] = 26
    rows_per_table: Annotated[
        int | None,
        Setting(
            "number of distinct ids per feature (default: as in the Criteo log)",
            "--rows-per-table",
            1,
            1 << 40,
        ),
    ] = None
    zipf: Annotated[
        float | None,
        Setting(
            "Zipf exponent of the ids of all features (default: a distribution fitted to production logs)",
            "--zipf",
            0,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class SequencesConfig:
    """Section `[sequences]`: the log of sequences to make before training, if it does not exist yet."""

    interactions: Annotated[
        Path | None,
        Setting(
            "Parquet or TSV file with columns user, item, timestamp and optionally rating (default: generated "
            "interactions)",
            "--interactions",
        ),
    ] = None
    places: Annotated[
        int,
        Setting("longest history of a row, in items", "--places", 1, 10_000),
    ] = 20
    negatives: Annotated[
        int,
        Setting("training rows without a click for each row with one", "--negatives", 0, 1000),
    ] = 4
    candidates: Annotated[
        int,
        Setting(
            "items to rank per user in the test, the user's last item included",
            "--candidates",
            2,
        ),
    ] = 100
    seed: Annotated[int, Setting("random seed", "--seed", 0, (1 << 44) - 1)] = 0
    users: Annotated[int, Setting("generated interactions: number of users", "--users", 1)] = 1000
    items: Annotated[int, Setting("generated interactions: number of items", "--items", 4)] = 1000
    events: Annotated[
        int,
        Setting("generated interactions: mean number per user", "--events", 2),
    ] = 50
