"""The client of a forked process: `warm_python()` writes this program below a line with the server's address.

It sends its arguments, environment, folder, ignored signals and open files to the server, forwards received signals, and ends
with the status of the process. When the client dies, the server kills the process.
"""

import json
import os
import signal
import socket
import sys

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def inheritable() -> list[int]:
    """Open files that a child of this program would inherit."""
    found = []
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 (pathlib would take longer to import than the rest)
        try:
            if os.get_inheritable(int(name)):
                found.append(int(name))
        except OSError:  # The descriptor of the listing itself.
            continue
    return found


def main() -> None:
    """Request the process, and end with its status."""
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
