"""``python -m isoadapt``: the command line."""

from isoadapt.cli import main

main()
