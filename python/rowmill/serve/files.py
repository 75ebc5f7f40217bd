"""Files of a bundle, read without torch, which a worker of the CPU half need not have."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rowmill._extras import extra
from rowmill.partition.manifest import checked_manifest

with extra("train"):
    import safetensors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_DTYPES = {
    "F32": "float32",
    "F64": "float64",
    "F16": "float16",
    "BF16": "bfloat16",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "U8": "uint8",
    "BOOL": "bool",
}

Named = tuple[bytes, str, list[int]]
"""A tensor: its bytes, the name of its type, and its shape."""


@dataclass(frozen=True)
class BundleFiles:
    """A bundle whose files are as its manifest says.

    Attributes:
        name: The model's name.
        folder: Where it is.
        manifest: The content of `manifest.json`.
        signature: The content of `signature.json`.
        program: A number that the halves of one bundle have in common.
    """

    name: str
    folder: Path
    manifest: dict[str, Any]
    signature: dict[str, Any]
    program: int

    @classmethod
    def open(cls, folder: Path, name: str) -> BundleFiles:
        """Check every file.

        Raises:
            BundleDamaged: A file is absent or changed; names the file.
        """
        manifest = checked_manifest(folder)
        signature = json.loads((folder / "signature.json").read_text())
        program = int.from_bytes(
            hashlib.sha256((folder / "manifest.json").read_bytes()).digest()[:8], "little"
        )
        return cls(name, folder, manifest, signature, program)

    def is_native(self) -> bool:
        """Whether CPU half and post-processing are plans."""
        return not any((self.folder / f"{half}.pt2").exists() for half in ("cpu", "post"))

    def examples(self) -> Iterator[tuple[list[Named], list[Named]]]:
        """The example requests of the bundle, and their recorded answers, in the order of the signature."""
        tensors: dict[str, Named] = {}
        library: Any = safetensors
        content = (self.folder / "examples.safetensors").read_bytes()
        for name, about in library.deserialize(content):
            tensors[name] = (bytes(about["data"]), _DTYPES[about["dtype"]], list(about["shape"]))
        names = [named["name"] for named in self.signature["inputs"]]
        count = len(self.signature["outputs"])
        for number in range(self.manifest["examples"]):
            inputs = [tensors[f"{number}.input.{name}"] for name in names]
            yield inputs, [tensors[f"{number}.output.{at}"] for at in range(count)]
