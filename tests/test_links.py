"""benchmarks/slow_links/links.py on real namespaces: messages take the time that the rate implies, and cleanup is complete.

On a busy machine only the lower bound of the time can be checked; a token bucket guarantees it.
"""

import json
import os
import re
import subprocess
import sys

import pytest

from benchmarks.slow_links import links

RATE_BYTES = 1_000_000
SENT_BYTES = 600_000
# The name of a namespace of this process.
OWN = rf"^rowmill{os.getpid()}[a-z]\d*"
# Connects to rank 0, sends, and waits for one byte in return.
PROGRAM = f"""
import json, socket, sys, time
rank, address = int(sys.argv[1]), sys.argv[2]
if rank == 0:
    listener = socket.create_server((address, 7000))
    print("ready", flush=True)
    peer, _ = listener.accept()
    left = {SENT_BYTES}
    while left:
        left -= len(peer.recv(1 << 16))
    peer.sendall(b"!")
else:
    peer = socket.create_connection((address, 7000))
    begun = time.monotonic()
    peer.sendall(bytes({SENT_BYTES}))
    peer.recv(1)
    print(json.dumps(time.monotonic() - begun))
"""


def namespaces() -> set[str]:
    """Namespaces that this process made: another one may make and remove its own meanwhile."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return set(re.findall(OWN, listed.stdout, re.MULTILINE))


def test_a_message_takes_at_least_the_time_of_its_links_rate() -> None:
    if reason := links.missing():
        pytest.skip(reason)
    try:
        with links.network(2, f"{8 * RATE_BYTES}bit") as made:
            assert namespaces() == {*made.names, made.switch}
            commands = [
                made.command(rank, [sys.executable, "-c", PROGRAM, str(rank), made.addresses[0]])
                for rank in range(2)
            ]
            with subprocess.Popen(commands[0], stdout=subprocess.PIPE, text=True) as first:
                assert first.stdout is not None
                assert first.stdout.readline() == "ready\n"
                second = subprocess.run(
                    commands[1], capture_output=True, text=True, check=True, timeout=60
                )
                assert first.wait(60) == 0
            # The burst is sent at once at both ends of the bridge.
            least_s = (SENT_BYTES - 2 * links.BURST_BYTES) / RATE_BYTES
            assert json.loads(second.stdout) > least_s
    except RuntimeError as error:
        pytest.skip(f"the kernel makes no such network: {error}")
    assert namespaces() == set()


def test_a_network_that_cannot_be_made_is_removed() -> None:
    if reason := links.missing():
        pytest.skip(reason)
    with pytest.raises(RuntimeError, match=r"ip .*|tc .*"), links.network(2, "no rate"):
        raise AssertionError("a network of no rate was made")
    assert namespaces() == set()


def test_missing_root_and_tools_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert links.missing() == "network namespaces need root"
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda name: None if name == "tc" else name)
    assert links.missing() == "tc is missing: run apt install iproute2"
    monkeypatch.setattr("shutil.which", lambda name: name)
    assert links.missing() is None
