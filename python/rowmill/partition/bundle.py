"""A bundle: a folder with both halves of a model, its weights, its rows, and requests with their answers.

| file | holds |
|---|---|
| `manifest.json` | format, torch version, instruction set, rule, what a compiled half needs, sha256 of every other file |
| `signature.json` | inputs (`per`: `user` once per request, `item` per candidate), outputs, what crosses and what comes back |
| `transform.json` | how raw columns become inputs (`rowmill.partition.transform`); of runs of `rowmill train` |
| `cpu.json` or `cpu.pt2` | the CPU half as a plan, or as a torch program where a plan cannot hold it |
| `post.json` or `post.pt2` | the same, of what follows the reply |
| `dense.pt2` | the dense half without its weights |
| `dense.portable.pt2` | the same without operators of rowmill, for GPUs |
| `dense.aoti.pt2` | the same compiled by AOTInductor, without weights |
| `weights.safetensors` | the weights of all halves by name |
| `examples.safetensors` | requests and their answers |
| `rows/` | a store with the rows |
| `report.html` | both halves for people |

A file that a bundle does not need is absent.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import torch
from torch import Tensor, nn

import rowmill
from rowmill._extras import extra
from rowmill._torch import torch_since
from rowmill.errors import InvalidInput
from rowmill.ops.lookup import lookup
from rowmill.partition.manifest import FORMAT, checked_manifest, checksums
from rowmill.partition.named_lookup import rows_from
from rowmill.partition.plan_reference import run_plan

with extra("train"):
    import safetensors.torch
with torch_since("2.11", "export and serving of models"):
    from torch.export.passes import move_to_device_pass

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from torch.export import ExportedProgram

    from rowmill.partition.plan import Step
    from rowmill.store import Store

_CPU = torch.device("cpu")
_MEMORY = "256MiB"


def save_program(program: ExportedProgram, path: Path) -> dict[str, Tensor]:
    """Write a program without its weights; returns them by name."""
    state = {name: value.detach().contiguous() for name, value in program.state_dict.items()}
    kept = dict(program.state_dict)
    try:
        for name, value in kept.items():
            program.state_dict[name] = _without_data(value)
        # Through memory: when the disk is full, torch's own writer of files ends the process.
        content = io.BytesIO()
        torch.export.save(program, content)
        path.write_bytes(content.getvalue())
    finally:
        program.state_dict.update(kept)
    return state


def load_program(
    path: Path, weights: Mapping[str, Tensor], device: torch.device = _CPU
) -> nn.Module:
    """A program with weights of a file, both on a device."""
    import_module("rowmill.ops.interaction")  # Registers the operator that a program may hold.
    program = torch.export.load(path)
    for name, empty in program.state_dict.items():
        value = weights[name]
        is_parameter = isinstance(empty, nn.Parameter)
        program.state_dict[name] = (
            nn.Parameter(value, requires_grad=False) if is_parameter else value
        )
    if device != _CPU:
        program = move_to_device_pass(program, device)
    # Guards refuse sizes below 2, for which the graph holds as well.
    return program.module(check_guards=False)


def write_manifest(folder: Path, about: Mapping[str, Any]) -> None:
    """Write the manifest of a bundle, with the checksums of all its files."""
    manifest = {
        "format": FORMAT,
        "torch": torch.__version__,
        "instruction_set": torch.backends.cpu.get_cpu_capability(),
        **about,
        "files": checksums(folder),
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


@dataclass(frozen=True)
class Bundle:
    """An open bundle. Close it to release its rows.

    Attributes:
        path: Its folder.
        manifest: The content of `manifest.json`.
        signature: The content of `signature.json`.
    """

    path: Path
    manifest: dict[str, Any]
    signature: dict[str, Any]
    _weights: dict[str, Tensor] = field(repr=False)
    _rows: Store | None = field(repr=False)
    _halves: dict[str, Any] = field(repr=False)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Bundle:
        """Check every file of a bundle and open it.

        Raises:
            BundleDamaged: A file is absent or changed; names the file.
        """
        folder = Path(path)
        manifest = checked_manifest(folder)
        signature = json.loads((folder / "signature.json").read_text())
        weights = safetensors.torch.load_file(folder / "weights.safetensors")
        halves: dict[str, Any] = {}
        for half in ("cpu", "dense", "post"):
            if (folder / f"{half}.json").exists():
                halves[half] = json.loads((folder / f"{half}.json").read_text())
            elif (folder / f"{half}.pt2").exists():
                halves[half] = load_program(folder / f"{half}.pt2", weights)
        rows = None
        if (folder / "rows").exists():
            rows = rowmill.open(folder / "rows", memory=_MEMORY, read_only=True)
        return cls(folder, manifest, signature, weights, rows, halves)

    def close(self) -> None:
        """Release the rows."""
        if self._rows is not None:
            self._rows.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, inputs: Mapping[str, Tensor]) -> list[Tensor]:
        """Answer a request in this process with plain torch. Answers of servers are compared with it.

        Args:
            inputs: Tensors by the names in the signature.

        Returns:
            The outputs, in the order of the signature.
        """
        wanted = [named["name"] for named in self.signature["inputs"]]
        if set(inputs) != set(wanted):
            raise InvalidInput(f"inputs must be {wanted}, got {list(inputs)}")
        values = dict(inputs)
        with torch.no_grad():
            for half in ("cpu", "dense", "post"):
                if half in self._halves:
                    values |= self._run(half, values)
        return [values[name] for name in self.signature["outputs"]]

    def examples(self) -> list[tuple[dict[str, Tensor], list[Tensor]]]:
        """The example requests of the bundle, and their recorded answers."""
        tensors = safetensors.torch.load_file(self.path / "examples.safetensors")
        found: list[tuple[dict[str, Tensor], list[Tensor]]] = []
        for number in range(self.manifest["examples"]):
            inputs = {
                named["name"]: tensors[f"{number}.input.{named['name']}"]
                for named in self.signature["inputs"]
            }
            count = len(self.signature["outputs"])
            found.append((inputs, [tensors[f"{number}.output.{at}"] for at in range(count)]))
        return found

    def _run(self, half: str, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        program = self._halves[half]
        if isinstance(program, dict):
            return run_plan(cast("dict[str, Any]", program), values, self._weights, self._look_up)
        about = self.signature["halves"][half]
        arguments = [values[name] for name in about["inputs"]]
        if self._rows is None:
            results = program(*arguments)
        else:
            with rows_from(self._rows):
                results = program(*arguments)
        return dict(zip(about["outputs"], results, strict=True))

    def _look_up(
        self, step: Step, ids: Tensor, offsets: Tensor, weights: Tensor | None, bags: int
    ) -> Tensor:
        assert self._rows is not None, "a plan with lookups has rows"
        return lookup(
            [self._rows.open_table(name) for name in step["tables"]],
            ids.contiguous(),
            offsets.contiguous(),
            weights,
            features=step["features"],
            means=step["means"],
            paddings=step["paddings"],
            bags=bags,
            training=False,
            dtype=getattr(torch, step["dtype"]),
        )


def _without_data(value: Tensor) -> Tensor:
    empty = torch.empty_like(value, device="meta")
    return nn.Parameter(empty, requires_grad=False) if isinstance(value, nn.Parameter) else empty
