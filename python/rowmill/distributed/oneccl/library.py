"""The shim over oneCCL's C++ API: built once per machine, loaded, and its functions declared.

`shim.cpp` is compiled against the headers of the package `oneccl-devel` on first use. The result is kept in the user's
cache, under a hash of everything it depends on. It links to libccl by absolute path, and libccl to its own libraries.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

from rowmill.errors import BackendMissing

PACKAGE = "oneccl-devel"
INSTALL = "pip install 'rowmill[oneccl]'"

SOURCE = Path(__file__).with_name("shim.cpp")

LIBRARIES = ("libccl.so.1", "libfabric.so.1")

ADDRESS_BYTES = 256
"""Size of `ccl::kvs::address_type`."""

OPERATIONS = (
    "connect",
    "allreduce",
    "broadcast",
    "allgather",
    "reduce_scatter",
    "all_to_all",
    "barrier",
)
"""Operations in the order of the shim's numbers."""

_POINTER, _COUNT, _INT = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "calls": (_COUNT, (_INT,)),
    "version": (ctypes.c_char_p, ()),
    "offer": (ctypes.c_char_p, (ctypes.c_char_p, ctypes.POINTER(_POINTER))),
    "open": (_POINTER, (_POINTER, ctypes.c_char_p, _INT, _INT)),
    "connecting": (_POINTER, (_POINTER,)),
    "close": (None, (_POINTER,)),
    "allreduce": (_POINTER, (_POINTER, _POINTER, _COUNT, _INT, _INT)),
    "broadcast": (_POINTER, (_POINTER, _POINTER, _COUNT, _INT, _INT)),
    "allgather": (_POINTER, (_POINTER, _POINTER, _COUNT, _POINTER, _INT)),
    "reduce_scatter": (_POINTER, (_POINTER, _POINTER, _POINTER, _COUNT, _INT, _INT)),
    "all_to_all": (
        _POINTER,
        (
            _POINTER,
            _INT,
            _POINTER,
            ctypes.POINTER(_COUNT),
            _POINTER,
            ctypes.POINTER(_COUNT),
            _INT,
        ),
    ),
    "barrier": (_POINTER, (_POINTER,)),
    "wait": (_INT, (_POINTER, ctypes.c_double)),
    "error": (ctypes.c_char_p, (_POINTER,)),
    "release": (None, (_POINTER,)),
}


def prefix() -> Path:
    """The folder with oneCCL's `include` and `lib`.

    Raises:
        BackendMissing: oneCCL is not installed, or not completely.
    """
    try:
        package = metadata.distribution(PACKAGE)
    except metadata.PackageNotFoundError:
        raise BackendMissing(f"oneCCL is not installed: {INSTALL}") from None
    for file in package.files or ():
        if file.as_posix().endswith("include/oneapi/ccl.hpp"):
            found = Path(str(package.locate_file(file))).resolve().parents[2]
            # Without libfabric oneCCL falls back to MPI, which ends a process that no MPI launcher started.
            if all((found / "lib" / name).exists() for name in LIBRARIES):
                return found
    raise BackendMissing(
        f"{PACKAGE} {package.version} is installed without its headers or {' or '.join(LIBRARIES)}: "
        f"{INSTALL} --force-reinstall"
    )


@functools.cache
def load() -> ctypes.CDLL:
    """Load the shim, after building it if necessary; its functions are `rowmill_oneccl_` plus a name of `_SIGNATURES`.

    Raises:
        BackendMissing: oneCCL or a C++ compiler is not installed, or the shim cannot be built or loaded.
    """
    path = build()
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise BackendMissing(f"oneCCL does not load ({error}): {INSTALL}") from error
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, f"rowmill_oneccl_{name}")
        function.restype, function.argtypes = result, arguments
    return library


def build() -> Path:
    """Path of the compiled shim, built if it is not in the cache."""
    oneccl = prefix()
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        raise BackendMissing(
            "the backend oneccl is compiled when first used, and there is no C++ compiler: apt install g++"
        )
    library = oneccl / "lib/libccl.so.1"
    # RPATH, unlike the newer RUNPATH, also applies to the libraries that libccl itself needs.
    link = [str(library), "-Wl,--disable-new-dtags", f"-Wl,-rpath,{library.parent}"]
    command = [compiler, "-std=c++17", "-O2", "-shared", "-fPIC", "-pthread"]
    command += ["-I", str(oneccl / "include"), str(SOURCE), *link, "-Wl,--allow-shlib-undefined"]
    stat = library.stat()
    known = (SOURCE.read_bytes(), command, stat.st_size, stat.st_mtime_ns)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rowmill"
    path = cache / f"oneccl-{hashlib.sha256(repr(known).encode()).hexdigest()[:16]}.so"
    if path.exists():
        return path
    cache.mkdir(parents=True, exist_ok=True)
    # Ranks of one machine may build at the same time: each builds its own file, and the last rename wins.
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        built = Path(folder) / path.name
        run = subprocess.run(
            [*command, "-o", str(built)], capture_output=True, text=True, check=False
        )
        if run.returncode != 0:
            raise BackendMissing(
                f"the shim over oneCCL does not compile ({' '.join(command)}): {run.stderr.strip()}"
            )
        built.replace(path)
    return path
