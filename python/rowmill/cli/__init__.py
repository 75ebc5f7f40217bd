"""The command `rowmill`: its parser and commands, and what a store tells a person."""

from rowmill.cli.command import exit_code, main

__all__ = ["exit_code", "main"]
