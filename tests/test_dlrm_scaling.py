"""`benchmarks/dlrm_scaling/dlrm.py` run as a command: real ranks, real messages, times that add up.

What could break: a phase that is counted twice or not at all, a message that counts as hidden while a rank waited for it,
overlap that changes results, a batch that depends on the number of ranks, threads that do not run on their pinned cores,
and invalid input that ends in a traceback.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.dlrm_scaling.dlrm import main
from benchmarks.dlrm_scaling.figures import COLLECTIVES, scaling, summary
from benchmarks.dlrm_scaling.launch import run_ranks
from benchmarks.dlrm_scaling.settings import Settings
from benchmarks.dlrm_scaling.shapes import SHAPES
from python.tests.warm import warm_python
from rowmill.distributed.cores import cores_of
from rowmill.errors import ExchangeFailed, InvalidInput
from rowmill.train.dense import multiplies_bf16
from tools.locked import locked_folder, with_folder

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = str(ROOT / "benchmarks/dlrm_scaling/dlrm.py")
TINY = ("--config", "mlperf", "--scale", "0.002", "--threads", "1", "--steps", "4", "--warmup", "2")
"""Arguments for four steps: every distinct batch once."""
MODES = ("blocking", "overlap")


def bench(
    out: Path, *arguments: str, python: str = "", **environment: str
) -> tuple[str, dict[str, Any]]:
    """Run the command; returns its output and the report."""
    done = subprocess.run(
        [
            python or warm_python(),
            PROGRAM,
            *arguments,
            "--out",
            str(out),
        ],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr, json.loads((out / "dlrm.json").read_text())


def check_times(run: dict[str, Any]) -> None:
    """Check that the parts of a step add up on every rank, and that exposed time does not exceed total time."""
    settings = run["settings"]
    for rank in run["ranks"]:
        step_ms = sum(rank["step_ms"]) / len(rank["step_ms"])
        assert len(rank["step_ms"]) == settings["steps"]
        parts = sum(rank["phase_ms"].values()) + sum(rank["exposed_ms"].values())
        assert parts == pytest.approx(step_ms, rel=1e-6)
        # Time outside of all phases.
        assert rank["phase_ms"]["other"] < 0.5 * step_ms
        for leg in COLLECTIVES:
            assert 0 <= rank["exposed_ms"].get(leg, 0.0) <= rank["total_ms"][leg] + 1e-9, leg
            assert rank["total_ms"][leg] <= step_ms
    assert all(ms > 0 for ms in run["phase_ms"].values()), run["phase_ms"]
    whole = sum(run["phase_ms"].values()) + run["exposed_ms"]
    assert whole == pytest.approx(run["step_ms"], rel=1e-6)
    assert run["samples_per_s"] == pytest.approx(1e3 * run["samples"] / run["step_ms"])


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any], Path]:
    """Runs with one and two ranks in both modes: the output, the report, the folder."""
    out = tmp_path_factory.mktemp("both")
    printed, report = bench(out, *TINY, "--ranks", "1,2", "--comm", ",".join(MODES))
    return printed, report, out


def test_times_add_up(both: tuple[str, dict[str, Any], Path]) -> None:
    _, report, _ = both
    assert [(run["settings"]["ranks"], run["settings"]["comm"]) for run in report["runs"]] == [
        (ranks, comm) for ranks in (1, 2) for comm in MODES
    ]
    for run in report["runs"]:
        check_times(run)
        assert len(run["ranks"]) == run["settings"]["ranks"]
        assert run["samples"] == round(16384 * 0.002)


def test_overlap_sends_the_same_bytes_and_gives_identical_losses(
    both: tuple[str, dict[str, Any], Path],
) -> None:
    for blocking, overlap in zip(both[1]["runs"][::2], both[1]["runs"][1::2], strict=True):
        assert blocking["losses"] == overlap["losses"]
        assert len(set(blocking["losses"])) == 7
        for leg in COLLECTIVES:
            for what in ("bytes", "rounds"):
                assert blocking["collectives"][leg][what] == overlap["collectives"][leg][what]


def test_two_ranks_share_a_batch_and_give_the_losses_of_one(
    both: tuple[str, dict[str, Any], Path],
) -> None:
    one, two = both[1]["runs"][0], both[1]["runs"][2]
    assert two["losses"] == pytest.approx(one["losses"], rel=1e-5)
    assert one["collectives"]["rows"]["bytes"] == 0 < two["collectives"]["rows"]["bytes"]
    # Row gradients have the size of rows. The allreduce of layers between two ranks sends their size.
    assert two["collectives"]["gradients"]["bytes"] == two["collectives"]["rows"]["bytes"]
    shape = SHAPES["mlperf"]
    widths = [(13, 512, 256, 128), (128 + 27 * 26 // 2, *shape.top, 1)]
    weights = sum(a * b + b for stack in widths for a, b in itertools.pairwise(stack))
    assert two["collectives"]["allreduce"]["bytes"] == 4 * weights
    assert both[1]["scaling"][:2] == [None, None]
    assert both[1]["scaling"][2] == pytest.approx(one["step_ms"] / two["step_ms"])


def test_the_table_and_the_chart_show_the_report(both: tuple[str, dict[str, Any], Path]) -> None:
    printed, report, out = both
    lines = printed.splitlines()
    assert lines[0].startswith(
        "DLRM mlperf, scale 0.002, strong scaling, ids zipf; 4 steps after 2"
    )
    for name in ("lookup", "bottom MLP", "top MLP backward", "allreduce", "speed-up"):
        assert any(name in line for line in lines), name
    step = next(line for line in lines if line.startswith("step"))
    assert f"{report['runs'][0]['step_ms']:,.2f}" in step
    page = (out / "dlrm.html").read_text()
    bars = re.findall(r'<rect x="([\d.]+)" y="(\d+)" width="([\d.]+)"', page)
    lengths: list[float] = []
    for number in range(len(report["runs"])):
        of_run = [(float(x), float(width)) for x, y, width in bars if int(y) == 24 + 46 * number]
        # Each bar segment begins where the one before ends, and widths match the report.
        for (x, width), (after, _) in itertools.pairwise(of_run):
            assert after == pytest.approx(x + width, abs=0.2)
        lengths.append(sum(width for _, width in of_run))
    steps = [run["step_ms"] for run in report["runs"]]
    scale = max(lengths) / max(steps)
    # Each of up to ten segment widths is rounded to a tenth.
    assert lengths == pytest.approx([scale * step for step in steps], abs=1.0)


@pytest.mark.parametrize("config", ["small", "dcnv2"])
def test_other_models(tmp_path: Path, config: str) -> None:
    scale = {"small": "0.002", "dcnv2": "0.0002"}[config]
    arguments = (*TINY[4:], "--ranks", "2", "--comm", ",".join(MODES), "--ids", "uniform")
    _, report = bench(tmp_path, "--config", config, "--scale", scale, *arguments)
    blocking, overlap = report["runs"]
    assert blocking["losses"] == overlap["losses"]
    check_times(blocking)


@pytest.mark.parametrize("precision", ["bf16", "split-bf16"])
def test_bf16_sends_half_the_bytes(
    tmp_path: Path, both: tuple[str, dict[str, Any], Path], precision: str
) -> None:
    arguments = (*TINY, "--ranks", "2", "--comm", ",".join(MODES), "--precision", precision)
    if not multiplies_bf16():
        with pytest.raises(AssertionError, match="needs a processor with AVX512-BF16 or AMX"):
            bench(tmp_path, *arguments)
        return
    _, report = bench(tmp_path, *arguments)
    wide = both[1]["runs"][2]
    blocking, overlap = report["runs"]
    assert blocking["losses"] == overlap["losses"] != wide["losses"]
    assert blocking["losses"] == pytest.approx(wide["losses"], rel=2e-2)
    for leg in ("rows", "gradients", "allreduce"):
        assert 2 * blocking["collectives"][leg]["bytes"] == wide["collectives"][leg]["bytes"]


def test_weak_scaling_keeps_the_batch_per_rank(tmp_path: Path) -> None:
    _, report = bench(tmp_path, *TINY, "--ranks", "1,2", "--sweep", "weak")
    assert [run["samples"] for run in report["runs"]] == [4, 8]
    one, two = report["runs"]
    assert report["scaling"][1] == pytest.approx(two["samples_per_s"] / one["samples_per_s"])


def test_oneccl_gives_the_same_losses_and_bytes(
    tmp_path: Path, both: tuple[str, dict[str, Any], Path]
) -> None:
    arguments = (*TINY, "--ranks", "2", "--backend", "oneccl", "--placement", "auto")
    if len(os.sched_getaffinity(0)) > 1:
        arguments += ("--pin", "apart")
    # Python starts the command and its ranks, as for a user.
    _, report = bench(tmp_path, *arguments, python=sys.executable, PYTHONPATH=oneccl_path())
    check_times(report["runs"][0])
    assert report["runs"][0]["losses"] == pytest.approx(both[1]["runs"][3]["losses"], rel=1e-6)


def oneccl_path() -> str:
    """PYTHONPATH with the packages of oneCCL."""
    packages = ROOT / "python/tests/distributed/oneccl/packages.lock"
    return with_folder(locked_folder("oneccl", packages))


def test_ranks_started_by_torchrun_give_the_same_run(
    tmp_path: Path, both: tuple[str, dict[str, Any], Path]
) -> None:
    done = subprocess.run(
        [
            *(warm_python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
            *(PROGRAM, *TINY, "--out", str(tmp_path)),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("samples per second") == 1
    run = json.loads((tmp_path / "dlrm.json").read_text())["runs"][0]
    check_times(run)
    assert len(run["ranks"]) == 2
    assert run["losses"] == both[1]["runs"][3]["losses"]


@pytest.mark.usefixtures("forked")
def test_a_rank_that_fails_before_its_first_step_reports_the_reason(tmp_path: Path) -> None:
    settings = Settings(config="mlperf", scale=0.002, ranks=2, memory=1 << 10, timeout_s=20)
    with pytest.raises(InvalidInput, match="memory must be at least"):
        run_ranks(settings)
    (tmp_path / "file").touch()
    with pytest.raises(ExchangeFailed, match=r"rank \d failed before its first step: .*file"):
        run_ranks(replace(settings, memory=None, store=str(tmp_path / "file")))


@pytest.mark.parametrize("backend", ["gloo", pytest.param("oneccl", marks=pytest.mark.long)])
def test_threads_run_on_their_pinned_cores(tmp_path: Path, backend: str) -> None:
    """Communication threads run on their own core, all other threads on the other cores."""
    if len(os.sched_getaffinity(0)) < 2:
        with pytest.raises(InvalidInput, match="there is only one core here"):
            cores_of(0, 1, [0], pin="apart")
        return
    program = tmp_path / "program.py"
    program.write_text(
        f"import json, sys\nfrom pathlib import Path\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from benchmarks.dlrm_scaling.rank import RankProcess, measure\nfrom benchmarks.dlrm_scaling.settings import Settings\n"
        "found = {}\n"
        "def look(step):\n"
        "    for task in Path('/proc/self/task').iterdir():\n"
        "        lines = (task / 'status').read_text().splitlines()\n"
        "        said = dict(line.split(':\\t', 1) for line in lines)\n"
        "        found[task.name] = said['Name'], said['Cpus_allowed_list'].strip()\n"
        "settings = Settings(config='mlperf', scale=0.002, pin='apart', steps=2, backend=sys.argv[2])\n"
        "result = measure(settings, RankProcess(0, 0, 1, sys.argv[1]), look)[0]\n"
        "main = found[str(__import__('os').getpid())][1]\n"
        "print(json.dumps({'main': main, 'all': list(found.values()), 'cores': result['cores']}))\n"
    )
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path / "meeting"), backend],
        env={**os.environ, "PYTHONPATH": oneccl_path()} if backend == "oneccl" else None,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    comm = str(found["cores"]["comm"][0])
    assert found["cores"]["comm"][0] not in found["cores"]["compute"]
    assert found["main"] != comm
    # Threads of oneCCL have no distinguishing name.
    carriers = [cores for name, cores in found["all"] if "gloo" in name or cores == comm]
    assert carriers
    assert set(carriers) == {comm}


@pytest.mark.parametrize(
    ("ranks", "cores", "expected"),
    [
        (2, 2, [((0,), (1,)), ((0,), (1,))]),
        (2, 4, [((0,), (2,)), ((1,), (3,))]),
        (1, 4, [((0, 1, 2), (3,))]),
        (3, 4, [((0,), (3,)), ((1,), (3,)), ((2,), (3,))]),
    ],
)
def test_cores_are_divided_between_ranks(
    ranks: int, cores: int, expected: list[tuple[tuple[int, ...], tuple[int, ...]]]
) -> None:
    found = [cores_of(rank, ranks, range(cores), pin="apart") for rank in range(ranks)]
    assert [(tuple(one.compute), tuple(one.comm)) for one in found] == expected
    assert [one.threads for one in found] == [len(compute) for compute, _ in expected]
    # `together` differs only in the core of the communication threads.
    for rank, apart in enumerate(found):
        one = cores_of(rank, ranks, range(cores), pin="together")
        assert one == replace(apart, comm=apart.compute)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config", "huge"], "--config must be one of small, large, mlperf, dcnv2, got 'huge'"),
        (["--ranks", "0"], "--ranks must be in [1, 1024], got 0"),
        (
            ["--ranks", "2,x"],
            "--ranks must be integers separated by commas, such as 2 or 1,2,4; got 'x'",
        ),
        (["--scale", "0"], "--scale must be above 0 and at most 1, got 0"),
        (["--scale", "nan"], "--scale must be above 0 and at most 1, got nan"),
        (["--scale", "0.0001", "--ranks", "4"], "4 ranks cannot share a batch of 2"),
        (["--comm", "overlap,no"], "--comm must be one of blocking, overlap, got 'no'"),
        (["--backend", "mpi"], "--backend must be one of gloo, oneccl, nccl, got 'mpi'"),
        (["--precision", "fp16"], "--precision must be one of fp32, bf16, split-bf16, got 'fp16'"),
        (["--sweep", "up"], "--sweep must be one of strong, weak, got 'up'"),
        (["--pin", "here"], "--pin must be one of off, apart, together, got 'here'"),
        (
            ["--placement", "here"],
            "--placement must be one of rows, pooled, whole, auto, got 'here'",
        ),
        (["--steps", "0"], "--steps must be in [1, 100000], got 0"),
        (["--memory", "much"], "--memory must be a number of bytes or a size"),
        (["--backend", "oneccl"], "oneCCL is not installed: pip install 'rowmill[oneccl]'"),
        (
            ["--backend", "nccl", "--ranks", "99"],
            "--backend nccl needs one GPU per rank, but this machine has 99 ranks",
        ),
    ],
)
def test_invalid_input_is_a_one_line_error(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    given = ["--config", "mlperf", "--out", str(tmp_path), *arguments]
    assert main(given) in (1, 2)
    assert message in one_line(capsys)


@pytest.mark.parametrize(
    ("store", "message"),
    [
        ("file", "file is a file; give a folder"),
        ("work", "work is not empty, and rows of other runs would distort the result: give a new"),
    ],
)
def test_stores_need_a_new_or_empty_folder(
    store: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "thesis.tex").touch()
    given = [*TINY, "--out", str(tmp_path / "out")]
    assert main([*given, "--store", str(tmp_path / store)]) == 2
    assert message in one_line(capsys)


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    error = capsys.readouterr().err
    assert error.startswith("dlrm: ")
    assert error.count("\n") == 1
    return error


def test_torchrun_allows_one_run_with_its_number_of_ranks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (
        ("RANK", "0"),
        ("WORLD_SIZE", "2"),
        ("MASTER_ADDR", "x"),
        ("MASTER_PORT", "1"),
    ):
        monkeypatch.setenv(name, value)
    given = [*TINY]
    assert main([*given, "--ranks", "3"]) == 2
    assert "--ranks is 3, but torchrun started 2" in capsys.readouterr().err
    assert main([*given, "--comm", ",".join(MODES)]) == 2
    assert "torchrun starts the ranks of one run, and this command has 2" in capsys.readouterr().err


def test_help_does_not_import_torch() -> None:
    program = (
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom benchmarks.dlrm_scaling.dlrm import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "assert 'torch' not in sys.modules, 'torch was imported'\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "--comm" in done.stdout


def a_run(ranks: int, comm: str, step_ms: float, samples: int = 8) -> dict[str, Any]:
    settings = Settings(config="mlperf", ranks=ranks, comm=comm, batch=samples)
    measured = {
        "step_ms": [step_ms, step_ms],
        "phase_ms": {"lookup": step_ms / 2, "other": step_ms / 4},
        "exposed_ms": {"rows": step_ms / 4},
        "total_ms": {"rows": step_ms / 2},
        "bytes": {},
        "rounds": {},
        "losses": [0.25],
    }
    return summary(settings, [measured] * ranks)


def test_gains_are_relative_to_the_equal_run_with_fewest_ranks() -> None:
    runs = [
        a_run(2, "overlap", 6.0),
        a_run(1, "blocking", 10.0),
        a_run(1, "overlap", 9.0),
        a_run(2, "blocking", 8.0),
    ]
    for sweep in ("strong", "weak"):
        gains = scaling(runs, sweep)
        assert gains[1:3] == [None, None]
        assert (gains[0], gains[3]) == pytest.approx((9 / 6, 10 / 8))
    assert runs[0]["losses"] == [0.5]
    assert runs[0]["exposed_ms"] == 1.5


@pytest.mark.parametrize("name", list(SHAPES))
def test_shapes_are_the_published_ones(name: str) -> None:
    shape = SHAPES[name]
    tables, rows, lookups, dim, global_batch, local_batch = {
        "small": (8, 8_000_000, 400, 64, 8192, 1024),
        "large": (64, 384_000_000, 6400, 256, 16384, 512),
        "mlperf": (26, 187_767_399, 26, 128, 16384, 2048),
        "dcnv2": (26, 187_767_399, 214, 128, 65536, 8192),
    }[name]
    assert len(shape.rows) == len(shape.lookups) == tables
    assert (sum(shape.rows), sum(shape.lookups), shape.dim) == (rows, lookups, dim)
    assert (shape.global_batch, shape.local_batch) == (global_batch, local_batch)
