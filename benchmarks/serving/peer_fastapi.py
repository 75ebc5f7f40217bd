"""The model in FastAPI, for uvicorn: a body of bytes, and no validation by pydantic."""

# FastAPI is not among the packages that types are checked with.
# pyright: basic, reportMissingImports=none

import json

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
