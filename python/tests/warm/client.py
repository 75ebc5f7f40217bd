"""Stands for a process that the server forks: `warm_python()` writes this below a line that says where the server listens.

It sends its arguments, environment, folder, ignored signals and open files, forwards the signals it receives, and ends as the
process ended. When it dies, the server kills the process.
"""

import json
import os
import signal
import socket
import sys

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def inheritable() -> list[int]:
    """Open files that a program started from here would have."""
    found = []
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 (pathlib would take longer to import than the rest)
        try:
            if os.get_inheritable(int(name)):
                found.append(int(name))
        except OSError:  # The folder that was listed.
            continue
    return found


def main() -> None:
    """Ask for the process, and end as it ends."""
    files = inheritable()
    ignored = [number for number in FORWARDED if signal.getsignal(number) == signal.SIG_IGN]
    server = socket.socket(socket.AF_UNIX)
    server.connect(SERVER)  # type: ignore[name-defined]  # noqa: F821
    for number in FORWARDED:
        if number not in ignored:
            signal.signal(number, lambda number, _: server.sendall(bytes([number])))
    request = json.dumps(
        {
            "arguments": sys.argv[1:],
            "environment": dict(os.environ),
            "folder": os.getcwd(),  # noqa: PTH109
            "ignored": ignored,
            "files": files,
        }
    ).encode()
    socket.send_fds(server, [len(request).to_bytes(4, "little")], files)
    server.sendall(request)
    for file in files:
        os.close(file)
    ended = json.loads(server.recv(64) or b"70")
    if ended < 0:
        if -ended != signal.SIGKILL:
            signal.signal(-ended, signal.SIG_DFL)
        os.kill(os.getpid(), -ended)
    os._exit(ended)


if __name__ == "__main__":
    main()
