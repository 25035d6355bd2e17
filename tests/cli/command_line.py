"""Runs of the command line, and what they must and must not do."""

import io
import re
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest

from isoadapt import cli

_rng = np.random.default_rng(0)
X = (_rng.normal(size=(150, 5)) * [9, 3, 1, 1, 0.3] + 2).astype(np.float32)
Y = (X[:, 2] > 2).astype(int)


class Completed(NamedTuple):
    code: int | str | None
    stdout: str
    stderr: str


def run(*arguments):
    """Call the entry point as the shell does: exit code and both streams."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["isoadapt", *map(str, arguments)])
        try:
            code = cli.main()
        except SystemExit as stop:
            code = stop.code
    return Completed(code, out.getvalue(), err.getvalue())


def succeed(*arguments):
    completed = run(*arguments)
    assert completed.code in (None, 0), completed
    return completed


def message_of(completed):
    """The one line that says why a command failed or was used wrongly."""
    message = completed.stderr.rstrip("\n").split("\n")[-1]
    assert completed.code in (1, 2)
    assert message.startswith("isoadapt: "), completed
    assert "Traceback" not in completed.stderr
    return message


def fail(*arguments):
    """The message of a command that must fail or is used wrongly: one line."""
    return message_of(run(*arguments))


def refuse(word, *arguments, status=1):
    """Check that a command fails in one line with a word, without a result or a new file."""
    before = sorted(Path().rglob("*"))
    completed = run(*arguments)
    assert re.search(word, message_of(completed)), completed
    assert completed.code == status, completed
    assert (completed.stdout, sorted(Path().rglob("*"))) == ("", before)


def texts_and_labels(path="texts.tsv"):
    table = pd.read_csv(path, sep="\t")
    return table["sentence"].tolist(), table["label"].to_numpy()


def write_table(name, texts, labels, columns=("sentence", "label")):
    """A table of texts, or of pairs with the texts in reverse beside them, and its name."""
    table = pd.DataFrame({columns[0]: texts, columns[-1]: labels})
    if len(columns) == 3:
        table.insert(1, columns[1], texts[::-1])
    table.to_csv(name, sep="\t", index=False)
    return name
