"""Every command follows the same conventions: help, streams, --json, --quiet, exit status."""

import io
import json
import math
import re
import shlex
import unittest.mock
import warnings

import pytest
import transformers
import typer
from typer.testing import CliRunner

import isoadapt
from isoadapt import cli
from isoadapt.adapters._registry import NAMES
from isoadapt.cli._finetune import _JOINING, _TRAINING
from isoadapt.cli._options import Console, read_settings
from isoadapt.finetune._penalties import PENALTIES
from tests.cli.command_line import refuse, run, succeed

COMMANDS = dict(typer.main.get_command(cli.app).commands)
KEYS = {
    "audit": {"isoscore", "truncation", "vectors", "references", "verdict"},
    "compare": {"protocol", "rows", "verdict", "notes"},
    "finetune": {"checkpoint", "dev"},
    "fit": {"adapter", "method", "rows", "evaluated_on", "before", "after"},
    "transform": {"file", "n_samples", "n_features", "dtype"},
    "export": {"model", "classifies"},
    "duplicates": {"n_texts", "pairs", "threshold", "ci_low", "ci_high", "n_copies", "file"},
    "search": {"query", "nearest"},
    "check": {"vectors_version", "as_exported", "loaders"},
    "demo": {},  # see test_demo.py
}
EXTRA = {  # makes the example cheap, or possible
    "compare": ["--adapters", "whitening"],
    "finetune": ["--set", "epochs=1"],
}
# Before transformers had a hook for progress bars, they could only be hidden for the whole process.
BARS_CAN_BE_HIDDEN = hasattr(transformers.utils.logging, "set_tqdm_hook")


def example_of(command):
    [line] = re.findall(r"Example:\s+(isoadapt .*)", COMMANDS[command].help)
    return shlex.split(line)[1:]


def test_version_and_help():
    assert succeed("--version").stdout.strip() == isoadapt.__version__
    output = succeed("--help").stdout
    assert "isoadapt audit my-model texts.tsv" in output
    assert all(re.search(rf"\b{command}\b", output) for command in COMMANDS)
    assert KEYS.keys() == COMMANDS.keys()


def test_the_help_names_what_can_be_chosen():
    known = {"fit": NAMES, "finetune": [*PENALTIES, *_JOINING, *_TRAINING]}
    for command, names in known.items():
        shown = " ".join(each.help or "" for each in COMMANDS[command].params)
        assert not [name for name in names if name not in f"{shown} --where"]


@pytest.mark.usefixtures("fixed_penalty")
class TestEveryCommand:
    @pytest.mark.parametrize("command", KEYS)
    def test_the_help_begins_with_what_one_gets_and_an_example_that_parses(self, command):
        sentence = re.split(r"\n\s*\n", COMMANDS[command].help.strip())[0]
        help_ = CliRunner().invoke(cli.app, [command, "--help"], env={"COLUMNS": "80"}).stdout
        output = " ".join(help_.split())
        places = [output.find(part) for part in (sentence, "Example:", "─ ")]
        assert places == sorted(places)
        assert places[0] > 0
        name, *arguments = example_of(command)
        assert shlex.join(["isoadapt", name, *arguments]) in output  # on one line of a terminal
        COMMANDS[name].make_context(name, arguments)  # raises on what it does not know
        assert name == command
        assert {"--json", "--quiet"} < {each.opts[0] for each in COMMANDS[name].params}

    @pytest.mark.parametrize("command", [each for each in KEYS if KEYS[each]])
    def test_the_example_runs_as_json_and_quietly(self, command, files, capfd):
        if command in ("export", "check"):
            pytest.importorskip("sentence_transformers")
        if command == "fit":
            (files / "my-adapter").unlink()
        if command == "check":
            succeed(*example_of("export"), "--quiet")
        capfd.readouterr()
        completed = succeed(*example_of(command), *EXTRA.get(command, []), "--json", "--quiet")
        assert json.loads(completed.stdout).keys() >= KEYS[command]
        if BARS_CAN_BE_HIDDEN:
            assert completed.stderr == ""
            assert capfd.readouterr() == ("", "")  # nothing passes by the streams of Python


def test_exit_status_of_wrong_usage_an_interrupt_and_an_expected_error(files, monkeypatch):
    completed = run("audit", "--nonsense")
    assert (completed.code, completed.stdout) == (2, "")
    assert "Traceback" not in completed.stderr
    audit = unittest.mock.Mock(side_effect=[KeyboardInterrupt, RuntimeError("no\nluck")])
    monkeypatch.setattr("isoadapt.cli._audit.isotropy_report", audit)
    completed = run("audit", "X.npy")
    assert (completed.code, completed.stdout, completed.stderr) == (130, "", "")
    refuse("no luck", "audit", "X.npy")


def test_a_closed_standard_output_is_an_error(monkeypatch):
    monkeypatch.setattr("sys.argv", ["isoadapt", "--version"])
    monkeypatch.setattr("sys.stdout", None)
    with pytest.raises(SystemExit, match="standard output is closed"):
        cli.main()


def test_tables_come_from_the_standard_input_and_in_other_encodings(files, monkeypatch):
    content = (files / "texts.tsv").read_bytes()
    expected = succeed("audit", "my-model", "texts.tsv").stdout.replace(" --on texts.tsv", "")
    (files / "utf-16.csv").write_text(content.decode().replace("\t", ","), "utf-16-le")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    for name, option in (("-", ""), ("utf-16.csv", " --encoding utf-16-le")):
        found = succeed("audit", "my-model", name, *option.split()).stdout
        assert (
            found.replace(f" --on {name}", "").replace(f"my-adapter{option}", "my-adapter")
            == expected
        )


VALUES = {"0.25": 0.25, "1e-1": 0.1, "1": 1, "oas": "oas", '"oas"': "oas", "'oas'": "oas"}
VALUES |= {" 0.5 ": 0.5, "None": None, "true": True, "[1, 2]": [1, 2], "1,2": (1, 2)}


def test_values_are_literals_of_json_or_python_or_strings():
    for text, value in VALUES.items():
        found = read_settings([f" name = {text}"], ["name"], "it")["name"]
        assert (found, type(found)) == (value, type(value))


def test_several_files_may_follow_one_flag():
    context = COMMANDS["fit"].make_context
    line = "--on a.tsv b.TXT c.csv.gz whitening --set x=1 --set y=2 --out d.npy"
    found = context("fit", line.split()).params
    assert [*map(str, found["on"])] == ["a.tsv", "b.TXT", "c.csv.gz"]
    assert (found["name"], [*found["settings"]]) == ("whitening", ["x=1", "y=2"])


def test_nan_becomes_null_in_json(capsys):
    Console(as_json=True).show("", {"a": math.nan, "b": [{"c": math.nan}, (1.0, "x")]})
    shown = {"a": None, "b": [{"c": None}, [1.0, "x"]], "notes": []}
    assert json.loads(capsys.readouterr().out) == shown


def test_each_warning_is_one_note_unless_quiet(files, monkeypatch):
    def read(*given, **options):
        for message in ("few\nrows", "few\nrows", "other"):
            warnings.warn(message, stacklevel=1)
        raise ValueError("no")

    monkeypatch.setattr("isoadapt.datasets.load_table", read)
    for quiet, notes in ((["--quiet"], ""), ([], "Note: few rows\nNote: other\n")):
        assert run("audit", "my-model", "texts.tsv", *quiet).stderr == f"{notes}isoadapt: no\n"
