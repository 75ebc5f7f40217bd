"""benchmarks/common.py computes every published result: a wrong median, or rounds that always start with
the same variant, would bias all of them.

The measured work is real arithmetic. No test depends on time: they check the order of calls, the
arithmetic on given samples, and the form of the output.
"""

import json
import subprocess
from datetime import datetime
from pathlib import Path

import pytest

from benchmarks import common
from benchmarks.provenance import Source, check_recordable


def git(*arguments: str, folder: Path = common.REPOSITORY) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def settings(out: Path | None = None) -> common.Settings:
    return common.Settings(quick=True, seed=1, out=out, command="python run.py --quick")


def sample(units: int, wall_s: float, cpu_s: float = 1.0) -> common.Sample:
    return common.Sample("x", 0, units, wall_s, cpu_s, 0, 0, 0)


def test_rounds_rotate_the_first_variant_and_drop_the_warm_up() -> None:
    order: list[str] = []

    def work(name: str) -> int:
        order.append(name)
        return len(order)

    bench = common.Benchmark(settings())
    samples = bench.compare({"a": lambda: work("a"), "b": lambda: work("b")}, rounds=2, warm_up=1)
    assert order == ["b", "a", "a", "b", "b", "a"]
    assert [each.units for each in samples["a"]] == [3, 6]
    assert [each.round for each in samples["b"]] == [0, 1]
    assert [cell["variant"] for cell in bench.cells] == ["a", "b", "b", "a"]


def test_median_and_spread() -> None:
    median = common.Median.of([4.0, 1.0, 2.0])
    assert median == common.Median(value=2.0, min=1.0, max=4.0, rounds=3)
    assert median.spread == 1.5
    assert common.Median.of([0.0]).spread == 0.0
    mean = common.Mean.of(value for value in (-4.0, -1.0, -1.0))
    assert (mean.value, mean.spread, mean.rounds) == (-2.0, 1.5, 3)
    assert common.units_per_s([sample(10, 2.0), sample(30, 2.0)]).value == 10.0
    assert common.cpu_us_per_unit([sample(4, 1.0, cpu_s=2.0)]).value == 500_000.0


def test_ratio_pairs_rounds() -> None:
    # In the second round the host was half as fast for both, which must not change the ratio.
    ours = [sample(80, 1.0), sample(40, 1.0)]
    theirs = [sample(100, 1.0), sample(50, 1.0)]
    assert common.ratio(ours, theirs) == common.Median(0.8, 0.8, 0.8, 2)
    with pytest.raises(ValueError, match="shorter"):
        common.ratio(ours, theirs[:1])


def test_result_has_all_common_fields(tmp_path: Path) -> None:
    out = tmp_path / "results" / "question.json"
    bench = common.Benchmark(settings(out))
    bench.compare({"sum": lambda: sum(range(1000)) and 1000}, rounds=1, warm_up=0)
    bench.summarize("rate", common.Median.of([1.5, 2.0, 2.5]))
    bench.write()
    result = json.loads(out.read_text())
    assert set(result) == {"summary", "ranges", "cells", "machine", "source", "date", "command"}
    assert result["ranges"] == {"rate": {"rounds": 3, "min": 1.5, "max": 2.5}}
    assert result["source"]["crates"] == git("rev-parse", "HEAD:crates")
    assert {"processor", "vendor", "family", "model"} <= set(result["machine"])
    datetime.fromisoformat(result["date"])
    assert result["summary"] == {"rate": 2.0, "rate_spread": 0.5}
    assert result["cells"][0]["units"] == 1000
    assert result["machine"]["cores"] >= 1
    assert result["command"] == "python run.py --quick"


def test_a_program_that_cannot_be_built_says_what_it_needs() -> None:
    with pytest.raises(SystemExit, match="failed; the error is above; it needs libnonesuch-dev"):
        common.bench_program(["nonesuch"])


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with a file in each folder that counts, all committed."""
    for name in ("crates/a.rs", "python/a.py", "benchmarks/run.py", "benchmarks/results/a.json"):
        file = tmp_path / name
        file.parent.mkdir(parents=True)
        file.write_text("1\n")
    git("init", "--quiet", folder=tmp_path)
    git("add", ".", folder=tmp_path)
    author = ("-c", "user.name=a", "-c", "user.email=a@example.invalid")
    git(*author, "commit", "--quiet", "--message=all", folder=tmp_path)
    return tmp_path


def record(
    repository: Path, out: str = "new.json", *, quick: bool = False, dirty: bool = False
) -> None:
    check_recordable(repository / out, quick=quick, dirty=dirty, repository=repository)


def test_a_clean_tree_records_its_commit_and_trees(repository: Path) -> None:
    (repository / "benchmarks/results/a.json").write_text("2\n")
    (repository / "notes.txt").write_text("untracked, and not code\n")
    record(repository)
    assert Source.now(repository) == Source(
        commit=git("rev-parse", "HEAD", folder=repository),
        dirty=False,
        crates=git("rev-parse", "HEAD:crates", folder=repository),
        python=git("rev-parse", "HEAD:python", folder=repository),
    )


@pytest.mark.parametrize("name", ["crates/a.rs", "python/new.py", "benchmarks/new/run.py"])
def test_a_dirty_tree_is_refused_without_allow_dirty(repository: Path, name: str) -> None:
    before = Source.now(repository)
    (repository / name).parent.mkdir(exist_ok=True)
    (repository / name).write_text("2\n")
    with pytest.raises(SystemExit) as refused:
        record(repository)
    said = str(refused.value)
    assert name.removesuffix("run.py") in said
    assert "Commit or stash them, or pass --allow-dirty" in said
    record(repository, dirty=True)
    assert Source.now(repository).dirty
    assert before.until_now(repository).dirty, "the tree changed during the benchmark"


def test_a_commit_during_the_benchmark_marks_the_result_if_it_changed_code(
    repository: Path,
) -> None:
    author = ("-c", "user.name=a", "-c", "user.email=a@example.invalid", "commit", "--quiet")
    before = Source.now(repository)
    git(*author, "--allow-empty", "--message=words", folder=repository)
    assert before.until_now(repository) == before
    (repository / "python/a.py").write_text("2\n")
    git(*author, "--all", "--message=code", folder=repository)
    assert before.until_now(repository).dirty


def test_without_a_repository_results_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no git repository"):
        record(tmp_path)


def test_a_quick_run_does_not_overwrite_the_result_of_a_full_run(repository: Path) -> None:
    out = repository / "out.json"
    out.write_text(json.dumps({"command": "python run.py --out out.json"}))
    record(repository, out.name)
    with pytest.raises(SystemExit, match=r"full run \(python run.py --out out.json\)"):
        record(repository, out.name, quick=True)
    out.write_text(json.dumps({"command": "python run.py --quick --out out.json"}))
    record(repository, out.name, quick=True)
