"""Programs in `examples` of crates, which only tests run."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def built_example(name: str) -> Path:
    """Build an example with cargo; returns its program."""
    built = subprocess.run(
        [
            # The same packages as in `make test-rust`, so that cargo reuses its build: features depend on the packages.
            *("cargo", "build", "--workspace", "--exclude", "rowmill-python"),
            *("--example", name, "--locked", "--message-format", "json"),
        ],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    messages = [json.loads(line) for line in built.stdout.splitlines()]
    return Path([message["executable"] for message in messages if message.get("executable")][-1])
