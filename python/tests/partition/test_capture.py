"""Capture of modules as graphs, and errors for modules that cannot be captured."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor, nn

from rowmill.errors import CannotExport, InvalidInput
from rowmill.partition.capture import capture
from rowmill.partition.operators import Kind, Operators

if TYPE_CHECKING:
    from torch.export import ExportedProgram


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.layer(x)).relu_()


def line_of(text: str) -> str:
    lines = Path(__file__).read_text().splitlines()
    (number,) = [at for at, line in enumerate(lines, 1) if line.endswith(text)]
    return f"test_capture.py:{number}"


def test_capture_uses_evaluation_mode_and_restores_the_mode() -> None:
    module = Layer()
    module.drop.eval()
    captured = capture(module, [(torch.rand(3, 4),)])
    assert module.training
    assert not module.drop.training
    names = [str(node.target) for node in captured.program.graph.nodes]
    assert not any("dropout" in name for name in names)
    # In-place operators became functional ones.
    assert "aten.relu.default" in names


def test_fixed_sizes_come_from_the_first_example() -> None:
    captured = capture(Layer(), [(torch.rand(3, 4),), (torch.rand(9, 4),)])
    (first, *_) = captured.graph.operators
    assert (first.kind, first.results) == (Kind.INPUT, {captured.inputs[0]: 3 * 4 * 4})


def test_passes_of_the_caller_run_first_and_in_order() -> None:
    seen: list[str] = []

    def first(program: ExportedProgram) -> ExportedProgram:
        seen.append("first")
        assert any("relu_" in str(node.target) for node in program.graph.nodes)
        return program

    def second(program: ExportedProgram) -> ExportedProgram:
        seen.append("second")
        return program.run_decompositions()

    captured = capture(Layer(), [(torch.rand(3, 4),)], passes=[first, second])
    assert seen == ["first", "second"]
    assert "aten.addmm.default" in [str(node.target) for node in captured.program.graph.nodes]


def test_a_pass_must_return_a_program() -> None:
    def forgets(program: ExportedProgram) -> None:
        program.run_decompositions()

    with pytest.raises(InvalidInput, match="the pass forgets returned a NoneType"):
        capture(Layer(), [(torch.rand(3, 4),)], passes=[forgets])  # pyright: ignore[reportArgumentType]


def test_an_example_of_one_row_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"shape \[1, 4\].*at least 2 rows"):
        capture(Layer(), [(torch.rand(1, 4),)])
    with pytest.raises(InvalidInput, match="examples are empty"):
        capture(Layer(), [])


def test_the_error_for_a_data_dependent_branch_names_operator_and_line() -> None:
    class Chooses(Layer):
        def forward(self, x: Tensor) -> Tensor:
            if x.sum() > 0:  # here
                return self.layer(x)
            return x

    with pytest.raises(CannotExport, match=re.escape(line_of("if x.sum() > 0:  # here"))) as error:
        capture(Chooses(), [(torch.rand(3, 4),)])
    assert "`if x.sum() > 0:  # here`" in str(error.value)


def test_the_error_for_a_data_dependent_size_names_operator_and_line() -> None:
    class Selects(Layer):
        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x[x[:, 0] > 0])  # selects

    with pytest.raises(CannotExport, match=re.escape(line_of("# selects"))) as error:
        capture(Selects(), [(torch.rand(3, 4),)])
    assert "depends on data" in str(error.value)


def test_the_error_for_a_changed_buffer_names_it_and_the_line() -> None:
    class Counts(Layer):
        calls: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(4))

        def forward(self, x: Tensor) -> Tensor:
            self.calls.add_(x.sum(0))  # counts
            return self.layer(x) + self.calls

    with pytest.raises(CannotExport, match=re.escape(line_of("# counts"))) as error:
        capture(Counts(), [(torch.rand(3, 4),)])
    assert "'calls'" in str(error.value)


def test_a_batch_size_used_as_a_constant_is_refused() -> None:
    class Fixed(Layer):
        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) + torch.zeros(int(x.shape[0]), 4)

    with pytest.raises(CannotExport, match=r"fixed sizes \{'x': 3\}.*x.shape\[0\]"):
        capture(Fixed(), [(torch.rand(3, 4),)])


def test_the_caller_registers_seeds_and_cpu_only_operators() -> None:
    operators = Operators.with_registered(seeds=["aten::relu"], cpu_only=["aten::linear"])
    captured = capture(Layer(), [(torch.rand(3, 4),)], operators=operators)
    kinds = {operator.name: operator.kind for operator in captured.graph.operators}
    assert kinds["linear"] is Kind.CPU_ONLY
    assert kinds["relu"] is Kind.SEED
