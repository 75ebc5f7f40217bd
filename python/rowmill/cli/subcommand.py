"""Adds commands to a parser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse


def add_command(commands: Any, name: str, summary: str) -> argparse.ArgumentParser:
    """Add a command. `summary` describes it in the list of commands and at the start of its own help."""
    return commands.add_parser(
        name, help=summary, description=f"{summary[0].upper()}{summary[1:]}."
    )
