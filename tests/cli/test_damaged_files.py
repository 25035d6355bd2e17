"""Damaged and odd files: every command answers with one clear line, and leaves nothing behind."""

import io
import pickle

import numpy as np
import pytest

from tests.cli.command_line import X as NARROW, listing, message_of, refuse, run
from tests.tiny_models import save_model

X = np.hstack([NARROW] * 4)[:, :16] + np.random.default_rng(0).normal(size=(150, 16))


def npy(array, **options):
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def header(text):
    """A .npy file with a header of one's own and no data."""
    padded = text.encode("latin-1").ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded


class Bomb:
    def __reduce__(self):
        return (open, ("unpickled", "w"))


MATRICES = {
    "empty": b"",
    "pickle": pickle.dumps(Bomb()),
    "objects": npy(np.array([[Bomb()]], dtype=object), allow_pickle=True),
    "terabytes": header("{'descr': '<f8', 'fortran_order': False, 'shape': (10**9, 10**3)}"),
    "code as header": header("__import__('pathlib').Path('unpickled').touch()"),
    "cut": npy(X)[:-9],
    "3-d": npy(X[None]),
    "no rows": npy(X[:0]),
    "NaN": npy(np.where(X > 2, np.nan, X)),
    "constant": npy(np.ones((9, 16))),
}


def failure(*arguments):
    """The line in which a command fails, without new files; None if it succeeds."""
    before = listing()
    completed = run(*arguments)
    if completed.code in (None, 0):
        return None
    assert listing() == before
    if completed.code == 2 and "Usage: " in completed.stderr:  # by the parser of the arguments
        return completed.stderr
    assert 30 < len(message_of(completed)) < 1200
    return message_of(completed)


@pytest.mark.parametrize("name", MATRICES)
def test_matrices_that_are_none(name, files):
    (files / "bad.npy").write_bytes(MATRICES[name])
    assert failure("audit", "bad.npy")
    assert failure("fit", "whitening", "--on", "bad.npy", "--out", "out")
    failure("transform", "my-adapter", "bad.npy", "out.npy")
    failure("fit", "whitening", "--on", "X.npy", "--labels", "bad.npy", "--out", "labelled")
    assert not (files / "unpickled").exists()


@pytest.mark.parametrize(
    ("word", "data"),
    [
        ("is empty", b"\n\n\n"),
        ("as UTF-8", "sentence\tlabel\na\t1\n".encode("utf-16-be")),
        ("'label'", b"sentence\ncat\ndog\n"),
        ("one class", b"sentence\tlabel\ncat\t1\ndog\t1\n"),
    ],
)
def test_tables_that_are_none(word, data, files):
    (files / "bad.tsv").write_bytes(data)
    refuse(word, "finetune", "--model", "my-model", "--train", "bad.tsv", "--out", "out")
    options = ["--train", "texts.tsv", "--dev", "bad.tsv", "--out", "out"]
    if word != "one class":
        assert failure("demo", "--checkpoint", "my-model", *options)
        failure("audit", "my-model", "bad.tsv", "--label", "label")
        assert failure("finetune", "--model", "my-model", *options)


@pytest.mark.parametrize("data", [b"[]", b"\xff\xfe"])
def test_the_configuration_of_a_model_is_no_object(data, files):
    (save_model(files / "bad") / "config.json").write_bytes(data)
    refuse("config.json", "audit", "bad", "texts.tsv")
    refuse("config.json", "merge", "my-adapter", "bad", "out")
    refuse("config.json", "finetune", "--model", "bad", "--train", "texts.tsv", "--out", "out")
    options = ["--model", "bad", "--out", "out"]
    refuse("config.json", "fit", "whitening", "--on", "texts.tsv", *options)


@pytest.mark.parametrize("data", [b"{}", b'[{"path": 1, "type": 2}]'])
def test_modules_that_are_none(data, files):
    (save_model(files / "bad", kind="AutoModel") / "modules.json").write_bytes(data)
    refuse("modules.json is damaged", "audit", "bad", "texts.tsv")


@pytest.mark.parametrize("path", ["", "~nobody-here/x.npy", "loop.npy", "f.npy"])
def test_paths_that_cannot_be(path, files):
    (files / "loop.npy").symlink_to("loop.npy")
    (files / "f.npy").mkdir()
    (files / "f.npy" / "kept").touch()
    for command in (
        ["audit", path],
        ["audit", path, "texts.tsv"],
        ["fit", "whitening", "--on", path, "--out", "out"],
        ["fit", "whitening", "--on", "X.npy", "--labels", path, "--out", "out"],
        ["transform", "my-adapter", path, "out.npy"],
        ["transform", path, "X.npy", "out.npy"],
        ["merge", path, "my-model", "out"],
        ["finetune", "--model", "my-model", "--train", path, "--out", "out"],
        ["demo", "--train", path, "--dev", path, "--out", "out/a"],
    ):
        assert failure(*command) is not None, command
    for out in ("f.npy", "X.npy", "X.npy/a", "."):
        assert failure("fit", "whitening", "--on", "X.npy", "--out", out) is not None
        assert failure("merge", "my-adapter", "my-model", out) is not None
