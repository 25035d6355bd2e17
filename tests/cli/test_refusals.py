"""What every command refuses, by refusals.tsv: in one line, and without leaving a file."""

import shlex
from pathlib import Path

import numpy as np
import pytest

from isoadapt import Whitening
from isoadapt.interop import save_adapter
from tests.cli.command_line import X, refuse

CONTENTS = {
    "bad/config.json": "[]",
    "bare.tsv": "sentence\na cat\na dog\n",
    "empty.txt": "\n \n",
    "latin.txt": "caf\xe9\n",
    "names.tsv": "sentence\tlabel\na\tno\nb\tyes\n",
    "one.tsv": "sentence\tlabel\nthe cat sat\t0\nthe cat sat\t1\n",
    "pairs.tsv": "sentence1\tsentence2\tlabel\nthe cat\ta dog\t1\na dog\ta cat\t0\n",
}


@pytest.fixture(scope="module")
def odd_files(place, tmp_path_factory):
    """A folder with links to all of `place`, and with files that cannot be used."""
    folder = tmp_path_factory.mktemp("odd")
    for path in place.iterdir():
        if path.name not in CONTENTS:  # which would be written through the link
            (folder / path.name).symlink_to(path)
    (folder / "bad").mkdir()
    for name, content in CONTENTS.items():
        (folder / name).write_text(content, "latin-1")
    for name in ("folder.npy", "report.html"):
        (folder / name / "kept").mkdir(parents=True)
    for name, matrix in {"one": X[:1], "constant": np.ones((9, 5)), "cut": X}.items():
        np.save(folder / f"{name}.npy", matrix)
    (folder / "cut.npy").write_bytes((folder / "cut.npy").read_bytes()[:-9])
    save_adapter(Whitening().fit(X), folder / "narrow")
    return folder


LINES = Path(__file__).with_name("refusals.tsv").read_text("utf-8").splitlines()


@pytest.mark.parametrize(("status", "word", "line"), [line.split("\t") for line in LINES[1:]])
def test_one_line_says_why(status, word, line, odd_files, monkeypatch):
    if line.startswith("export"):
        pytest.importorskip("sentence_transformers")
    monkeypatch.chdir(odd_files)
    refuse(word, *shlex.split(line), status=int(status))
