"""A reader of ``.npz`` files that maps one array into memory instead of loading it.

The system loads pages of the mapped array when they are read, and drops them when memory is short. Its checksum is
verified once, as for loaded arrays.
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
"""What stands before a member: a signature, and at its end the lengths of its name and of what follows the name."""
_SIGNATURE = b"PK\x03\x04"

_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_READ_BYTES = 1 << 20


def load_npz(path: Path, *, mapped: str) -> dict[str, NDArray[Any]]:
    """Arrays by their names.

    Args:
        path: The file.
        mapped: The array that stays in the file, if `numpy.savez` wrote it: uncompressed, row after row.

    Raises:
        BadZipFile, ValueError, EOFError, AttributeError, TypeError, zlib.error: It is damaged, or no such file.
        OSError: It cannot be read.
    """
    # Opened here, because a file that is no archive would stay open.
    with path.open("rb") as opened:
        if not is_zipfile(opened):
            raise BadZipFile("it is no archive; write one with numpy.savez")
        opened.seek(0)
        file = np.load(opened, allow_pickle=False)
        stays = _in_file(opened, file.zip, f"{mapped}.npy") if mapped in file.files else None
        return {
            name: file[name] if name != mapped or stays is None else stays for name in file.files
        }


def _in_file(opened: BinaryIO, archive: ZipFile, name: str) -> NDArray[Any] | None:
    """The array where it lies; None if it must be loaded, which also says what is wrong with it."""
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
