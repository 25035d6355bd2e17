"""The application: its version and its help."""

import re
import subprocess
import sys

import isoadapt
from tests.cli.command_line import run


def test_version():
    assert run("--version").stdout.strip() == isoadapt.__version__


def test_help_names_the_commands():
    output = run("--help").stdout
    assert "isoadapt audit my-model texts.tsv" in output
    for command in ("demo", "audit", "fit", "transform", "merge"):
        assert re.search(rf"\b{command}\b", output)
        assert run(command, "--help").code in (None, 0)


def test_help_loads_nothing_heavy():
    code = (
        "import contextlib, sys, isoadapt.cli\n"
        "for command in ([], ['fit'], ['finetune'], ['audit']):\n"
        "    sys.argv = ['isoadapt', *command, '--help']\n"
        "    with contextlib.suppress(SystemExit):\n"
        "        isoadapt.cli.main()\n"
        "print(sorted(sys.modules))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert loaded.count("Usage: isoadapt") == 4
    assert "'isoadapt.cli'" in loaded
    for module in ("torch", "sklearn", "scipy", "transformers", "zuko", "matplotlib", "lmdb"):
        assert f"'{module}'" not in loaded
