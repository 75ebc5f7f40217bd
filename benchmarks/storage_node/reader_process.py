"""The other side of `reader.py`: starts the process and calls it."""

import json
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_PROGRAM = Path(__file__).with_name("reader.py")


class ReaderProcess:
    """A running reader."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def begin(self, do: str, **arguments: Any) -> None:
        """Begin a call; `result` waits for it."""
        assert self._process.stdin is not None, "it is piped"
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()

    def result(self) -> dict[str, Any]:
        """What the call that was begun gives."""
        assert self._process.stdout is not None, "it is piped"
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a reader ended: its message is above")
        return json.loads(line)

    def call(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Call a method of the reader."""
        self.begin(do, **arguments)
        return self.result()


@contextmanager
def reading(
    source: str | Path,
    *,
    rows: int,
    bags: int,
    seed: int,
    first: int = 0,
    memory: int = 0,
    inside: Sequence[str] = (),
) -> Generator[ReaderProcess]:
    """A reader of a store or a node, which ends with the block. Arguments as of `Reader`; `inside` as of `serving`."""
    settings = {"rows": rows, "first": first, "bags": bags, "seed": seed, "memory": memory}
    command = [
        *inside,
        sys.executable,
        str(_PROGRAM),
        json.dumps({"source": str(source), **settings}),
    ]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        reader = ReaderProcess(process)
        try:
            reader.result()
            yield reader
        except BaseException:
            process.kill()
            raise
        finally:
            assert process.stdin is not None, "it is piped"
            process.stdin.close()
