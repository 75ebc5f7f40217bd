"""The teacher, the hidden model that draws the clicks of a generated log, and its metrics on these clicks."""

import math
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rowmill.ctr.data.features import mix64

CLICK_RATE = 0.25
_ID_STD = 1.8
_DENSE_STD = 0.6
_PAIR_STD = 0.8
_PAIRS_MAX = 6
# Hidden logits of ids outside the popular head, as a share of those inside.
_RARE_SHARE = 0.3
_BINS = 1 << 16
_LOGIT_MAX = 16.0


class Teacher:
    """Hidden logits: a sum over ids, counts and some pairs of features."""

    def __init__(self, *, seed: int, tables: int, dense: int) -> None:
        stream = np.random.default_rng([seed, 0x7EAC])
        self._salts = stream.integers(0, 2**63, size=tables, dtype=np.uint64)
        # As in real logs, features have unequal influence: scales fall geometrically over a random order of the tables.
        falloff = 0.9 ** stream.permutation(tables)
        self._id_scale = (_ID_STD * falloff / np.linalg.norm(falloff)).astype(np.float32)
        weights = stream.standard_normal(dense)
        self._dense_weights = (_DENSE_STD * weights / np.linalg.norm(weights)).astype(np.float32)
        strongest = np.argsort(-self._id_scale)[: 2 * _PAIRS_MAX]
        self._pairs = list(pairwise(strongest.tolist()))[::2]
        self._pair_scale = np.float32(_PAIR_STD / math.sqrt(max(len(self._pairs), 1)))

    def logits(
        self,
        logs: NDArray[np.float32],
        ids: list[NDArray[np.int64]],
        popular: list[NDArray[np.bool_]],
    ) -> NDArray[np.float32]:
        """Logits ``[n]`` before the bias.

        Rare ids have smaller logits than popular ones. A model cannot learn an id from a few rows, so a teacher that
        depends mostly on such ids would not separate good models from bad ones.
        """
        logits = logs @ self._dense_weights
        paired = {table for pair in self._pairs for table in pair}
        second: dict[int, NDArray[np.float32]] = {}
        for table, column in enumerate(ids):
            words = mix64(column.view(np.uint64) ^ self._salts[table]).view(np.int32).reshape(-1, 2)
            weight = np.where(popular[table], np.float32(1), np.float32(_RARE_SHARE))
            logits += _unit(words[:, 0]) * weight * self._id_scale[table]
            if table in paired:
                second[table] = _unit(words[:, 1]) * weight
        for left, right in self._pairs:
            logits += second[left] * second[right] * self._pair_scale
        return logits

    @staticmethod
    def bias_for(logits: NDArray[np.float32]) -> float:
        """The bias at which the mean click probability is ``CLICK_RATE``, by bisection."""
        low, high = -20.0, 20.0
        for _ in range(50):
            middle = (low + high) / 2
            rate = float(np.mean(1.0 / (1.0 + np.exp(-(logits.astype(np.float64) + middle)))))
            low, high = (middle, high) if rate < CLICK_RATE else (low, middle)
        return (low + high) / 2


def _unit(word: NDArray[np.int32]) -> NDArray[np.float32]:
    """Map hash words to uniform numbers of mean 0 and variance 1."""
    return word.astype(np.float32) * np.float32(math.sqrt(3.0) / 2**31)


class TeacherScore:
    """AUC, logloss and normalized entropy of true probabilities against drawn labels, in constant memory.

    The AUC counts logits in the same of 65,536 bins as ties; its error is below 1e-5.
    """

    def __init__(self) -> None:
        self._clicks = np.zeros(_BINS)
        self._others = np.zeros(_BINS)
        self._loss = 0.0

    def add(self, logits: NDArray[np.float32], labels: NDArray[np.int8]) -> None:
        """Add rows."""
        place = (
            (np.clip(logits, -_LOGIT_MAX, _LOGIT_MAX) + _LOGIT_MAX)
            * ((_BINS - 1) / (2 * _LOGIT_MAX))
        ).astype(int)
        clicked = labels == 1
        self._clicks += np.bincount(place[clicked], minlength=_BINS)
        self._others += np.bincount(place[~clicked], minlength=_BINS)
        wide = logits.astype(np.float64)
        self._loss += float(np.sum(np.logaddexp(0.0, np.where(clicked, -wide, wide))))

    def result(self) -> dict[str, float | None]:
        """AUC, logloss and normalized entropy; all None if one class is absent."""
        clicks, others = self._clicks.sum(), self._others.sum()
        if clicks == 0 or others == 0:
            return {"auc": None, "logloss": None, "ne": None}
        below = np.cumsum(self._others) - self._others / 2
        rate = clicks / (clicks + others)
        entropy = -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate))
        logloss = self._loss / (clicks + others)
        return {
            "auc": float(np.sum(self._clicks * below) / (clicks * others)),
            "logloss": logloss,
            "ne": logloss / entropy,
        }
