"""The dense half compiled by AOTInductor: code for one version of torch and one kind of processor, without weights.

A loaded package reads its weights where the worker has them, so `weights.safetensors` stays their only copy.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rowmill.errors import CannotExport

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torch.export import ExportedProgram

PACKAGE = "dense.aoti.pt2"

_TOLERANCE = 2.0**-7
"""Wrong code is off by more, and rounding in bfloat16 by less."""
_OPTIONS = {
    "aot_inductor.package_constants_in_so": False,
    # Otherwise small weights become numbers in the code, which a later version of the weights could not replace.
    "always_keep_tensor_constants": True,
    # Otherwise the code starts as many threads as the exporting process has.
    "cpp.dynamic_threads": True,
}
# By default g++ uses every instruction of this very processor.
_ARCHITECTURES = {"AVX2": "x86-64-v3", "AVX512": "x86-64-v4"}


class CannotCompile(Exception):
    """AOTInductor has no package for a program; the message is the reason."""


def require_compiler() -> None:
    """Raise `CannotExport` where the C++ compiler is absent that AOTInductor runs."""
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise CannotExport(
            f"compile=True needs the C++ compiler {compiler!r}, which is not installed: install g++, set CXX to another "
            "compiler, or export without compile"
        )


def compile_program(
    program: ExportedProgram,
    path: Path,
    weights: Mapping[str, Tensor],
    inputs: Sequence[Tensor],
    expected: Sequence[Tensor],
) -> None:
    """Write the package of a program, after it has answered once.

    Args:
        program: The program.
        path: Where the package will be.
        weights: All weights of the bundle by name, including those of the program.
        inputs: Tensors that the program takes.
        expected: Its outputs for these inputs.

    Raises:
        CannotCompile: The compiler fails, or the compiled program has other answers; no file is left.
    """
    architecture = _ARCHITECTURES.get(torch.backends.cpu.get_cpu_capability())
    options = _OPTIONS | ({} if architecture is None else {"cpp.march": architecture})
    try:
        compiler: Any = import_module("torch._inductor")
        compiler.aoti_compile_and_package(program, package_path=str(path), inductor_configs=options)
        with torch.inference_mode():
            answers = load_compiled(path, weights)(*inputs)
    except Exception as error:
        path.unlink(missing_ok=True)
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise CannotCompile(lines[0]) from error
    for answer, value in zip(answers, expected, strict=True):
        if not torch.allclose(answer, value, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True):
            path.unlink()
            worst = float((answer.double() - value.double()).abs().max())
            raise CannotCompile(f"its answers differ by {worst:.3g} from those of the program")


@dataclass(frozen=True)
class CompiledProgram:
    """A loaded package, called with the inputs of its program."""

    _package: Any
    # The package has the addresses of these tensors, so they live as long.
    _weights: Mapping[str, Tensor]

    def __call__(self, *inputs: Tensor) -> Sequence[Tensor]:
        """The outputs of the program."""
        return self._package(*inputs)


def load_compiled(path: Path, weights: Mapping[str, Tensor], runs: int = 1) -> CompiledProgram:
    """A package with weights by name, which it uses in place. At most `runs` calls run at once; more wait."""
    loader: Any = import_module("torch._inductor.package")
    package = loader.load_package(str(path), num_runners=runs)
    used = {name: weights[name] for name in package.get_constant_fqns()}
    package.load_constants(used, check_full_update=True, user_managed=True)
    return CompiledProgram(package, used)


def compiled_for() -> dict[str, Any]:
    """The torch version and instruction sets that a package compiled here needs, for the manifest of its bundle."""
    return {"torch": torch.__version__, "instruction_sets": sorted(_instruction_sets())}


def misfit(compiled: Mapping[str, Any]) -> str | None:
    """Why a package does not fit this process, or None; takes what `compiled_for` gave."""
    if compiled["torch"] != torch.__version__:
        return f"it is for torch {compiled['torch']}, and this is {torch.__version__}"
    lacking = sorted(set(compiled["instruction_sets"]) - _instruction_sets())
    return f"this processor has no {', '.join(lacking)}" if lacking else None


def _instruction_sets() -> set[str]:
    """What AOTInductor may use here, as far as torch's own kernels may (`ATEN_CPU_CAPABILITY` lowers it)."""
    capability = torch.backends.cpu.get_cpu_capability()
    isa: Any = import_module("torch._inductor.cpu_vec_isa")
    names = {name.upper() for name in isa.x86_isa_checker()}
    if capability != "AVX512":
        names = {name for name in names if name == capability}
    return names | {capability}
