"""The application: its version and its help."""

import re
import subprocess
import sys

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


def test_it_loads_nothing_heavy_before_a_command_runs():
    code = "import sys, isoadapt.cli\nprint(sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    ).stdout
    assert "'isoadapt.cli'" in loaded
    for module in ("transformers", "zuko", "matplotlib", "lmdb", "accelerate", "datasets"):
        assert f"'{module}'" not in loaded
