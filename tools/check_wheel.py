"""Checks of the wheel and the source distribution in a folder, before they are tested or published.

- The wheel needs no newer glibc than its tag says, by auditwheel, and no library but those of a plain Linux system.
- It is small: symbols for debuggers are stripped.
- Its metadata is valid for a package index, and asks for torch and numpy only.
- Both are of the version in `Cargo.toml`, which is also the first of `CHANGELOG.md`.

    .venv/bin/python tools/check_wheel.py dist
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

from elftools.elf.elffile import ELFFile
from packaging.metadata import Metadata
from trove_classifiers import classifiers

ROOT = Path(__file__).resolve().parents[1]
GLIBC_NEWEST = (2, 28)
"""torch's own wheels need it from 2.6 on."""
LIBRARIES = {"ld-linux-x86-64.so.2"} | {
    f"lib{name}.so.{number}"
    for name, number in {"c": 6, "m": 6, "pthread": 0, "dl": 2, "rt": 1, "gcc_s": 1}.items()
}
BYTES_MAX = 12 << 20
CORE = "rowmill/_core.abi3.so"


def fail_unless(good: bool, message: str) -> None:
    """End the program with a message if a check failed."""
    if not good:
        raise SystemExit(f"check_wheel: {message}")


def only_file(folder: Path, pattern: str) -> Path:
    """The one file of a pattern."""
    found = sorted(folder.glob(pattern))
    fail_unless(len(found) == 1, f"{folder} must have one {pattern}, has {len(found)}")
    return found[0]


def check_platform(wheel: Path) -> None:
    """The tag is that of the stable ABI and an old glibc, and auditwheel agrees."""
    tag = re.search(r"-cp311-abi3-manylinux_(\d+)_(\d+)_x86_64\.whl$", wheel.name)
    named = f"{wheel.name} must be named for cp311-abi3 and manylinux on x86_64"
    if tag is None:
        raise SystemExit(f"check_wheel: {named}")
    glibc = int(tag[1]), int(tag[2])
    fail_unless(glibc <= GLIBC_NEWEST, f"{wheel.name} asks for a glibc newer than {GLIBC_NEWEST}")
    audit = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", str(wheel)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    found = re.search(r'platform tag:\s+"manylinux_(\d+)_(\d+)_x86_64"', audit)
    needed = found and (int(found[1]), int(found[2]))
    fail_unless(
        bool(needed and needed <= glibc), f"auditwheel does not agree with the tag: {audit}"
    )


def check_core(core: bytes) -> None:
    """The binding links system libraries only: in particular no libtorch, whose ABI changes with every version."""
    elf = ELFFile(io.BytesIO(core))
    needed = {tag.needed for tag in elf.get_section_by_name(".dynamic").iter_tags("DT_NEEDED")}
    fail_unless(needed <= LIBRARIES, f"{CORE} must not link {sorted(needed - LIBRARIES)}")
    names = [symbol.name for symbol in elf.get_section_by_name(".dynsym").iter_symbols()]
    of_torch = [name for name in names if "torch" in name or "c10" in name]
    fail_unless(of_torch == [], f"{CORE} has symbols of libtorch: {of_torch[:3]}")


def check_metadata(content: bytes, version: str) -> None:
    """Valid fields, known classifiers, the version, and the requirements without an extra."""
    metadata = Metadata.from_email(content, validate=True)
    fail_unless(str(metadata.version) == version, f"version is {metadata.version}, not {version}")
    unknown = set(metadata.classifiers or ()) - set(classifiers)
    fail_unless(not unknown, f"pyproject.toml has unknown classifiers: {sorted(unknown)}")
    always = {item.name for item in metadata.requires_dist or () if item.marker is None}
    fail_unless(always == {"torch", "numpy"}, f"the wheel asks for {sorted(always)}")


def main() -> None:
    """Check the files of the folder that the command line names."""
    folder = Path(sys.argv[1])
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    told = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    fail_unless(told is not None and told[1] == version, f"CHANGELOG.md must begin with {version}")
    wheel, source = only_file(folder, "*.whl"), only_file(folder, "*.tar.gz")
    check_platform(wheel)
    size = wheel.stat().st_size
    fail_unless(size <= BYTES_MAX, f"{wheel.name} has {size:,} bytes, more than {BYTES_MAX:,}")
    with zipfile.ZipFile(wheel) as archive:
        check_core(archive.read(CORE))
        check_metadata(archive.read(f"rowmill-{version}.dist-info/METADATA"), version)
    with tarfile.open(source) as archive:
        info = archive.extractfile(f"rowmill-{version}/PKG-INFO")
        assert info is not None, "it is a file"
        check_metadata(info.read(), version)
    print(
        f"{wheel}: {size / (1 << 20):.1f} MiB\n{source}: {source.stat().st_size / (1 << 20):.1f} MiB"
    )


if __name__ == "__main__":
    main()
