"""A click model from training to answers over HTTP and gRPC, served in two processes. `make serve-demo` runs this program.

1. Train the model of `examples/quickstart.toml`, unless its run is in `out/quickstart`.
2. Export the run as a bundle. It needs no training data.
3. Start the dense half, then the CPU half, which opens the ports for clients.
4. Ask for the scores of some rows with tritonclient, a client of the Open Inference Protocol.
5. Compare the answers with `rowmill predict`, which scores the same rows by the trainer's code.

The bundle and other files of the demo are in a temporary folder, which is removed at the end. The run is only read.
"""

from __future__ import annotations

import argparse
import json
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tritonclient import grpc, http

from rowmill.config import load_config
from rowmill.partition.transform import apply_transform

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
ROWMILL = (sys.executable, "-m", "rowmill")
ROWS = 8
TOLERANCE = 1e-6
START_S = 120.0
"""Longest wait for a worker to answer the examples of its bundle."""
END_S = 60.0
"""Longest wait for a worker to end."""
PROTOCOLS = {"HTTP": http, "gRPC": grpc}
"""Clients by the protocols that they speak."""
DATATYPES = {"float32": "FP32", "int64": "INT64"}


class Failed(Exception):
    """A step of the demo failed; the message says which and why."""


def rowmill(*arguments: str | Path) -> None:
    """Run a command to its end."""
    print("$ rowmill", *arguments, flush=True)
    done = subprocess.run([*ROWMILL, *map(str, arguments)])
    if done.returncode != 0:
        raise Failed(f"`rowmill {arguments[0]}` ended with code {done.returncode}: see its message")


@contextmanager
def worker(*arguments: str | Path) -> Iterator[dict[str, Any]]:
    """Start a worker, wait until it is ready, and end it in order; gives the addresses that it prints."""
    print("$ rowmill serve", *arguments, flush=True)
    process = subprocess.Popen(
        [*ROWMILL, "serve", *map(str, arguments), "--log-level", "warn"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None, "it is piped"
    lines: queue.Queue[str] = queue.Queue()
    reader = threading.Thread(target=lambda out: lines.put(out.readline()), args=[process.stdout])
    reader.start()
    try:
        try:
            line = lines.get(timeout=START_S)
        except queue.Empty:
            raise Failed(f"a worker was not ready within {START_S:.0f} s") from None
        if not line:
            raise Failed(f"a worker ended with code {process.wait()}: see its message")
        yield json.loads(line)
        process.send_signal(signal.SIGTERM)  # It answers open requests before it ends.
        if code := process.wait(END_S):
            raise Failed(f"a worker ended with code {code} after SIGTERM")
    finally:
        process.kill()  # Does nothing where it has ended.
        process.wait()
        reader.join()
        process.stdout.close()


def trained_run(settings: Path, out: Path | None) -> tuple[Path, Path]:
    """The run of a file of settings and its log, trained unless it is there."""
    config = load_config(settings)
    run, log = Path(out or config.train.out), Path(config.data.path or "")
    if (run / "store").exists():
        print(f"using the run in {run}")
    else:
        rowmill("train", "--config", settings, "--out", run)
    if not any(log.glob("*.parquet")):
        raise Failed(
            f"{log} has no Parquet files, from which the demo takes its rows: remove {run / 'store'} and run the demo again, "
            "which then generates the log and trains"
        )
    return run, log


def first_rows(log: Path, file: Path) -> pa.Table:
    """The first rows of a log, also as a file."""
    batch = next(pq.ParquetFile(min(log.glob("*.parquet"))).iter_batches(ROWS))
    table = pa.Table.from_batches([batch])
    pq.write_table(table, file)
    return table


def ask(protocol: Any, address: str, inputs: dict[str, NDArray[Any]], output: str) -> NDArray[Any]:
    """The scores of a request; the clients of both protocols have the same calls."""
    with protocol.InferenceServerClient(address) as client:
        tensors: list[Any] = []
        for name, value in inputs.items():
            tensor = protocol.InferInput(name, list(value.shape), DATATYPES[value.dtype.name])
            tensor.set_data_from_numpy(value)
            tensors.append(tensor)
        return client.infer("demo", tensors).as_numpy(output)


def demo(settings: Path, out: Path | None) -> None:
    """Run all steps."""
    run, log = trained_run(settings, out)
    with tempfile.TemporaryDirectory(prefix="rowmill-demo-") as name:
        folder = Path(name)
        rows, scores, bundle = folder / "rows.parquet", folder / "scores.parquet", folder / "demo"
        table = first_rows(log, rows)
        rowmill("export", run, "--out", bundle)
        rowmill("predict", run, "--data", rows, "--out", scores)
        expected = pq.read_table(scores)["score"].to_numpy()
        transform = json.loads((bundle / "transform.json").read_text())
        inputs = {key: value.numpy() for key, value in apply_transform(transform, table).items()}
        output = json.loads((bundle / "signature.json").read_text())["outputs"][0]
        # Port 0 takes a free port.
        dense = ("--role", "dense", "--listen", "tcp://127.0.0.1:0", "--metrics-port", "0")
        ports = ("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0")
        with (
            worker(bundle, *dense) as back,
            worker(bundle, "--role", "cpu", "--dense", back["dense"], *ports) as front,
        ):
            print(f"ready: {front}")
            answers = {
                name: ask(protocol, front[name.lower()], inputs, output)
                for name, protocol in PROTOCOLS.items()
            }
    print(f"\n{'row':>3}" + "".join(f"  {name:>10}" for name in ("predict", *answers)))
    for row, values in enumerate(zip(expected, *answers.values(), strict=True)):
        print(f"{row:>3}" + "".join(f"  {value:10.7f}" for value in values))
    worst = max(float(np.abs(answer - expected).max()) for answer in answers.values())
    if not worst <= TOLERANCE:
        raise Failed(
            f"an answer differs from `rowmill predict` by {worst:.3g}, more than {TOLERANCE}"
        )
    print(f"all answers are within {TOLERANCE} of `rowmill predict`; both workers have ended")


def main() -> int:
    """Run the demo; returns the exit code."""
    parser = argparse.ArgumentParser(description="Train, export and serve a click model.")
    parser.add_argument("--config", type=Path, default=ROOT / "examples/quickstart.toml")
    parser.add_argument(
        "--out", type=Path, help="folder of the run (default: that of the settings)"
    )
    arguments = parser.parse_args()
    try:
        demo(arguments.config, arguments.out)
    except Failed as failure:
        print(f"serve_demo: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
