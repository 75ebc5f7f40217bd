"""The manifest of a bundle: its format, and the sha256 of every other file. Needs no torch."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from rowmill.errors import BundleDamaged

if TYPE_CHECKING:
    from pathlib import Path

FORMAT = 1


def checksums(folder: Path) -> dict[str, str]:
    """The sha256 of every file below a folder, by path relative to it."""
    return {
        str(path.relative_to(folder)): _sha256(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def checked_manifest(folder: Path) -> dict[str, Any]:
    """The content of `manifest.json`, after a check of every file that it lists.

    Raises:
        BundleDamaged: A file is absent, unreadable or changed, or has another format; names the file.
    """
    path = folder / "manifest.json"
    try:
        manifest = json.loads(path.read_text())
        files, version = dict(manifest["files"]), manifest["format"]
    except FileNotFoundError:
        raise BundleDamaged(
            f"{folder} is not a bundle (it has no manifest.json): give a folder that `rowmill export` wrote"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise BundleDamaged(f"{path} cannot be read ({error}): export the bundle again") from None
    if version != FORMAT:
        raise BundleDamaged(
            f"{path} has format {version}, this version reads {FORMAT}: export the bundle again"
        )
    for name, expected in files.items():
        file = folder / name
        if not file.is_file():
            raise BundleDamaged(f"{file} is missing: copy or export the bundle again")
        if _sha256(file) != expected:
            raise BundleDamaged(
                f"{file} differs from its checksum in manifest.json: copy or export the bundle again"
            )
    return manifest


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
