"""The golden file for tests of the plan interpreter in Rust holds the results that torch computes."""

from __future__ import annotations

import json
from typing import Any

import torch

from python.tests.serve.plan_cases import GOLDEN, golden


def tensor(given: dict[str, Any]) -> torch.Tensor:
    data = bytearray.fromhex(given["data"])
    dtype = getattr(torch, given["dtype"])
    flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
    return flat.reshape(given["shape"])


def test_the_golden_file_holds_the_results_of_torch() -> None:
    recorded, now = json.loads(GOLDEN.read_text()), golden()
    assert [case["plan"] for case in recorded] == [case["plan"] for case in now]
    for old, new in zip(recorded, now, strict=True):
        assert old["inputs"] == new["inputs"]
        for name, expected in new["outputs"].items():
            given = tensor(old["outputs"][name])
            if old["exact"]:
                assert old["outputs"][name] == expected, old["plan"]
            else:  # What another machine's instruction set gives.
                torch.testing.assert_close(
                    given, tensor(expected), rtol=1e-6, atol=1e-6, equal_nan=True
                )
