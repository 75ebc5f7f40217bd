"""What the bytes of a request cost on a plain socket: both ends in one process, over loopback TCP."""

import resource
import socket
import threading
import time
from typing import Any

PORTION = 1 << 18
"""Bytes of a call."""


def probe(sent: int, back: int, *, seconds: float) -> dict[str, Any]:
    """Send `sent` bytes and answer with `back` bytes, again and again.

    Returns:
        `round_trips`, `cpu_s` of both ends, and `wall_s`.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        other, _ = server.accept()
        for end in (client, other):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answering = threading.Thread(target=_answer, args=(other, sent, back))
        answering.start()
        payload, reply = memoryview(bytes(sent)), memoryview(bytearray(back))
        cpu, begun, count = _cpu_s(), time.perf_counter(), 0
        while time.perf_counter() - begun < seconds:
            client.sendall(payload)
            _receive(client, reply)
            count += 1
        found = {
            "round_trips": count,
            "cpu_s": _cpu_s() - cpu,
            "wall_s": time.perf_counter() - begun,
        }
        client.close()
        answering.join()
        other.close()
    return found


def _answer(end: socket.socket, sent: int, back: int) -> None:
    buffer, reply = memoryview(bytearray(sent)), memoryview(bytes(back))
    while _receive(end, buffer):
        end.sendall(reply)


def _receive(end: socket.socket, buffer: memoryview) -> bool:
    """Fill a buffer; whether the other end is there."""
    at = 0
    while at < len(buffer):
        count = end.recv_into(buffer[at : at + PORTION])
        if count == 0:
            return False
        at += count
    return True


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
