"""Forks interpreters with the modules loaded: `server.py SOCKET PROGRAM`; ends when its standard input does.

For each request it forks a supervisor, which forks the process, forwards signals to it, and reports how it ended.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
import warnings
from importlib import import_module
from types import ModuleType
from typing import Any

FILES_MAX = 64


def main() -> None:
    """Serve; returns in each forked process, with nothing left of the server."""
    where, program = sys.argv[1:]
    import_module("preloaded")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(where)
        listener.listen()
        print("ready", flush=True)
        while True:
            if 0 in select.select([listener, 0], [], [])[0]:
                os._exit(0)
            client, _ = listener.accept()
            if os.fork() == 0:
                break
            client.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    length, files, _, _ = socket.recv_fds(client, 4, FILES_MAX)
    request = json.loads(received(client, int.from_bytes(length, "little")))
    pid = os.fork()
    if pid != 0:
        for file in (0, 1, 2, *files):
            os.close(file)
        supervise(client, pid)
    client.close()
    become(request, files, program)


def received(client: socket.socket, count: int) -> bytes:
    """Receive exactly this many bytes."""
    content = b""
    while len(content) < count:
        part = client.recv(count - len(content))
        if not part:
            os._exit(0)
        content += part
    return content


def supervise(client: socket.socket, pid: int) -> None:
    """Forward signals until the process ends; kill it if the client dies."""
    process = os.pidfd_open(pid)
    while process not in (ready := select.select([client, process], [], [])[0]):
        assert client in ready
        numbers = client.recv(64) or bytes([signal.SIGKILL])
        for number in numbers:
            os.kill(pid, number)
        if signal.SIGKILL in numbers:
            break
    _, status = os.waitpid(pid, 0)
    try:
        client.sendall(json.dumps(os.waitstatus_to_exitcode(status)).encode())
    finally:
        os._exit(0)


def become(request: dict[str, Any], files: list[int], program: str) -> None:
    """Apply the client's environment, folder, signals and open files to this process."""
    for number in request["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    # First move descriptors above all wanted numbers, so that none is overwritten.
    above = max((*files, *request["files"]), default=2) + 1
    moved = []
    for file in files:
        moved.append(os.dup2(file, above + len(moved), inheritable=False))
        os.close(file)
    for file, number in zip(moved, request["files"], strict=True):
        os.dup2(file, number, inheritable=True)
        os.close(file)
    for number in {0, 1, 2} - set(request["files"]):
        os.close(number)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.executable = program
    sys.argv = request["arguments"]


def run(arguments: list[str]) -> None:
    """Run these arguments as `python` does."""
    while arguments[0] in ("-W", "-u"):
        if arguments.pop(0) == "-W":
            warnings.simplefilter(arguments.pop(0))  # type: ignore[arg-type]
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[0:1] = ["", *(path for path in paths if path and path not in sys.path)]
    if threads := os.environ.get("OMP_NUM_THREADS"):
        import_module("torch").set_num_threads(int(threads))
    # The program replaces the main module, so import this module by its own name.
    if arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        main_module = ModuleType("__main__")
        sys.modules["__main__"] = main_module
        exec(compile(arguments[1], "<string>", "exec"), main_module.__dict__)
    elif arguments[0] == "-m":
        sys.argv = arguments[1:]
        if not hasattr(sys.modules.get(arguments[1]), "__path__"):
            sys.modules.pop(arguments[1], None)
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))  # noqa: PTH100, PTH120
        runpy.run_path(arguments[0], run_name="__main__")


def ended(arguments: list[str]) -> int:
    """Run to the end as `python` does; returns the exit status, or the negative number of a signal."""
    try:
        run(arguments)
    except SystemExit as exit_:
        if exit_.code is None or isinstance(exit_.code, int):
            return (exit_.code or 0) & 0xFF
        print(exit_.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        sys.excepthook(*sys.exc_info())
        return -signal.SIGINT
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def end(status: int) -> None:
    """Wait for threads, call exit handlers and flush output, but do not free modules, which would take a CPU second."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            status = 120
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


if __name__ == "__main__":
    main()
    end(ended(sys.argv))
