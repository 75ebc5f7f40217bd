"""Two backends of torch.distributed with two processes each: gloo, which validates the cases, and our oneCCL backend.

oneCCL is installed from a lock file into a separate folder (`tools/locked.py`).

What could break: a collective returns wrong bytes for some type or shape, or silently bypasses libccl; memory is freed while
it is sent; a failure is not reported; a wait never ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from python.tests.distributed.collectives import CASES, ONLY, SIZE
from python.tests.warm import warm_python
from tools.locked import locked_folder, with_folder

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
CASES_OF = [
    (backend, case.__name__) for backend in ("gloo", "oneccl") for case in (*ONLY[backend], *CASES)
]

RUNS = {
    "allreduce": "allreduce",
    "broadcast": "broadcast",
    "allgather": "allgather",
    "reduce_scatter": "reduce_scatter",
    "all_to_all": "all_to_all",
    "barrier": "barrier",
    "in_flight": "allreduce",
    "futures": "allreduce",
    "objects": "allgather",
    "groups": "allreduce",
    "data_parallel": "allreduce",
    "data_parallel_bf16": "allreduce",
    "refusals": "barrier",
    "late": "connect",
}
"""Per case, the libccl function that every rank must have called."""

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]


class CasesRun(NamedTuple):
    """All cases of one backend."""

    results: list[dict[str, Any]]
    """By rank and case: the error, and how often each function of libccl was called."""
    printed: str
    """Output of all ranks."""


@pytest.fixture(scope="session")
def oneccl() -> Path:
    """The folder of oneCCL. Tests fail without it, because no other test covers the backend."""
    return locked_folder("oneccl", HERE / "oneccl/packages.lock")


def environment(folder: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": with_folder(folder), **more}


@pytest.fixture(scope="module")
def run_of(oneccl: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], CasesRun]:
    """Runs all cases of a backend, once for all tests."""

    @cache
    def run(backend: str) -> CasesRun:
        folder = tmp_path_factory.mktemp(backend)
        processes = [
            subprocess.Popen(
                [warm_python(), str(HERE / "collectives.py"), backend, str(folder), str(rank)],
                env=environment(oneccl),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(SIZE)
        ]
        said = ""
        try:
            for process in processes:
                said += process.communicate(timeout=240)[0]
        finally:
            for process in processes:
                process.kill()
        files = [folder / f"{rank}.json" for rank in range(SIZE)]
        assert all(file.exists() for file in files), said
        return CasesRun([json.loads(file.read_text()) for file in files], said)

    return run


@pytest.mark.parametrize(("backend", "case"), CASES_OF)
def test_every_case_passes_on_every_rank(
    run_of: Callable[[str], CasesRun], backend: str, case: str
) -> None:
    results, said = run_of(backend)
    for rank, result in enumerate(results):
        assert case in result, said
        assert not result[case]["error"], f"rank {rank}: {result[case]['error']}"
        if backend == "oneccl":
            assert result[case]["calls"][RUNS[case]] > 0, result[case]["calls"]


def test_ranks_of_torchrun_start_and_end_cleanly(oneccl: Path, tmp_path: Path) -> None:
    """Works without an MPI launcher, whether or not the program destroys its groups."""
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, torch, torch.distributed as dist\n"
        "dist.init_process_group('oneccl')\n"
        "ones = torch.ones(5)\n"
        "dist.all_reduce(ones, group=dist.new_group([0, 1]))\n"
        # One write per line, because both ranks share a pipe.
        "sys.stdout.write(f'found {ones.sum().item()}\\n')\n"
        "if len(sys.argv) > 1:\n"
        "    dist.destroy_process_group()\n"
        "    sys.stdout.write('left\\n')\n"
    )
    command = [warm_python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    for arguments in ([], ["leave"]):
        run = subprocess.run(
            [*command, str(program), *arguments],
            env=environment(oneccl, OMP_NUM_THREADS="1"),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert run.returncode == 0, run.stdout + run.stderr
        assert run.stdout.count("found 10.0") == SIZE
        assert run.stdout.count("left") == SIZE * len(arguments)


def alone(folder: Path, python: str, **environ: str) -> str:
    """The last line of a rank that fails to start, while the other rank never starts."""
    program = (
        "import torch.distributed as dist\n"
        f"dist.init_process_group('oneccl', init_method='file://{folder}/store', rank=0, world_size=2)"
    )
    run = subprocess.run(
        [python, "-c", program],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 1
    return run.stderr.strip().splitlines()[-1]


def test_missing_prerequisites_are_named_at_once(oneccl: Path, tmp_path: Path) -> None:
    assert (
        alone(tmp_path, sys.executable)
        == "rowmill.errors.BackendMissing: oneCCL is not installed: pip install 'rowmill[oneccl]'"
    )
    # An empty cache folder, so that the shim must be compiled.
    found = {"PYTHONPATH": with_folder(oneccl), "XDG_CACHE_HOME": str(tmp_path)}
    assert alone(tmp_path, warm_python(), **found, PATH=str(tmp_path)).endswith(
        "is compiled when first used, and there is no C++ compiler: apt install g++"
    )
    assert "does not compile" in alone(tmp_path, warm_python(), **found, CXX="false")
