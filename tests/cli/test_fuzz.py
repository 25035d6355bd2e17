"""Damaged and odd files: every command answers with one clear line, and leaves nothing behind."""

import io
import pickle

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.command_line import message_of, run
from tests.tiny_models import WORDS, save_model

rng = np.random.default_rng(0)
X = (rng.normal(size=(60, 16)) * np.linspace(3, 0.3, 16)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)
ROWS = [(" ".join(rng.choice(WORDS, size=5)), str(i % 3)) for i in range(24)]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with an adapter, a model, and whole files."""
    folder = tmp_path_factory.mktemp("place")
    save_model(folder / "model")
    np.save(folder / "X.npy", X)
    np.save(folder / "y.npy", Y)
    (folder / "texts.tsv").write_bytes(table(ROWS))
    out = folder / "adapter"
    assert run("fit", "whitening", "--on", folder / "X.npy", "--out", out).code in (None, 0)
    return folder


@pytest.fixture
def inside(place, monkeypatch):
    monkeypatch.chdir(place)
    return place


def listing(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def check(folder, *arguments):
    """Run a command: it succeeds, or says in one line why not and leaves nothing behind."""
    before, paths = listing(folder), {*folder.rglob("*")}
    completed = run(*arguments)
    code = completed.code
    assert "Traceback" not in completed.stderr
    if code in (None, 0):
        for path in sorted({*folder.rglob("*")} - paths, reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        return None
    if code == 2 and "Usage: " in completed.stderr:  # the parser of the arguments refused them
        return completed.stderr
    code = message_of(completed)
    assert len(code) > 30
    assert len(code) < 1200
    assert listing(folder) == before, code
    return code


def refuse(folder, message, *arguments):
    answer = check(folder, *arguments)
    assert answer is not None
    assert message in answer


def table(rows, separator="\t"):
    lines = [separator.join(row) for row in [("sentence", "label"), *rows]]
    return ("\n".join(lines) + "\n").encode()


def npy(array, **options):
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def npz():
    file = io.BytesIO()
    np.savez(file, X=X)
    return file.getvalue()


def header(text):
    """A .npy file with a header of one's own and no data."""
    padded = text.encode("latin-1").ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded


def shaped(shape, dtype="<f8"):
    return header(f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}}}")


def parquet(content):
    file = io.BytesIO()
    pq.write_table(content, file)
    return file.getvalue()


def with_features(**columns):
    return pa.table({f"f{i}": X[:, i] for i in range(16)} | columns)


class Bomb:
    def __reduce__(self):
        return (open, ("unpickled", "w"))


MATRICES = {
    "empty": b"",
    "noise": rng.bytes(300),
    "npz": npz(),
    "pickle": pickle.dumps(Bomb()),
    "objects": npy(np.array([[Bomb()]], dtype=object), allow_pickle=True),
    "terabytes": shaped((10**9, 10**3)),
    "more than an index": shaped((10**30, 2)),
    "code as header": header("__import__('pathlib').Path('unpickled').touch()"),
    "cut": npy(X)[:-9],
    "3-d": npy(X[None]),
    "complex": npy(X.astype(complex)),
    "no rows": npy(X[:0]),
    "one row": npy(X[:1]),
    "NaN": npy(np.where(X > 2, np.nan, X)),
    "constant": npy(np.ones((9, 16))),
    "text": b"a,b\n1,2\n",
}


@pytest.mark.parametrize("name", MATRICES)
def test_matrices_that_are_none(name, inside):
    (inside / "bad.npy").write_bytes(MATRICES[name])
    assert check(inside, "audit", "bad.npy")
    assert check(inside, "fit", "whitening", "--on", "bad.npy", "--out", "out")
    check(inside, "fit", "whitening", "--on", "X.npy", "--labels", "bad.npy", "--out", "out")
    check(inside, "transform", "adapter", "bad.npy", "out.npy")
    assert not (inside / "unpickled").exists()


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.where(Y, np.nan, 1.0), "has the label nan in row"),
        (np.where(Y, np.inf, 1.0), "has the label inf in row"),
        (Y + 1j, "labels must be numbers, booleans or strings"),
        (Y.astype("M8[s]"), "labels must be numbers, booleans or strings"),
        (np.where(Y, b"a", b"b"), "labels must be numbers, booleans or strings"),
        (np.zeros(60, [("a", int)]), "labels must be numbers, booleans or strings"),
        (np.ones(60), "one class"),
        (np.array(1), "one label per row"),
        (np.arange(3), "one label per row"),
    ],
)
def test_labels_beside_a_matrix(labels, message, inside):
    np.save(inside / "bad.npy", labels)
    command = ["fit", "whitening", "--on", "X.npy", "--labels", "bad.npy", "--out", "out"]
    refuse(inside, message, *command, "--set", "head=logistic")


WIDE = "\t".join(f"c{i}" for i in range(10**5)).encode()
TEXTS = {
    "empty": (b"", "is empty"),
    "blank lines": (b"\n\n\n", "is empty"),
    "header only": (b"sentence\tlabel\n", "header line only"),
    "noise": (b"\xfe" + rng.bytes(300), ""),
    "UTF-16": (table(ROWS).decode().encode("utf-16"), "as UTF-8"),
    "UTF-16 without a mark": (table(ROWS).decode().encode("utf-16-be"), "as UTF-8"),
    "Latin-1": (b"sentence\tlabel\ncaf\xe9\t1\n", "line 2: byte 0xe9 is not UTF-8"),
    "NUL": (table(ROWS).replace(b"\t1", b"\0\t1", 1), "line 3: byte 0x00"),
    "one class": (table([(text, "1") for text, _ in ROWS]), "one class"),
    "NaN label": (table(ROWS).replace(b"\t1", b"\tnan", 1), "line 3: the label 'nan'"),
    "infinite label": (table(ROWS).replace(b"\t1", b"\t1e999", 1), "line 3: the label '1e999'"),
    "empty label": (table(ROWS).replace(b"\t1", b"\t", 1), "line 3: the label is empty"),
    "no labels": (b"sentence\ncat\ndog\n", "label"),
    "names twice": (b"sentence\tsentence\na\tb\n", "two columns named 'sentence'"),
    "100,000 columns": (WIDE + b"\n" + WIDE + b"\n", "(100000 in all)"),
    "a longer row": (table([*ROWS, ("a", "1", "b")]), "line 26: 3 fields"),
    "one row": (table(ROWS[:1]), "one class"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_tables_that_are_none(name, inside):
    data, message = TEXTS[name]
    (inside / "bad.tsv").write_bytes(data)
    (inside / "bad.csv").write_bytes(data.replace(b"\t", b","))
    for file in ("bad.tsv", "bad.csv"):
        refuse(inside, message, "finetune", "--model", "model", "--train", file, "--out", "out")
    options = ["--train", "texts.tsv", "--dev", "bad.tsv", "--out", "out"]
    if name != "one class":
        check(inside, "demo", "--checkpoint", "model", *options)
        check(inside, "audit", "model", "bad.tsv", "--label", "label")
        assert check(inside, "finetune", "--model", "model", *options)


@pytest.mark.parametrize("change", ["\ufeff", "\r\n", "\r"])
def test_what_editors_do_to_a_table_is_no_matter(change, inside):
    whole = table(ROWS).decode()
    text = change + whole if change == "\ufeff" else whole.replace("\n", change)
    (inside / "good.tsv").write_bytes(text.encode())
    expected, found = (run("audit", "model", file).stdout for file in ("texts.tsv", "good.tsv"))
    assert found == expected != ""


PARQUETS = {
    "not Parquet": (rng.bytes(300), "is not a valid Parquet file"),
    "a damaged end": (b"PAR1" + bytes(20) + b"PAR1", "is not a valid Parquet file"),
    "names twice": (parquet(pa.table([X[:, 0], X[:, 1]], names=["a", "a"])), "two columns named"),
    "labels twice": (
        parquet(pa.table([X[:, 0], Y, Y], names=["a", "label", "label"])),
        "two columns named 'label'",
    ),
    "records only": (parquet(pa.table({"f": [{"a": 1.0}] * 60})), "no numeric column"),
    "records as labels": (parquet(with_features(label=[{"a": 1}] * 60)), "column 'label' holds"),
    "lists as labels": (parquet(with_features(label=[[1], [1, 2]] * 30)), "column 'label' holds"),
    "bytes as labels": (parquet(with_features(label=[b"\xff"] * 60)), "column 'label' holds"),
    "dates as labels": (
        parquet(with_features(label=pa.array([2**62] * 60, pa.timestamp("us", "No/Where")))),
        "column 'label' holds",
    ),
    "infinite labels": (parquet(with_features(label=[np.inf, 1.0] * 30)), "the label inf in row 0"),
    "no labels": (parquet(with_features(label=pa.nulls(60))), "'label' has empty cells"),
    "NaN": (parquet(with_features(g=[np.nan] * 60)), "NaN or infinite"),
    "no columns": (parquet(pa.table({})), "no numeric column"),
    "no rows": (parquet(with_features().slice(0, 0)), "holds 0 row(s)"),
    "broken metadata": (
        parquet(with_features().replace_schema_metadata({"pandas": "{"})),
        "cannot be converted to a DataFrame",
    ),
}


@pytest.mark.parametrize("name", PARQUETS)
def test_parquet_matrices_that_are_none(name, inside):
    data, message = PARQUETS[name]
    (inside / "bad.parquet").write_bytes(data)
    label = ["--label", "label"] if "labels" in name else []  # otherwise they are not read
    refuse(inside, message, "audit", "bad.parquet", *label)
    options = ["--set", "head=logistic", "--out", "out"]
    assert check(inside, "fit", "whitening", "--on", "bad.parquet", *options)


@pytest.mark.parametrize("value", [["a"], {"a": {"b": 1}}, b"\xff", pd.Timestamp(0)])
def test_parquet_texts_that_are_none(value, inside):
    columns = {"sentence": [value] * 9, "label": [0, 1, 2] * 3}
    (inside / "bad.parquet").write_bytes(parquet(pa.table(columns)))
    refuse(inside, "column 'sentence' holds", "audit", "model", "bad.parquet")


JSON = [b"", b"[]", b"{", b"\xff\xfe"]


def model_commands(model):
    yield ["audit", model, "texts.tsv"]
    yield ["merge", "adapter", model, "out"]
    yield ["finetune", "--model", model, "--train", "texts.tsv", "--out", "out"]
    yield ["fit", "whitening", "--on", "texts.tsv", "--model", model, "--out", "out"]


@pytest.mark.parametrize("data", JSON, ids=[repr(data[:9]) for data in JSON])
def test_the_configuration_of_a_model_is_no_object(data, inside, tmp_path):
    model = save_model(tmp_path / "m")
    (model / "config.json").write_bytes(data)
    for command in model_commands(model):
        refuse(inside, "config.json", *command)


@pytest.mark.parametrize("data", [b"{}", b"[3]", b"[{}]", b'[{"path": 1, "type": 2}]'])
def test_modules_that_are_none(data, inside, tmp_path):
    model = save_model(tmp_path / "m", kind="AutoModel")
    (model / "modules.json").write_bytes(data)
    refuse(inside, "modules.json is damaged (", "audit", model, "texts.tsv")


def test_paths_that_cannot_be(inside, tmp_path):
    (tmp_path / "folder.npy").mkdir()
    (tmp_path / "folder.npy" / "kept").touch()
    (tmp_path / "loop.npy").symlink_to("loop.npy")
    paths = ["", "absent.npy", "~nobody-here/x.npy", tmp_path / "loop.npy"]
    for path in [*paths, tmp_path / "folder.npy", inside / "X.npy" / "x.npy", "/dev/null", ".."]:
        for command in (
            ["audit", path],
            ["audit", path, "texts.tsv"],
            ["fit", "whitening", "--on", path, "--out", "out"],
            ["fit", "whitening", "--on", "X.npy", "--labels", path, "--out", "out"],
            ["transform", "adapter", path, "out.npy"],
            ["transform", path, "X.npy", "out.npy"],
            ["merge", path, "model", "out"],
            ["merge", "adapter", path, "out"],
            ["finetune", "--model", "model", "--train", path, "--out", "out"],
            ["demo", "--train", path, "--dev", path, "--out", "out/a"],
        ):
            assert check(inside, *command) is not None, command
    for command in (["fit", "whitening", "--on", "X.npy", "--out"], ["merge", "adapter", "model"]):
        for out in (tmp_path / "folder.npy", inside / "X.npy", inside / "X.npy" / "a", "."):
            assert check(inside, *command, out) is not None, (command, out)
    refuse(inside, "is a folder", "transform", "adapter", "X.npy", tmp_path / "folder.npy")
    assert listing(tmp_path) == ["folder.npy", "folder.npy/kept", "loop.npy"]


def test_a_model_that_cannot_be_evaluated_is_kept(inside, tmp_path):
    (inside / "same.tsv").write_bytes(table([("unknown", "0"), ("words", "1"), ("only", "2")]))
    command = ["finetune", "--model", "model", "--train", "texts.tsv", "--dev", "same.tsv"]
    completed = run(*command, "--out", tmp_path / "out", "--set", "epochs=1")
    assert f"{tmp_path / 'out'} holds the fine-tuned checkpoint, but" in str(completed.code)
    assert (tmp_path / "out" / "model.safetensors").is_file()
    (inside / "one.tsv").write_bytes(table([ROWS[0], ROWS[0]]))
    refuse(inside, "holds only one distinct text", *command[:-1], "one.tsv", "--out", "out")
