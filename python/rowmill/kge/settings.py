"""Settings of knowledge graphs: a section of the file that `rowmill.config` reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from rowmill.config.setting import BELOW_ONE, FLOAT_MAX, Setting


@dataclass(frozen=True, kw_only=True)
class KgeConfig:
    """Section `[kge]`: how a knowledge graph is learned."""

    objective: Annotated[
        Literal["1vsall", "kvsall", "negatives"],
        Setting(
            "what a query's answer is compared with: all entities, all with every answer of the query at once, or some"
        ),
    ] = "negatives"
    loss: Annotated[
        Literal["softmax", "logistic", "self_adversarial"], Setting("loss of a query's scores")
    ] = "softmax"
    negatives: Annotated[
        int, Setting("negatives: entities drawn for each batch", least=0, most=1 << 24)
    ] = 256
    in_batch: Annotated[
        bool, Setting("negatives: compare with the other entities of the batch too")
    ] = False
    reciprocal: Annotated[
        bool, Setting("ask for heads as tails of relations of their own, twice as many")
    ] = True
    regularizer: Annotated[
        Literal["none", "l2", "n3"], Setting("penalty on the rows of a batch's triples")
    ] = "none"
    entity_penalty: Annotated[
        float, Setting("its weight for entities", least=0, most=FLOAT_MAX)
    ] = 0.0
    relation_penalty: Annotated[
        float, Setting("its weight for relations", least=0, most=FLOAT_MAX)
    ] = 0.0
    entity_dropout: Annotated[
        float, Setting("share of the weights of entities left out", least=0, most=BELOW_ONE)
    ] = 0.0
    relation_dropout: Annotated[
        float, Setting("share of the weights of relations left out", least=0, most=BELOW_ONE)
    ] = 0.0
    smoothing: Annotated[
        float,
        Setting("softmax: share of the answers given to all candidates", least=0, most=BELOW_ONE),
    ] = 0.0
    temperature: Annotated[
        float, Setting("self_adversarial: how much harder wrong ones count", least=0, most=1e6)
    ] = 1.0
    margin: Annotated[
        float, Setting("transe, rotate: added to every score", least=0, most=FLOAT_MAX)
    ] = 0.0
    norm: Annotated[int, Setting("transe: of the distance", least=1, most=2)] = 1
    unseen: Annotated[
        Literal["error", "rank"],
        Setting(
            "entities that valid or test have and train has not: an error, or rows never learned"
        ),
    ] = "error"
    partitions: Annotated[
        int, Setting("ranges of entities whose triples are trained together", least=1, most=4096)
    ] = 1
    buffer_partitions: Annotated[
        int, Setting("how many of them are in use at a time", least=2, most=4096)
    ] = 4
    validate_every: Annotated[
        int, Setting("epochs between figures of the valid part; 0: only at the end", least=0)
    ] = 0
