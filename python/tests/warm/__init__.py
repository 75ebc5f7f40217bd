"""A Python interpreter that has already imported torch and rowmill, for tests that start commands.

`warm_python()` is the path of a client program that takes the arguments of `python`: `-m MODULE`, `-c PROGRAM` or a script. It
asks a server, which has imported the modules and has run no operator, to fork a process. The process gets the client's
arguments, environment, folder, open files and ignored signals. It behaves as the client's child with another pid: the client
forwards signals to it and ends with its exit status or fatal signal, and the process dies with the client.

Importing torch and rowmill takes 4 CPU seconds, a fork some milliseconds. Tests of imports need a fresh interpreter
(`sys.executable`).
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext

HERE = Path(__file__).parent
START_S = 120


@cache
def warm_python() -> str:
    """Path of the program; the first call starts the server, which ends with this process."""
    folder = Path(tempfile.mkdtemp(prefix="rowmill-warm-"))
    program = folder / "python"
    # Isolated and without site, it starts in 20 ms.
    head = f"#!{os.path.realpath(sys.executable)} -IS\nSERVER = {str(folder / 'socket')!r}\n"
    program.write_text(head + (HERE / "client.py").read_text())
    program.chmod(0o755)
    server = subprocess.Popen(
        [sys.executable, str(HERE / "server.py"), str(folder / "socket"), str(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )

    def end() -> None:
        server.kill()
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n", "the server of warm interpreters did not start"
    return str(program)


def fork_server() -> ForkServerContext:
    """`multiprocessing` with the same modules imported, for functions of tests that run in a process of their own."""
    context = multiprocessing.get_context("forkserver")
    # There is one fork server for all contexts, and it ignores modules that it cannot import.
    context.set_forkserver_preload(["python.tests.warm.preloaded"])
    return context
