"""The application: its version and its help."""

import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import isoadapt
from isoadapt import cli
from tests.cli.command_line import run


def test_version():
    assert run("--version").stdout.strip() == isoadapt.__version__


def test_help_names_every_command():
    output = run("--help").stdout
    assert "demo" in output
    assert "audit" in output


def test_help_names_the_commands():
    result = CliRunner().invoke(cli.app, ["--help"])
    for command in ("fit", "transform", "merge"):
        assert re.search(rf"\b{command}\b", result.output)
    for command in ("fit", "transform", "merge"):
        assert CliRunner().invoke(cli.app, [command, "--help"]).exit_code == 0


@pytest.mark.parametrize("command", [[], ["fit"], ["finetune"], ["audit"]])
def test_help_loads_nothing_heavy(command):
    code = (
        "import sys, isoadapt.cli\n"
        f"sys.argv = ['isoadapt', *{command!r}, '--help']\n"
        "try:\n    isoadapt.cli.main()\n"
        "finally:\n    print(sorted(sys.modules))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    ).stdout
    assert "'isoadapt.cli'" in loaded
    for module in ("torch", "sklearn", "scipy", "transformers", "zuko", "matplotlib", "lmdb"):
        assert f"'{module}'" not in loaded
