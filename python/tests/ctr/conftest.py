"""Rows in the format of Criteo, made by hand so that tests know every value."""

from pathlib import Path

import pytest

from rowmill.ctr.data import CRITEO


def tsv_line(label: str = "1", dense: list[str] | None = None, ids: list[str] | None = None) -> str:
    dense = [str(i) for i in range(13)] if dense is None else dense
    ids = [f"{i:08x}" for i in range(26)] if ids is None else ids
    return "\t".join([label, *dense, *ids])


@pytest.fixture
def write_tsv(tmp_path: Path):
    def write(lines: list[str], name: str = "clicks.tsv", end: str = "\n") -> Path:
        path = tmp_path / name
        path.write_text("\n".join(lines) + end)
        return path

    return write


@pytest.fixture
def line():
    return tsv_line


@pytest.fixture
def criteo_columns():
    def columns(rows: int) -> dict[str, list[int | None]]:
        return {
            "label": [row % 2 for row in range(rows)],
            **{name: [row] * rows for row, name in enumerate(CRITEO.dense)},
            **{name: [1000 * f + row for row in range(rows)] for f, name in enumerate(CRITEO.ids)},
        }

    return columns
