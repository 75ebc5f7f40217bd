"""Calls of exported programs without the checks and lookups of their modules."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from rowmill.serve import checked_program
from rowmill.serve.checked_program import CheckedProgram


class Model(nn.Module):
    """A layer that is used twice, a buffer, a constant, a branch by value, and two outputs."""

    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.register_buffer("shift", torch.rand(4))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x = self.layers(self.layers(x)) + self.shift + torch.tensor(float("inf")).reciprocal()
        y = torch.cond(y.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (y,))
        return x, x * y


def _program() -> GraphModule:
    rows = {0: torch.export.Dim("rows", min=1, max=100)}
    exported = torch.export.export(
        Model().eval(), (torch.rand(8, 4), torch.rand(8, 4)), dynamic_shapes=(rows, rows)
    )
    program = exported.module(check_guards=False)
    assert isinstance(program, GraphModule)
    return program


@torch.inference_mode()
def test_outputs_have_the_bits_of_the_module() -> None:
    program = _program()
    checked = CheckedProgram(program)
    for rows in (1, 2, 100, 1, 2):
        for sign in (1, -1):
            inputs = torch.rand(rows, 4), sign * torch.rand(rows, 4)
            for found, expected in zip(checked(*inputs), program(*inputs), strict=True):
                assert torch.equal(found, expected)


_X = torch.linspace(-2, 2, 12).reshape(3, 4)
_ARGUMENTS = {
    "add.Tensor": (_X, _X),
    "mul.Tensor": (_X, 3),
    "cat": ([_X, _X], 1),
    "relu": (_X,),
    "relu_": (_X,),
    "sigmoid": (_X,),
    "squeeze.dim": (_X[:, :1], 1),
    "unsqueeze": (_X, 1),
    "view": (_X, [-1, 2]),
    "sym_size.int": (_X, 1),
    "interaction": (_X, torch.rand(3, 5, 4)),
}


@torch.inference_mode()
def test_functions_have_the_results_of_their_operators() -> None:
    functions = checked_program._FUNCTIONS
    names = {
        str(operator).split(".", 1)[1].removesuffix(".default"): operator for operator in functions
    }
    assert names.keys() == _ARGUMENTS.keys()
    for name, operator in names.items():
        found, expected = (
            call(
                *(
                    value.clone() if isinstance(value, Tensor) else value
                    for value in _ARGUMENTS[name]
                )
            )
            for call in (functions[operator], operator)
        )
        if isinstance(expected, Tensor):
            assert torch.equal(found, expected), name
            assert found.stride() == expected.stride(), name
        else:
            assert found == expected, name


@torch.inference_mode()
def test_wrong_shapes_are_refused_every_time() -> None:
    program = CheckedProgram(_program())
    program(torch.rand(2, 4), torch.rand(2, 4))
    for wrong in ((101, 101), (2, 3), (3, 2)):
        for _ in range(2):
            with pytest.raises((RuntimeError, AssertionError)):
                program(*(torch.rand(rows, 4) for rows in wrong))
    assert [output.shape for output in program(torch.rand(2, 4), torch.rand(2, 4))] == [(2, 4)] * 2


@torch.inference_mode()
def test_shapes_are_forgotten_when_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked_program, "SHAPES_MAX", 3)
    program = CheckedProgram(_program())
    for rows in (*range(1, 9), *range(1, 9)):
        x = torch.rand(rows, 4)
        assert len(program(x, x)[0]) == rows
        assert len(program._checked) <= 3
