"""Printed numbers match the results that they link to, and results record their source.

A test cannot tell measured numbers from others in prose. So it does not check numbers outside tables of measurements, whole
numbers without a unit next to a linked number (`at bound 80`), and whether a link names the intended value of its file.
"""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.figures import Figure, FigureError, figures, unlinked

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks/results"
PAGES = [
    ROOT / "README.md",
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("benchmarks/**/*.md")),
]

# Results without a recorded source, which must be measured again: reason -> files, without `.json`.
BEFORE_PROVENANCE = {
    "names a commit that a rebase removed": """
    change_feed click_models dlrm_scaling-large dlrm_shapes-large
    dlrm_shapes-mlperf dlrm_shapes-small exchange-2 exchange-4 exchange-dims
    peer_frameworks-gnn slow_links-100mbit slow_links-2x1gbit slow_links-4x1gbit
    staleness_quality-quality staleness_quality-rate store-training-lmdb
    """,
    "the tree had uncommitted changes": """
    dlrm_shapes-mlperf-zen4 dlrm_shapes-small-zen4 dlrm_shapes embedding_step-dtypes
    exchange-2-ahead exchange-4-ahead exchange-operators
    gnn_out_of_core-quick gnn_out_of_core kge_out_of_core kge_quality out_of_core-generated
    peer_frameworks-kge-passive peer_frameworks-kge precision_quality store-cold-clocks
    store-memory-full-busy store-memory
    """,
    "names a commit, but neither trees nor ranges": """
    embedding_step exchange-2-ahead-4096 exchange-2-ahead-busy exchange-2-ahead-split-bf16
    exchange-chunks gnn_quality out_of_core risk_graphs store-clocks store-cold-drift
    store-cold-full store-memory-full
    """,
}

# Results whose commit was rewritten after they were recorded: file -> a commit in the history with the same trees.
REWRITTEN: dict[str, str] = {
    "gpu_fragmentation-trace": "4675e3aa07f305c068f654fbfc74f6057a3af042",
    "gpu_fragmentation-yardstick": "4675e3aa07f305c068f654fbfc74f6057a3af042",
}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def results() -> dict[str, dict[str, Any]]:
    return {file.stem: json.loads(file.read_text()) for file in sorted(RESULTS.glob("*.json"))}


def sources(result: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The source of a result, and the sources of the runs that it summarizes."""
    for part in (result, *result["cells"]):
        if "source" in part:
            yield part["source"]


def problems(result: dict[str, Any]) -> list[str]:
    """Problems with the recorded source of a result."""
    needed = {
        "": ("summary", "ranges", "cells", "machine", "source", "date", "command"),
        "source": ("commit", "dirty", "crates", "python"),
        "machine": ("processor", "vendor", "family", "model", "cores"),
    }
    missing = [
        f"no {part}.{field}" if part else f"no {field}"
        for part, fields in needed.items()
        for field in fields
        if field not in (result.get(part, {}) if part else result)
    ]
    spread = {
        name.removesuffix("_spread") for name in result["summary"] if name.endswith("_spread")
    }
    missing += [f"no range of {name}" for name in spread - set(result.get("ranges", {}))]
    return missing + ["from a dirty tree" for source in sources(result) if source["dirty"]]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_printed_digits_match_the_results(page: Path) -> None:
    wrong: list[str] = []
    for figure in figures(page.read_text()):
        try:
            figure.check(page.parent)
        except FigureError as error:
            wrong.append(f"{name_of(page)}:{figure.line}: {error}")
    assert wrong == []


@pytest.mark.parametrize("page", ["README.md", "docs/figures.md"])
def test_measurements_in_tables_link_to_a_result(page: str) -> None:
    text = (ROOT / page).read_text()
    assert [f"{page}:{line}: {cell}" for line, cell in unlinked(text)] == []
    assert any(figures(text)), "a page of measurements has some"


def test_results_record_their_source() -> None:
    listed = " ".join(BEFORE_PROVENANCE.values()).split()
    assert len(listed) == len(set(listed))
    found = {name: said for name, result in results().items() if (said := problems(result))}
    assert {name: said for name, said in found.items() if name not in listed} == {}
    assert set(listed) - set(found) == set(), "listed, but measured again or deleted"


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_results_name_commits_of_the_history() -> None:
    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("a shallow clone does not have the history that results name")
    gone = {
        name
        for name, result in results().items()
        for source in sources(result)
        if git("merge-base", "--is-ancestor", source["commit"], "HEAD").returncode != 0
    }
    assert gone == set(REWRITTEN)
    for name, commit in REWRITTEN.items():
        assert git("merge-base", "--is-ancestor", commit, "HEAD").returncode == 0
        for source in sources(results()[name]):
            for tree in ("crates", "python"):
                assert git("rev-parse", f"{commit}:{tree}").stdout.strip() == source[tree]


RESULT: dict[str, Any] = {
    "summary": {
        "rate": 0.975,
        "z0.8_ms": -2.5,
        "bytes": 3_221_225_472,
        "rows": 1_234_567.0,
        "none": 0,
    },
    "cells": [
        {"variant": "a", "round": 0, "rate": 0.1},
        {"variant": "a", "round": 1, "rate": 0.2, "equal": True},
        {"variant": "b", "round": 0, "share": 0.25, "rate": 0.3},
    ],
}


def check(text: str, path: str, folder: Path) -> None:
    (folder / "result.json").write_text(json.dumps(RESULT))
    (figure,) = figures(f'| what | **[{text}](result.json "{path}") ms** |')
    assert (figure.text, figure.path) == (text, path)
    figure.check(folder)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("0.975", "summary.rate"),
        (
            "0.98",
            "summary.rate",
        ),  # A half is rounded away from zero, also if the nearest float is below it.
        ("1", "summary.rate"),
        ("98 %", "summary.rate"),
        ("97.5 %", "summary.rate"),
        ("97.5", "summary.rate *100"),
        ("0.98x", "summary.rate"),
        ("**0.98**", "summary.rate"),
        ("-2.5", "summary.z0.8_ms"),
        ("-3", "summary.z0.8_ms"),
        ("3.0", "summary.bytes /2^30"),
        ("1,234,567", "summary.rows"),
        ("1,235 k", "summary.rows"),
        ("1.23 M", "summary.rows"),
        ("1.2", "summary.rows *1e-6"),
        ("1.2e6", "summary.rows"),
        ("0", "summary.none"),
        ("0.1", "cells.0.rate"),
        ("0.2", "cells.variant=a.round=1.rate"),
        ("0.2", "cells.variant=a.1.rate"),
        ("0.3", "cells.share=0.25.rate"),
        ("3.0", "cells.share=0.25.rate / cells.0.rate"),
        ("300", "cells.variant=b.rate / cells.0.rate *100"),
    ],
)
def test_a_matching_number_passes(text: str, path: str, tmp_path: Path) -> None:
    check(text, path, tmp_path)


@pytest.mark.parametrize(
    ("text", "path", "said"),
    [
        ("0.97", "summary.rate", "'0.97' is printed, 'summary.rate' of result.json is 0.975"),
        ("0.976", "summary.rate", "0.976"),
        ("-2", "summary.z0.8_ms", "is -2.5"),
        ("2.5", "summary.z0.8_ms", "is -2.5"),
        ("1,2345", "summary.rows", "not one number"),
        ("1.23 M rows", "summary.rows", "not one number"),
        ("about 1", "summary.rate", "not one number"),
        ("0.98", "summary.rates", "'summary.rates': there is no 'rates'"),
        ("0.98", "cells.7.rate", "fits none of 3 elements"),
        ("0.98", "cells.variant=c.rate", "fits none of 3 elements"),
        ("0.1", "cells.variant=a.rate", "fits none of 2 elements, select one first"),
        ("0.98", "summary", "is not a number"),
        ("1", "cells.1.equal", "is not a number: true"),
        ("1", "summary.rate / summary.none", "divides by zero"),
    ],
)
def test_a_number_that_does_not_match_is_named(
    text: str, path: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(FigureError, match=re.escape(said)):
        check(text, path, tmp_path)


@pytest.mark.parametrize(
    ("cell", "found"),
    [
        ('[0.98](r.json "summary.a") of `z0.8`, **missed** at bound 80', False),
        ("9.2 to 11.9 x on a busy host (no result kept)", False),
        ("not measured yet", False),
        ('[0.98](r.json "summary.a"), 0.97 in an earlier run', True),
        ("**12 %**", True),
        ("63 M rows/s", True),
        ("[49 s](r.json)", True),
        ("1,024 KiB", True),
    ],
)
def test_a_measurement_without_a_link_is_found(cell: str, found: bool) -> None:
    row = f"| get, 0.5 M rows | >= 0.9 | {cell} |"
    text = f"It takes 0.3 s.\n\n| question | aim | measured |\n|---|---|---|\n{row}\n"
    assert list(unlinked(text)) == ([(5, cell)] if found else [])
    assert list(unlinked(text.replace("measured", "setting"))) == []


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FigureError, match=r"\.\./gone\.json does not exist"):
        Figure(1, "1", "../gone.json", "summary.rate").check(tmp_path)


def test_problems_of_a_result_are_found() -> None:
    source = {"commit": "c", "dirty": False, "crates": "a", "python": "b"}
    machine = dict.fromkeys(("processor", "vendor", "family", "model", "cores"), "x")
    good = {**RESULT, "ranges": {}, "machine": machine, "source": source, "date": "", "command": ""}
    assert problems(good) == []
    assert problems({**good, "source": {**source, "dirty": True}}) == ["from a dirty tree"]
    assert problems({**good, "cells": [{"source": {**source, "dirty": True}}]}) == [
        "from a dirty tree"
    ]
    assert problems({**good, "summary": {"rate_spread": 0.1}}) == ["no range of rate"]
    without = {name: value for name, value in good.items() if name not in ("source", "date")}
    assert problems(without) == [
        *(
            "no source",
            "no date",
            "no source.commit",
            "no source.dirty",
            "no source.crates",
            "no source.python",
        )
    ]
