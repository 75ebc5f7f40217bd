"""The command `rowmill`: its parser and commands, and what a store tells a person."""

from rowmill.cli.command import main

__all__ = ["main"]
