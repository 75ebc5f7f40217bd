"""The command `rowmill`: argument parser, commands, and printed descriptions of stores."""

from rowmill.cli.command import exit_code, main

__all__ = ["exit_code", "main"]
