"""Other servers of the same model: installed, given the weights, started and checked."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks import common
from benchmarks.serving.bundles import Bundles, weights
from benchmarks.serving.peer_model import FOLDER, LIBRARY
from benchmarks.serving.shapes import CLICKS, Clicks
from benchmarks.serving.worker import START_S, Worker, running

_HERE = Path(__file__).parent
_TOLERANCE = 1e-5


@dataclass(frozen=True)
class Peer:
    """A server with its settings.

    Attributes:
        server: "fastapi" or "mosec".
        processes: That run the model.
        threads: Of torch in each.
        library: Of its linear layers: "mkl", as a user of torch gets it, or "onednn", as our server has it.
    """

    server: str
    processes: int
    threads: int
    library: str = "mkl"

    @property
    def name(self) -> str:
        """As figures of it are called."""
        tuned = "" if self.library == "mkl" else f"_{self.library}"
        return f"{self.server}_{self.processes}x{self.threads}{tuned}"

    def command(self, port: int) -> list[str]:
        """What starts it."""
        if self.server == "mosec":
            script = str(_HERE / "peer_mosec.py")
            ends = ["--address", "127.0.0.1", "--port", str(port), "--log-level", "error"]
            return [sys.executable, script, str(self.processes), *ends]
        script = str(_HERE / "peer_fastapi.py")
        return [sys.executable, script, str(self.processes), str(port)]


PEERS = (
    Peer("fastapi", 1, 1),
    Peer("fastapi", 1, 2),
    Peer("fastapi", 2, 1),
    Peer("fastapi", 1, 2, "onednn"),
    Peer("fastapi", 2, 1, "onednn"),
    Peer("mosec", 1, 2, "onednn"),
    Peer("mosec", 2, 1, "onednn"),
)


def install(folder: Path) -> Path:
    """Install the packages of `peers.lock` into a folder of their own."""
    lock = _HERE / "peers.lock"
    path, stamp = folder / "peers", folder / "peers/lock"
    if not stamp.is_file() or stamp.read_text() != lock.read_text():
        shutil.rmtree(path, ignore_errors=True)
        uv = [str(Path(sys.executable).parent / "uv"), "pip", "install", "--quiet"]
        locked = ["--require-hashes", "--requirements", str(lock)]
        python = ["--python", sys.executable]
        subprocess.run([*uv, *python, "--target", str(path), *locked], check=True)
        stamp.write_text(lock.read_text())
    return path


def write_model(bundles: Bundles) -> Path:
    """The rows and layers of the served model, for plain torch."""
    path = bundles.folder / f"peer-{bundles.rows}-{bundles.seed}"
    path.mkdir(exist_ok=True)
    with bundles.module(CLICKS) as module:
        assert isinstance(module, Clicks), "by its kind"
        torch.save((_plain(module.model.bottom), _plain(module.model.top)), path / "layers.pt")
    if not (path / "rows.npy").exists():
        count = CLICKS.features
        tables = [weights(number, bundles.rows, bundles.seed) for number in range(count)]
        np.save(path / "rows.new.npy", torch.cat(tables).numpy())
        (path / "rows.new.npy").rename(path / "rows.npy")
    return path


@contextmanager
def peer(server: Peer, packages: Path, model: Path, log: Path) -> Generator[Worker]:
    """Start a server and wait until it answers."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(packages), str(common.REPOSITORY)]),
        # mosec starts a program, which it looks for in the folders of scripts.
        "PYTHONUSERBASE": str(packages),
        FOLDER: str(model),
        LIBRARY: server.library,
        "OMP_NUM_THREADS": str(server.threads),
    }
    with running(server.command(port), log, environment) as process:
        address = f"127.0.0.1:{port}"
        until = time.monotonic() + START_S
        while not _listens(address):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{server.name} does not start:\n{log.read_text()}")
            time.sleep(0.1)
        yield Worker(process, {"http": address})


def check(worker: Worker, inputs: Mapping[str, Tensor], expected: Tensor) -> None:
    """Ask for one request, and compare the answer with that of the served model.

    Raises:
        RuntimeError: They differ.
    """
    body = b"".join(inputs[name].numpy().tobytes() for name in sorted(inputs))
    url = f"http://{worker.addresses['http']}/v2/models/dlrm/infer"
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=60) as reply:
        answer = reply.read()
    given = torch.frombuffer(bytearray(answer[-expected.numel() * 4 :]), dtype=torch.float32)
    if not torch.allclose(given, expected, rtol=_TOLERANCE, atol=_TOLERANCE):
        raise RuntimeError(f"{url} answers {given[:3].tolist()}, not {expected[:3].tolist()}")


def _plain(layers: nn.Sequential) -> nn.Sequential:
    """The same layers with torch's own linear operator."""
    found: list[nn.Module] = []
    for layer in layers:
        if isinstance(layer, nn.Linear):
            plain = nn.Linear(layer.in_features, layer.out_features)
            plain.load_state_dict(layer.state_dict())
            found.append(plain)
        else:
            found.append(layer)
    return nn.Sequential(*found)


def _listens(address: str) -> bool:
    try:
        urllib.request.urlopen(f"http://{address}/", timeout=10).close()
    except urllib.error.HTTPError:
        return True  # It has no such page.
    except OSError:
        return False
    return True
