"""What the commands share: values after --set, several values of one flag, and the result."""

import json
import math
import warnings

import pytest

from isoadapt.cli._options import Console, _flagged, read_settings
from tests.cli.command_line import succeed

VALUES = {"0.25": 0.25, "1e-1": 0.1, "1": 1, "oas": "oas", '"oas"': "oas", "'oas'": "oas"}
VALUES |= {" 0.5 ": 0.5, "None": None, "true": True, "[1, 2]": [1, 2], "1,2": (1, 2)}


def test_values_are_literals_of_json_or_python_or_strings():
    for text, value in VALUES.items():
        found = read_settings([f" name = {text}"], ["name"], "it")["name"]
        assert (found, type(found)) == (value, type(value))


def test_several_values_may_follow_one_flag(files):
    line = "fit --set strength=0.5 shrinkage=0.1 --on X.npy whitening --set n_components=3 --out a"
    stderr = succeed(*line.split()).stderr
    assert all(each in stderr for each in ("strength=0.5", "shrinkage=0.1", "n_components=3"))
    line = "--on a.tsv b.TXT c.csv.gz name --set x=1 y=2 --out d.npy"
    flags = "--on a.tsv --on b.TXT --on c.csv.gz name --set x=1 --set y=2 --out d.npy"
    assert " ".join(_flagged(line.split())) == flags


def test_nan_becomes_null_in_json(capsys):
    Console(as_json=True).show("", {"a": math.nan, "b": [{"c": math.nan}, (1.0, "x")]})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [{"c": None}, [1.0, "x"]]}


@pytest.mark.parametrize("quiet", [False, True])
def test_each_warning_is_one_note_unless_quiet(quiet, capsys):
    console = Console(quiet=quiet)
    with console.notes():
        for message in ("few\nrows", "few\nrows", "other"):
            warnings.warn(message, stacklevel=1)
    assert capsys.readouterr().err == ("" if quiet else "Note: few rows\nNote: other\n")
    assert console.verbose == (not quiet)
