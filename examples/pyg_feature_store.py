"""PyTorch Geometric's GraphSAGE over features in a store and edges in memory-mapped files. Needs `torch-geometric`.

This example uses all neighbours. To sample, use `rowmill.integrations.pyg.NeighbourSampler` (see docs/frameworks.md).
"""

import torch
from torch_geometric.data import EdgeAttr
from torch_geometric.nn import GraphSAGE
from torch_geometric.utils import k_hop_subgraph

import rowmill
from rowmill.integrations.pyg import StoredFeatures, StoredGraph

label = torch.arange(300) % 3  # what the neighbours of a node have in common
targets = torch.randint(300, (1800,))
sources = torch.randint(100, (1800,)) * 3 + label[targets]
features, graph = StoredFeatures(rowmill.open("store", memory="64MiB")), StoredGraph("graph")
features["paper", "x", None] = torch.eye(3)[label] + torch.randn(300, 3)
cites = EdgeAttr(("paper", "cites", "paper"), "coo", size=(300, 300))
graph[cites] = sources, targets
model = GraphSAGE(3, 16, num_layers=2, out_channels=3)
dense = torch.optim.Adam(model.parameters(), lr=0.02)
for seeds in torch.randperm(300).split(60) * 10:
    nodes, near, at, _ = k_hop_subgraph(seeds, 2, torch.stack(graph[cites]), relabel_nodes=True)
    out = model(features["paper", "x", nodes], near)[at]  # reads the rows of these nodes alone
    dense.zero_grad()
    torch.nn.functional.cross_entropy(out, label[seeds]).backward()
    dense.step()
print(right := (out.argmax(dim=1) == label[seeds]).float().mean())
