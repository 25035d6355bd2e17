"""The command-line program ``isoadapt``: demo, audit, finetune, fit, transform and merge."""

from isoadapt.cli._app import app, main

__all__ = ["app", "main"]
