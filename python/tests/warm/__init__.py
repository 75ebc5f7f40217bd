"""A Python interpreter that has already imported torch and rowmill, for tests that start commands.

`warm_python()` is the path of a program that takes the arguments of `python`: `-m MODULE`, `-c PROGRAM` or a script. It asks a
server, which has the modules loaded and has run no operator, to fork a process for them. The process gets the caller's
arguments, environment, folder, open files and ignored signals, and it is the caller's child in every respect but its pid:
signals are forwarded, its exit status or fatal signal is passed on, and it dies with the program that stands for it.

Importing torch and rowmill takes 4 CPU seconds, a fork some milliseconds. What only a fresh interpreter shows (what is
imported, and when) needs `sys.executable`.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

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
