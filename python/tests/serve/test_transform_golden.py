"""The golden file, with which a Rust test checks the transform, holds the results of `apply_transform`, bit for bit."""

from __future__ import annotations

import json

import numpy as np

from python.tests.serve.transform_cases import GOLDEN, golden
from rowmill.ctr.data.features import log_counts


def test_the_golden_file_holds_the_results_of_apply_transform() -> None:
    assert json.loads(GOLDEN.read_text()) == golden()


def test_the_golden_file_covers_all_datatypes_and_ways_to_ids() -> None:
    cases = json.loads(GOLDEN.read_text())
    kinds = {column["datatype"] for case in cases for column in case["columns"]}
    assert kinds == {"FP32", "FP64", "INT64", "INT32", "INT8", "BYTES"}
    ways = {(case["transform"]["way"]["kind"], case["transform"]["id_base"]) for case in cases}
    expected = {(kind, base) for kind in ("full", "hash", "vocabulary") for base in (10, 16)}
    assert ways == expected | {("numbered_hash", 10)}


def test_logarithms_do_not_depend_on_how_many_are_computed() -> None:
    """A trainer computes blocks with vector instructions, a server one number at a time."""
    counts = np.random.default_rng(0).integers(0, 2**31, 4099).astype(np.float32)
    one_by_one = np.concatenate([log_counts(counts[at : at + 1]) for at in range(len(counts))])
    np.testing.assert_array_equal(log_counts(counts), one_by_one)
