"""What the command line loads, which only a process of its own can tell."""

import subprocess
import sys


def test_help_loads_nothing_heavy():
    code = (
        "import contextlib, sys, isoadapt.cli\n"
        "for command in ([], ['fit'], ['finetune'], ['audit']):\n"
        "    sys.argv = ['isoadapt', *command, '--help']\n"
        "    with contextlib.suppress(SystemExit):\n"
        "        isoadapt.cli.main()\n"
        "print(sorted(sys.modules))"
    )
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert loaded.count("Usage: isoadapt") == 4
    assert "'isoadapt.cli'" in loaded
    for module in ("torch", "sklearn", "scipy", "transformers", "zuko", "matplotlib", "lmdb"):
        assert f"'{module}'" not in loaded
