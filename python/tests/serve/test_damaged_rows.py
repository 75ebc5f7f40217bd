"""Rows that a storage node cannot read, in a batch of requests to a CPU half that runs in torch."""

from __future__ import annotations

import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

import rowmill
from python.tests.nodes import serving
from python.tests.serve.test_capsules import Asked
from rowmill.nn import Feature, StackedBags
from rowmill.partition.export import export
from rowmill.serve.device import Device
from rowmill.serve.programs import ProgramThreads
from rowmill.store.node_rows import as_core, connect
from rowmill.store.store import Store

if TYPE_CHECKING:
    from concurrent.futures import Future
    from pathlib import Path

_ROWS = 20_000
_REQUESTS = 16
_WAIT_S = 60.0


class Halved(nn.Module):
    """Rows of half the ids; plans have no operator for the division."""

    def __init__(self, rows: StackedBags) -> None:
        super().__init__()
        self.rows = rows

    def forward(self, ids: Tensor) -> Tensor:
        return self.rows(torch.floor_divide(ids, 2)).squeeze(1)


def test_only_the_request_with_a_damaged_row_fails(tmp_path: Path) -> None:
    path = tmp_path / "halved"
    with rowmill.open(tmp_path / "store", memory="32MiB") as store:
        table = store.table("rows", dim=16, optimizer=rowmill.optim.SGD(lr=0.1))
        torch.manual_seed(7)
        table.put(torch.arange(_ROWS), torch.randn(_ROWS, 16))
        module = Halved(StackedBags([Feature("ids", table)]))
        assert export(module, [(torch.tensor([[1], [2], [3]]),)], out=path) != ()
        with torch.no_grad():
            answers = module(2 * torch.arange(_ROWS).reshape(-1, 1))
    # The bundle stays as it is: a worker checks its files.
    stored = tmp_path / "stored"
    shutil.copytree(path / "rows", stored)
    damage_a_block(stored)
    with (
        serving(stored, tmp_path / "node") as (url, _),
        ThreadPoolExecutor(_REQUESTS) as threads,
    ):
        node = connect(url, access=None, wait_deadline_s=_WAIT_S)
        with Store(as_core(node), url, 0) as rows:
            model = Asked(path, threads, node)
            device = Device("cpu")
            half = ProgramThreads(model.files, "cpu", model.queue, device, rows, 8 * _ROWS)

            def ask(ids: Tensor) -> Future[list[Tensor]]:
                return model.ask(2 * ids.reshape(-1, 1))

            try:
                ids = torch.arange(_ROWS)
                while len(ids) > 1:  # The half that has a damaged row.
                    first, second = ids.chunk(2)
                    ids = first if ask(first).exception(_WAIT_S) is not None else second
                requests = [torch.arange(number, number + 3) for number in range(_REQUESTS)]
                requests[5] = torch.cat([ids, requests[5]])
                alone = [ask(request).exception(_WAIT_S) for request in requests]
                with device.turn:  # The first waits here, and the others become batches.
                    futures = [ask(request) for request in requests]
                together = [future.exception(_WAIT_S) for future in futures]
                for request, future, error in zip(requests, futures, together, strict=True):
                    if error is None:
                        assert future.result()[0].equal(answers[request])
            finally:
                model.close()
                half.join()
    assert [error is None for error in together] == [error is None for error in alone]
    assert alone.count(None) > 0
    assert re.search("vectors have rows that cannot be read", str(together[5])), together[5]


def damage_a_block(rows: Path) -> None:
    """Flip a bit in the middle of the largest file."""
    path = max(
        (path for path in rows.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size
    )
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))
