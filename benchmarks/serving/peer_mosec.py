"""The model in mosec, whose server is written in Rust: `peer_mosec.py PROCESSES --port PORT --address ADDRESS`."""

# mosec is not among the packages that types are checked with.
# pyright: basic, reportMissingImports=none

import sys

from mosec import Runtime, Server, Worker

from benchmarks.serving.peer_model import Model


class Clicks(Worker):
    """One process that runs the model."""

    def __init__(self) -> None:
        super().__init__()
        self._model = Model()

    def deserialize(self, data: bytes) -> bytes:
        """The body as it comes."""
        return data

    def forward(self, data: bytes) -> bytes:
        """Scores as bytes."""
        return self._model.answer(data)

    def serialize(self, data: bytes) -> bytes:
        """Scores as they are."""
        return data


if __name__ == "__main__":
    processes = int(sys.argv.pop(1))
    server = Server()
    server.register_runtime({"/v2/models/dlrm/infer": [Runtime(Clicks, num=processes)]})
    server.run()
