"""A TCP relay on loopback that counts bytes: what a host and a node send each other, all layers above TCP included."""

import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

_CHUNK = 1 << 16


@dataclass
class Relay:
    """Bytes so far, both directions together.

    Attributes:
        port: Where it listens on 127.0.0.1.
    """

    port: int
    _sent: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def sent(self) -> int:
        """Bytes so far."""
        with self._lock:
            return self._sent

    def copy(self, source: socket.socket, target: socket.socket) -> None:
        """Send on what comes, until its end."""
        try:
            while data := source.recv(_CHUNK):
                # Counted before they are sent on, so that an answer is counted when its receiver has it.
                with self._lock:
                    self._sent += len(data)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            # One of the two ends is gone, which is how connections end here.
            _end(source)
            _end(target)


@contextmanager
def relayed(port: int) -> Generator[Relay]:
    """A relay to a port of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        relay = Relay(listener.getsockname()[1])
        pairs: list[tuple[socket.socket, socket.socket]] = []

        def accept() -> None:
            while True:
                try:
                    near, _ = listener.accept()
                except OSError:
                    return
                far = socket.create_connection(("127.0.0.1", port))
                pairs.append((near, far))
                for one, other in ((near, far), (far, near)):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    threading.Thread(target=relay.copy, args=(one, other), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield relay
        finally:
            _end(listener)
            for pair in pairs:
                for end in pair:
                    _end(end)


def _end(end: socket.socket) -> None:
    """Close a socket. Threads that wait for it wake up, which closing alone would not do."""
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
