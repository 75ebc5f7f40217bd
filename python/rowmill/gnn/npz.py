"""Read an ``.npz`` file and memory-map one of its arrays instead of loading it.

The operating system loads pages of the mapped array when they are read, and drops them when memory is short. The
checksum of the array is verified once, as for loaded arrays.
"""

from __future__ import annotations

import math
import struct
import zlib
from typing import TYPE_CHECKING, Any, BinaryIO
from zipfile import ZIP_STORED, BadZipFile, is_zipfile

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path
    from zipfile import ZipFile

    from numpy.typing import NDArray

_LOCAL_HEADER = struct.Struct("<4s22x2H")
"""Local file header of a ZIP member: signature, skipped fields, length of the name, length of the extra field."""
_SIGNATURE = b"PK\x03\x04"

_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_READ_BYTES = 1 << 20


def load_npz(path: Path, *, mapped: str) -> dict[str, NDArray[Any]]:
    """Read all arrays, by name.

    Args:
        path: An ``.npz`` file.
        mapped: Name of the array to map. It is mapped if it is stored uncompressed in C order, as `numpy.savez` does; else
            it is loaded.

    Raises:
        BadZipFile, ValueError, EOFError, AttributeError, TypeError, zlib.error: The file is damaged or is not ``.npz``.
        OSError: The file cannot be read.
    """
    # Opened here, because np.load leaves the file open if it is not an archive.
    with path.open("rb") as opened:
        if not is_zipfile(opened):
            raise BadZipFile("it is not a ZIP archive; write one with numpy.savez")
        opened.seek(0)
        file = np.load(opened, allow_pickle=False)
        stays = _in_file(opened, file.zip, f"{mapped}.npy") if mapped in file.files else None
        return {
            name: file[name] if name != mapped or stays is None else stays for name in file.files
        }


def _in_file(opened: BinaryIO, archive: ZipFile, name: str) -> NDArray[Any] | None:
    """The mapped array. None if it cannot be mapped; NumPy then loads it, or raises if it is damaged."""
    info = archive.NameToInfo.get(name)
    if info is None or info.compress_type != ZIP_STORED:
        return None
    opened.seek(info.header_offset)
    before = opened.read(_LOCAL_HEADER.size)
    if len(before) < _LOCAL_HEADER.size or not before.startswith(_SIGNATURE):
        return None
    _, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(before)
    begin = opened.seek(name_bytes + extra_bytes, 1)
    header = _HEADERS.get(np.lib.format.read_magic(opened))
    if header is None:
        return None
    shape, by_column, dtype = header(opened)
    offset = opened.tell()
    array_bytes = math.prod(shape) * dtype.itemsize
    if by_column or dtype.hasobject or array_bytes == 0:
        return None
    if offset + array_bytes != begin + info.file_size:
        return None
    opened.seek(begin)
    check, left = 0, info.file_size
    while left > 0 and (piece := opened.read(min(left, _READ_BYTES))):
        check, left = zlib.crc32(piece, check), left - len(piece)
    if left > 0 or check != info.CRC:
        raise BadZipFile(f"Bad CRC-32 for file {name!r}")
    return np.asarray(np.memmap(opened, dtype, "r", offset, shape))
