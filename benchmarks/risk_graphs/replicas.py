"""One of two processes that train the same model with all rows in memory, each holding half of the rows.

    replicas.py RANK RENDEZVOUS GRAPH DIM BATCH SEED

This is distributed data parallel training. Each process has its own batches, requests rows from their owners, and returns
the gradients (all-to-all over gloo); owners sum them and update rows with Adagrad. Dense layers use torch's
DistributedDataParallel. Each line `STEPS` on standard input trains this number of steps; the answer is a JSON object.
"""

import json
import os
import sys
import time
from itertools import islice
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import common
from benchmarks.risk_graphs.shape import CLASSES, DENSE_RATE, FANOUTS, HIDDEN, RATE
from rowmill.gnn import GraphSAGE, NeighbourSampler, NodeBatch, NodeBatches
from rowmill.gnn.node_graph import read_node_graph

WORLD = 2
_EPS = 1e-10


class SharedRows:
    """Rows of all nodes, sharded by node number modulo the number of ranks, with Adagrad."""

    def __init__(self, nodes: int, dim: int) -> None:
        count = -(-nodes // WORLD)
        self.weights = torch.empty(count, dim).uniform_(-0.01, 0.01)
        self.squares = torch.zeros(count, dim)

    def get(self, nodes: Tensor) -> tuple[Tensor, Tensor, Tensor, list[int], list[int]]:
        """Fetch rows of distinct nodes; returns rows, the order by owner, positions at the owner, and counts."""
        owners = nodes % WORLD
        order = torch.argsort(owners, stable=True)
        given = torch.bincount(owners, minlength=WORLD)
        taken = torch.empty_like(given)
        dist.all_to_all_single(taken, given)
        counts, others = list(map(int, given)), list(map(int, taken))
        places = nodes.new_empty(sum(others))
        dist.all_to_all_single(places, nodes[order] // WORLD, others, counts)
        rows = torch.empty(len(nodes), self.weights.shape[1])
        dist.all_to_all_single(rows, self.weights[places], counts, others)
        return rows, order, places, counts, others

    def update(
        self, gradients: Tensor, places: Tensor, counts: list[int], others: list[int]
    ) -> None:
        """Send gradients to the owners, which update each row once."""
        received = torch.empty(len(places), gradients.shape[1])
        dist.all_to_all_single(received, gradients, others, counts)
        distinct, inverse = (
            torch.from_numpy(found) for found in np.unique(places.numpy(), return_inverse=True)
        )
        summed = torch.zeros(len(distinct), gradients.shape[1]).index_add_(0, inverse, received)
        squares = self.squares[distinct].addcmul_(summed, summed)
        self.squares[distinct] = squares
        self.weights[distinct] -= RATE * summed / squares.sqrt().add_(_EPS)


def train_step(
    model: DistributedDataParallel, dense: torch.optim.Optimizer, rows: SharedRows, batch: NodeBatch
) -> int:
    """Train on one batch; returns its number of nodes."""
    got, order, places, counts, others = rows.get(batch.nodes)
    vectors = torch.empty_like(got)
    vectors[order] = got
    vectors.requires_grad_()
    dense.zero_grad()
    cross_entropy(model(vectors, batch.blocks), batch.labels).backward()
    dense.step()
    assert vectors.grad is not None
    rows.update(vectors.grad[order], places, counts, others)
    return len(batch)


def main() -> None:
    """Process the lines of standard input."""
    rank, rendezvous, path, dim, batch, seed = sys.argv[1:]
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(rank) % len(cores)]})
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=int(rank), world_size=WORLD
    )
    torch.manual_seed(int(seed))
    graph = read_node_graph(Path(path), isolated="keep")
    model = DistributedDataParallel(GraphSAGE(int(dim), HIDDEN, CLASSES, layers=2, dropout=0.5))
    dense = torch.optim.Adam(model.parameters(), lr=DENSE_RATE)
    rows = SharedRows(graph.nodes, int(dim))
    mine = graph.split(0, train_per_class=1, valid_per_class=1).train[int(rank) :: WORLD]
    sampler = NeighbourSampler(graph.indptr, graph.indices, fanouts=FANOUTS, seed=int(seed))
    batches = NodeBatches(sampler, mine, graph.labels, batch=int(batch), seed=int(seed))
    steps = batches.epoch(0)
    for line in sys.stdin:
        dist.barrier()
        cpu, begin, done = common.cpu_s(), time.perf_counter(), 0
        for chosen in islice(steps, int(line)):
            done += train_step(model, dense, rows, chosen)
        dist.barrier()
        cell = {"units": done, "wall_s": time.perf_counter() - begin, "cpu_s": common.cpu_s() - cpu}
        print(json.dumps(cell | {"resident_bytes": common.resident_bytes()}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
