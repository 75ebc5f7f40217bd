"""A knowledge-graph model of PyKEEN with entities in a store, and relations as torch parameters. Needs `pykeen`."""

import torch
from pykeen.evaluation import RankBasedEvaluator
from pykeen.models import ERModel
from pykeen.nn import Embedding
from pykeen.training import SLCWATrainingLoop
from pykeen.triples import CoreTriplesFactory

import rowmill
from rowmill.integrations.pykeen import StoredRepresentation

links = [[n, k, (n + k + 1) % 60] for n in range(60) for k in range(4)]
factory = CoreTriplesFactory(torch.tensor(links), num_entities=60, num_relations=4)
store = rowmill.open("pykeen-store", memory="64MiB")
adagrad = rowmill.optim.Adagrad(lr=0.5)  # updates the rows, in the backward pass
entities = store.table("entities", dim=64, num_rows=60, optimizer=adagrad)
stored = StoredRepresentation(60, table=entities, dtype=torch.complex64)  # 32 complex numbers each
relations = Embedding(4, shape=32, dtype=torch.complex64)
parts = {"entity_representations": stored, "relation_representations": relations}
model = ERModel(triples_factory=factory, interaction="ComplEx", loss="nssa", **parts)

loop = SLCWATrainingLoop(model=model, triples_factory=factory, automatic_memory_optimization=False)
loop.train(factory, num_epochs=20, batch_size=64, use_tqdm=False)
store.checkpoint()
found = RankBasedEvaluator().evaluate(model, factory.mapped_triples, slice_size=64, use_tqdm=False)
print(mrr := found.get_metric("mrr"))
