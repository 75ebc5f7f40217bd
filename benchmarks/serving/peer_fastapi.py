"""The model in FastAPI, with uvicorn: a body of bytes, and no validation by pydantic.

Each process has a listening socket of its own, and Linux spreads connections over them. With one socket for all, as `uvicorn
--workers` has it, one of two processes often took all connections, and the other one none.
"""

# FastAPI is not among the packages that types are checked with.
# pyright: basic, reportMissingImports=none

import json
import multiprocessing
import signal
import socket
import sys
from multiprocessing.connection import wait

import uvicorn
from fastapi import FastAPI, Request, Response

from benchmarks.serving.peer_model import CANDIDATES, Model

_OUTPUT = {
    "name": "scores",
    "datatype": "FP32",
    "shape": [CANDIDATES],
    "parameters": {"binary_data_size": CANDIDATES * 4},
}
_HEAD = json.dumps({"model_name": "dlrm", "outputs": [_OUTPUT]}).encode()
_HEADERS = {"Inference-Header-Content-Length": str(len(_HEAD))}

app = FastAPI()
model = Model()


@app.post("/v2/models/dlrm/infer")
async def infer(request: Request) -> Response:
    """Answer on the event loop: a pool of threads would only add to the time."""
    body = await request.body()
    return Response(
        _HEAD + model.answer(body), media_type="application/octet-stream", headers=_HEADERS
    )


def serve(listening: socket.socket) -> None:
    """Answer requests at a socket."""
    config = uvicorn.Config(
        app, loop="uvloop", http="httptools", access_log=False, log_level="error"
    )
    uvicorn.Server(config).run(sockets=[listening])


def main(processes: int, port: int) -> None:
    """Serve in a number of processes until SIGTERM."""
    context = multiprocessing.get_context("spawn")
    children = []
    for _ in range(processes):
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.bind(("127.0.0.1", port))
        listening.listen(1024)
        children.append(context.Process(target=serve, args=(listening,), daemon=True))
    # Daemons are ended when their parent ends in order.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    for child in children:
        child.start()
    # Connections of one that has ended would wait for ever.
    wait([child.sentinel for child in children])
    sys.exit("a process of the model has ended")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
