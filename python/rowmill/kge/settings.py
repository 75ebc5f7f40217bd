"""Settings of knowledge-graph training: the section `[kge]` of the settings file that `rowmill.config` reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from rowmill.config.setting import BELOW_ONE, FLOAT_MAX, Setting


@dataclass(frozen=True, kw_only=True)
class KgeConfig:
    """Section `[kge]`: settings of knowledge-graph training."""

    objective: Annotated[
        Literal["1vsall", "kvsall", "negatives"],
        Setting(
            "candidates of a query: 1vsall = all entities, one answer; kvsall = all entities, all answers of the query "
            "together; negatives = drawn entities"
        ),
    ] = "negatives"
    loss: Annotated[
        Literal["softmax", "logistic", "self_adversarial"],
        Setting("loss over the scores of a query"),
    ] = "softmax"
    negatives: Annotated[
        int, Setting("objective negatives: entities drawn per batch", least=0, most=1 << 24)
    ] = 256
    in_batch: Annotated[
        bool,
        Setting("objective negatives: the other entities of the batch are candidates too"),
    ] = False
    reciprocal: Annotated[
        bool,
        Setting("predict heads as tails of reciprocal relations, which doubles the relations"),
    ] = True
    regularizer: Annotated[
        Literal["none", "l2", "n3"], Setting("penalty on the rows of the triples of a batch")
    ] = "none"
    entity_penalty: Annotated[
        float, Setting("weight of the regularizer for entities", least=0, most=FLOAT_MAX)
    ] = 0.0
    relation_penalty: Annotated[
        float, Setting("weight of the regularizer for relations", least=0, most=FLOAT_MAX)
    ] = 0.0
    entity_dropout: Annotated[
        float, Setting("dropout rate of entity weights", least=0, most=BELOW_ONE)
    ] = 0.0
    relation_dropout: Annotated[
        float, Setting("dropout rate of relation weights", least=0, most=BELOW_ONE)
    ] = 0.0
    smoothing: Annotated[
        float,
        Setting(
            "loss softmax: label smoothing, the share of the target spread over all candidates",
            least=0,
            most=BELOW_ONE,
        ),
    ] = 0.0
    temperature: Annotated[
        float,
        Setting(
            "loss self_adversarial: temperature; larger values give hard negatives more weight",
            least=0,
            most=1e6,
        ),
    ] = 1.0
    margin: Annotated[
        float, Setting("transe, rotate: added to every score", least=0, most=FLOAT_MAX)
    ] = 0.0
    norm: Annotated[int, Setting("transe: distance in the L1 or L2 norm", least=1, most=2)] = 1
    unseen: Annotated[
        Literal["error", "rank"],
        Setting(
            "entities in valid.tsv or test.tsv that train.tsv lacks: error = stop, rank = rank them untrained"
        ),
    ] = "error"
    partitions: Annotated[
        int,
        Setting(
            "number of entity ranges; triples are trained by pairs of them", least=1, most=4096
        ),
    ] = 1
    buffer_partitions: Annotated[
        int, Setting("number of partitions in use at a time", least=2, most=4096)
    ] = 4
    validate_every: Annotated[
        int, Setting("epochs between evaluations on valid.tsv; 0: only at the end", least=0)
    ] = 0
