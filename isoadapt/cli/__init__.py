"""The command-line program ``isoadapt``: measure, compare, fit, apply and export adapters."""

from isoadapt.cli._app import app, main

__all__ = ["app", "main"]
