"""benchmarks/slow_links/links.py on real namespaces: messages take as long as the rate says, and nothing is left behind.

How fast links are at most is all that can be known on a busy machine: that is what a token bucket promises.
"""

import json
import subprocess
import sys

import pytest

from benchmarks.slow_links import links

RATE_BYTES = 1_000_000
SENT_BYTES = 600_000
# Connects to the first rank, sends, and waits for one byte in return.
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
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return {line.split()[0] for line in listed.stdout.splitlines() if line}


def test_a_message_takes_as_long_as_its_link_allows() -> None:
    if reason := links.missing():
        pytest.skip(reason)
    before = namespaces()
    try:
        with links.network(2, f"{8 * RATE_BYTES}bit") as made:
            assert namespaces() - before >= set(made.names)
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
            # What leaves at once does so at both ends of the bridge.
            least_s = (SENT_BYTES - 2 * links.BURST_BYTES) / RATE_BYTES
            assert json.loads(second.stdout) > least_s
    except RuntimeError as error:
        pytest.skip(f"the kernel makes no such network: {error}")
    assert namespaces() == before


def test_a_network_that_cannot_be_made_leaves_nothing() -> None:
    if reason := links.missing():
        pytest.skip(reason)
    before = namespaces()
    with pytest.raises(RuntimeError, match=r"ip .*|tc .*"), links.network(2, "no rate"):
        raise AssertionError("a network of no rate was made")
    assert namespaces() == before


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert links.missing() == "links of namespaces need root"
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda name: None if name == "tc" else name)
    assert links.missing() == "no tc: apt install iproute2"
    monkeypatch.setattr("shutil.which", lambda name: name)
    assert links.missing() is None
