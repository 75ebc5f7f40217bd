"""The dense half compiled by AOTInductor: answers, weights apart from code, and packages that do not fit."""

from __future__ import annotations

import json
import os
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import rowmill
from python.tests.partition.models import CLICK_MODELS, Model, bags, click_model
from python.tests.serve.workers import worker
from rowmill.errors import CannotExport
from rowmill.partition.capture import capture
from rowmill.partition.compiled import PACKAGE, compiled_for, load_compiled, misfit
from rowmill.partition.export import export
from rowmill.partition.placement import place
from rowmill.partition.split import Split, split

if TYPE_CHECKING:
    from pathlib import Path

_ANY = ("--http-port", "0", "--metrics-port", "0", "--wire-memory", "32MiB")
# On a busy machine the compiler of C++ takes minutes.
_compiles = pytest.mark.timeout(1500)


def parts_of(model: Model) -> Split:
    call = model.call(5)
    captured = capture(model.module, [call])
    return split(captured, place(captured.graph), call)


def answers_alike(model: Model, folder: Path) -> None:
    """The package answers as the program, for batches it was not traced with."""
    parts = parts_of(model)
    assert parts.dense is not None
    weights = safetensors.torch.load_file(folder / "weights.safetensors")
    compiled = load_compiled(folder / PACKAGE, weights)
    for rows in (1, 2, 9, 300):
        call = model.call(rows)
        values = parts.values(call)
        with torch.inference_mode():
            found = compiled(*(values[name].contiguous() for name in parts.dense.inputs))
        for name, answer in zip(parts.dense.outputs, found, strict=True):
            torch.testing.assert_close(answer, values[name], rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Path]:
    model = click_model("dlrm", bags)
    folder = tmp_path_factory.mktemp("compiled") / "dlrm"
    assert export(model.module, [model.call(5)], out=folder, compile=True) == ()
    return model, folder


@_compiles
@pytest.mark.slow
def test_a_compiled_dense_half_answers_like_the_module(compiled: tuple[Model, Path]) -> None:
    model, folder = compiled
    assert json.loads((folder / "manifest.json").read_text())["compiled"] == compiled_for()
    assert (folder / "dense.pt2").exists(), "the program stays"
    answers_alike(model, folder)


@_compiles
@pytest.mark.slow
def test_a_later_version_of_a_compiled_half_is_weights_alone(
    compiled: tuple[Model, Path],
) -> None:
    model, folder = compiled
    parts = parts_of(model)
    assert parts.dense is not None
    weights = safetensors.torch.load_file(folder / "weights.safetensors")
    later = {name: value * 0.5 for name, value in weights.items()}
    values = parts.values(model.call(4))
    inputs = [values[name].contiguous() for name in parts.dense.inputs]
    program = parts.dense.program
    for name in program.state_dict:
        program.state_dict[name] = nn.Parameter(later[name], requires_grad=False)
    with torch.inference_mode():
        (expected,) = program.module(check_guards=False)(*inputs)
        (answer,) = load_compiled(folder / PACKAGE, later)(*inputs)
        (before,) = load_compiled(folder / PACKAGE, weights)(*inputs)
    torch.testing.assert_close(answer, expected, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(before, expected, rtol=1e-4, atol=1e-4)


@_compiles
@pytest.mark.slow
@pytest.mark.parametrize("capability", [None, "default"])
def test_a_worker_says_which_half_it_runs(
    capability: str | None, compiled: tuple[Model, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's own setting takes the instruction sets from a worker that the package was compiled for."""
    if torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        pytest.skip("this processor has no instruction set to take away")
    _, folder = compiled
    if capability is not None:
        monkeypatch.setitem(os.environ, "ATEN_CPU_CAPABILITY", capability)
    with worker(folder, *_ANY) as found:  # It has answered the example of the bundle.
        address = f"http://{found.addresses['http']}/v2/models/dlrm/config"
        with urllib.request.urlopen(address) as page:
            said: Any = json.loads(page.read())["parameters"]["dense_half"]["string_value"]
        assert found.end() == 0
    expected = "compiled by AOTInductor"
    if capability is not None:
        lacking = torch.backends.cpu.get_cpu_capability()
        expected = "program, because the compiled one does not fit: this processor has no "
        assert lacking in said
    assert said.startswith(expected)
    messages = [json.loads(line)["message"] for line in found.log if line.startswith("{")]
    assert f"dense half: {said}" in messages


@_compiles
@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in CLICK_MODELS if name != "dlrm"])
def test_every_click_model_compiles(name: str, tmp_path: Path) -> None:
    model = click_model(name, bags)
    assert export(model.module, [model.call(5)], out=tmp_path / name, compile=True) == ()
    answers_alike(model, tmp_path / name)


def test_a_package_fits_its_torch_and_its_processor() -> None:
    here = compiled_for()
    assert misfit(here) is None
    other = {**here, "torch": "2.8.0"}
    assert misfit(other) == f"it is for torch 2.8.0, and this is {torch.__version__}"
    more = {**here, "instruction_sets": [*here["instruction_sets"], "AVX1024"]}
    assert misfit(more) == "this processor has no AVX1024"


def test_a_compiler_must_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "g++-of-another-machine")
    with pytest.raises(CannotExport, match=r"'g\+\+-of-another-machine', which is not installed"):
        rowmill.export(
            nn.Linear(4, 1), [(torch.rand(3, 4),)], out=tmp_path / "bundle", compile=True
        )
    assert not (tmp_path / "bundle").exists()


def test_a_half_that_does_not_compile_runs_as_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no compiler here")

    monkeypatch.setattr("torch._inductor.aoti_compile_and_package", fails)
    layer = nn.Linear(4, 1)
    (said,) = export(layer, [(torch.rand(3, 4),)], out=tmp_path / "bundle", compile=True)
    assert said == "the dense half is not compiled, its program runs instead: no compiler here"
    inputs: dict[str, Tensor] = {"input": torch.rand(2, 4)}
    with rowmill.partition.Bundle.open(tmp_path / "bundle") as bundle:
        assert "compiled" not in bundle.manifest
        torch.testing.assert_close(bundle.run(inputs)[0], layer(inputs["input"]))
