"""load_table: GLUE-shaped files in, texts and labels out."""

import bz2
import csv
import gzip
import importlib.util
import io
import itertools
import json
import lzma
import sys
import warnings
import zipfile

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st

from isoadapt.datasets import load_table

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def write(folder, name, content):
    """Write text, bytes or, as Parquet, columns."""
    path = folder / name
    if isinstance(content, dict):
        parquet.write_table(pa.table(content), path)
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def labelled(*rows):
    return "".join(f"{row}\n" for row in ("sentence\tlabel", *rows))


def with_labels(*labels):
    return labelled(*(f"a\t{label}" for label in labels))


QUOTED = 'sentence,label\n"a, ""b""\nc",1\nd,0\n'
COLUMNS = "id,question,answer,score\n7,q,a,0.5\n"
LINES = '\ufeffOne\ttext.\r\n\n \n "b"\nlabel'
OBJECTS = '{"sentence": "", "label": true}\n{"sentence": 3, "label": 0}'


@pytest.mark.parametrize(
    ("name", "content", "options", "texts", "labels"),
    [
        ("a.tsv", "sentence2\tsentence1\tlabel\nb\ta\t1\n", {}, [("a", "b")], [1]),
        ("a.tsv", labelled('" he said\t1', "", 'b"\t0'), {}, ['" he said', 'b"'], [1, 0]),
        ("a.csv", QUOTED, {}, ['a, "b"\nc', "d"], [1, 0]),
        ("a.tsv", "\ufeffsentence\tlabel\r\na\t1\r\nb\t0\r", {}, ["a", "b"], [1, 0]),
        ("a.csv", COLUMNS, {"text": ("question", "answer")}, [("q", "a")], None),
        ("a.csv", "text,sentence\nx,One.\n", {}, ["One."], None),
        ("a.csv", "label,review\n1,fine\n", {"label": None}, ["fine"], None),
        ("a.csv", "Text,LABEL\n 123 ,NA\n4.50,null\n", {}, [" 123 ", "4.50"], ["NA", "null"]),
        ("a.jsonl", OBJECTS, {}, ["", "3"], [1, 0]),
        ("a.tsv", "text\tlabel\na\rb\t1\nc\t0\n", {}, ["a\rb", "c"], [1, 0]),
        ("a.tsv", "text\tlabel\ra\t1\rb\t0\r", {}, ["a", "b"], [1, 0]),
        ("a.txt", LINES, {}, ["One\ttext.", ' "b"', "label"], None),
    ],
)
def test_texts_and_labels(name, content, options, texts, labels, tmp_path):
    found, values = load_table(write(tmp_path, name, content), **options)
    assert found == texts
    assert labels == (None if values is None else values.tolist())


def test_labels_are_integers_or_floats_or_names(tmp_path):
    for written, expected in (
        (["1", "0"], [1, 0]),
        (["-1", "+2", " 10"], [-1, 2, 10]),
        (["1", ".5", "2.", "-2.5e-1"], [1.0, 0.5, 2.0, -0.25]),
        (["1", "good"], ["1", "good"]),
        (["01", "1"], ["01", "1"]),
        (["1_0", "10"], ["1_0", "10"]),
        (["1e3", "1000", "2"], ["1e3", "1000", "2"]),  # names: as numbers, two are one
        (["1.1", "1.10"], ["1.1", "1.10"]),
        (["nan", "inf"], ["nan", "inf"]),
        ([str(2**53), str(2**53 + 1)], [2**53, 2**53 + 1]),
        ([f"{2**64}", f"{2**64 + 1}"], [f"{2**64}", f"{2**64 + 1}"]),
    ):
        _, labels = load_table(write(tmp_path, "a.tsv", with_labels(*written)))
        assert labels.tolist() == expected
        assert labels.dtype == np.array(expected).dtype


KINDS = '{"text": "a", "label": "1"}\n{"text": "b", "label": true}\n'
TRUNCATED = gzip.compress(b"sentence\n" + b"abc" * 99, mtime=0)[:-9]  # of the same bytes anywhere
SEMICOLONS = 'sentence;label\n"a, b";1\n'


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("a.txt", "\n \n", {}, "a.txt holds no rows"),
        ("a.csv", "", {}, "a.csv holds no rows"),
        ("a.jsonl", " \n", {}, "holds no rows"),
        ("a.tsv", labelled(), {}, "holds no rows"),
        ("a.tsv", labelled("a\t1", "b"), {}, "row 3: column 'label' is empty"),
        ("a.csv", "sentence,label\na,1\nc,1,2\n", {}, "a.csv cannot be read: .*line 3, saw 3"),
        ("a.csv", 'sentence,label\n"a,1\n', {}, "a.csv cannot be read: .*starting at row 1"),
        (
            "a.tsv",
            b"sentence\tlabel\na\t1\n\xe9t\xe9\t0\n",
            {},
            "row 3: .*byte 0xE9.*--encoding cp1252",
        ),
        ("a.csv", "caté,label\nb,1\n".encode("cp1252"), {}, "header holds the byte 0xE9"),
        ("a.jsonl", '{"text": "\\ud83d"}', {}, "half U.D83D"),
        ("a.tsv", "text\nb\n", {"encoding": "cp-0"}, "unknown encoding: cp-0"),
        ("a.tsv", with_labels("1", " "), {}, "row 3: column 'label' is empty"),
        ("a.tsv", with_labels("1", "nan"), {}, "row 3: column 'label' is not finite"),
        ("a.tsv", "x\ty\tlabel\na\tb\t1\n", {}, "unclear what is.*'x', 'y'.*--text"),
        ("a.tsv", "x\tx\na\tb\n", {"text": "x"}, "'x' is not one.*'x', 'x'"),
        ("a.csv", "text,label,label\na,b,1\n", {}, "label='label' is not one column"),
        ("a.txt", "a\x1fb\nc\n", {}, "control character"),
        ("a.tsv", labelled("a\t1"), {"label": ["label", "kind"]}, "label='kind' is not one"),
        ("a.csv", 'x,sentence\n1,a\n\n2,""\n', {}, "row 4: column 'sentence' is empty"),
        ("a.csv", f"{SEMICOLONS}c\n", {}, "separator ';' does not split all rows"),
        ("a.csv", "x;y;label\na;b;1\n", {}, "unclear what is.*'x;y;label'"),
        ("a.csv.gz", TRUNCATED, {}, "cannot be read"),
        ("a.jsonl", '{"sentence": "a"}\n\n{"sentence"\n', {}, "row 3 is not a JSON object"),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"text": "b"}', {}, "row 2: column 'label'"),
        ("a.jsonl", KINDS, {}, "strings and numbers"),
        ("a.jsonl", '{"text": "a", "label": ["x"]}', {}, "row 1: .*'x'.*a column of 0 and 1"),
        ("a.parquet", b"no parquet", {}, "a.parquet.*not a parquet file"),
        ("a.parquet", {"text": [b"cat", b"caf\xe9"]}, {}, "row 2: column 'text' .*not UTF-8"),
        ("a.parquet", {"text": ["cat", None]}, {}, "row 2: column 'text' is empty"),
        ("a.parquet", {"text": [["a"], ["b"]]}, {}, "column 'text' holds "),
    ],
)
def test_what_is_wrong_and_where(tmp_path, name, content, options, message):
    with pytest.raises(ValueError, match=message):
        load_table(write(tmp_path, name, content), **options)


FIELD = st.text("aé語,;'\"\\#-01\r\n", min_size=1)


@given(st.lists(st.tuples(FIELD, st.integers(-(2**63), 2**63 - 1)), min_size=1))
def test_csv_gives_back_what_was_written(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("table")
    with (folder / "csv.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("sentence", "label"), *rows])
    frame = pd.DataFrame(rows, columns=["sentence", "label"])
    frame.to_csv(folder / "pandas.csv", index=False)  # which quotes no CR
    for path in folder.iterdir():
        texts, labels = load_table(path)
        assert list(zip(texts, labels.tolist(), strict=True)) == rows


def zipped(data):
    with zipfile.ZipFile(file := io.BytesIO(), "w") as archive:
        archive.writestr("t", data)
    return file.getvalue()


def zstandard(data):
    sink = pa.BufferOutputStream()
    with pa.output_stream(sink, compression="zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


PACKINGS = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
PACKINGS |= {".ZIP": zipped}
if importlib.util.find_spec("zstandard"):
    PACKINGS |= {".zst": zstandard}
ROWS = [{"sentence": "a\u2028b", "label": 1}, {"label": 0, "sentence": "ü; {}"}]
FORMATS = {
    "jsonl": "\ufeff" + "\r\n\n".join(map(json.dumps, ROWS)),
    "ndjson": "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS),
    "csv": "sentence,label\na\u2028b,1\nü; {},0\n",
    "tsv": "sentence\tlabel\na\u2028b\t1\nü; {}\t0\n",
}


def test_formats_and_their_compressions(tmp_path):
    for (kind, content), (packing, pack) in itertools.product(FORMATS.items(), PACKINGS.items()):
        path = write(tmp_path, f"a.{kind}{packing}", pack(content.encode()))
        texts, labels = load_table(path)
        assert (texts, labels.tolist()) == (["a\u2028b", "ü; {}"], [1, 0]), path


QUOTED_FRAMES = [[('He said "hi", twice.', 1), ("plain", 0)], [('a\r"b"', 1), ("\rc", 0)]]
QUOTED_FRAMES += [[("two\nlines", 1), ("a\ttab", 0)]]


def test_a_tsv_file_is_read_with_quoting_if_pandas_wrote_it(tmp_path):
    for rows in QUOTED_FRAMES:
        written = pd.DataFrame(rows, columns=["text", "label"]).to_csv(index=False, sep="\t")
        for encoding in ("utf-8", "utf-16"):
            path = write(tmp_path, "a.tsv", written.encode(encoding))
            with pytest.warns(UserWarning, match="as pandas writes it"):
                texts, labels = load_table(path)
            assert list(zip(texts, labels.tolist(), strict=True)) == rows
    path = write(tmp_path, "a.tsv", labelled('"One.\t1', 'Two."\t1'))
    with pytest.warns(UserWarning, match="read as text"):  # as in GLUE
        assert load_table(path)[0] == ['"One.', 'Two."']
    for texts in (['"All."', "b"], ['5" "disk"', '"a" b'], ['"a ""b""', "c"]):
        path = write(tmp_path, "a.tsv", labelled(*(f"{text}\t1" for text in texts)))
        assert load_table(path)[0] == texts  # as in GLUE


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        ("a.csv", SEMICOLONS, {}),
        ("a.csv", "sentence;label\na, b;1\n", {}),  # a row longer than the header by commas
        ("a.csv", "sentence\tlabel\na, b\t1\n", {}),
        ("a.csv", "n|review|stars\n|a, b|1\n\n", {"text": "review", "label": "stars"}),
        ("a.csv", "review;label\na, b;1\n", {}),
        ("a.tsv", 'label,text\n1,"a, b"\n', {}),
    ],
)
def test_another_separator_is_taken_if_it_gives_the_columns(name, content, options, tmp_path):
    with pytest.warns(UserWarning, match=f"{name}: fields are separated by "):
        texts, labels = load_table(write(tmp_path, name, content), **options)
    assert (texts, labels.tolist()) == (["a, b"], [1])


@pytest.mark.filterwarnings("error")
def test_the_separator_of_the_suffix_comes_first(tmp_path):
    for content, options in (("text\na;x\nb;x\n", {}), ("a;b\na;x\nb;x\n", {"text": "a;b"})):
        assert load_table(write(tmp_path, "a.csv", content), **options)[0] == ["a;x", "b;x"]


def test_encodings(tmp_path):
    written = labelled("café\t1", "b\t0")
    for content, encoding in ((written.encode("cp1252"), "cp1252"), (written.encode(), "utf-8")):
        for name, pack in (("a.tsv", bytes), ("a.tsv.gz", gzip.compress)):
            path = write(tmp_path, name, pack(content))
            assert load_table(path, encoding=encoding)[0] == ["café", "b"]


def test_excel(tmp_path, monkeypatch):
    pytest.importorskip("openpyxl")
    rows = [("NA", 1), (None, None), (3, 0), ("a\nb", 1)]
    path = tmp_path / "a.xlsx"
    pd.DataFrame(rows, columns=[" Text", "label"]).to_excel(path, index=False)
    texts, labels = load_table(path)
    assert (texts, labels.tolist()) == (["NA", "3", "a\nb"], [1, 0, 1])
    pd.DataFrame([("a", 1), (None, 0)], columns=["text", "label"]).to_excel(path, index=False)
    with pytest.raises(ValueError, match="row 3: column 'text' is empty"):
        load_table(path)
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(ImportError, match=r"unless saved as CSV.*isoadapt\[excel\]"):
        load_table(path)


def test_the_standard_input(monkeypatch):
    line = "each line is read as a text"
    for content, texts, labels, note in (
        (labelled("a\t1", "b\t0"), ["a", "b"], [1, 0], None),
        ("label,text\n1,a\n", ["a"], [1], "separated by ','"),
        ('{"text": "a", "label": 1}\n', ["a"], [1], None),
        ("Text\na\n", ["a"], None, None),
        ("One, two.\n\nThree.\n", ["One, two.", "Three."], None, line),
    ):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content.encode())))
        silent = warnings.catch_warnings(action="error")
        with pytest.warns(UserWarning, match=note) if note else silent:
            found, values = load_table("-")
        assert (found, None if values is None else values.tolist()) == (texts, labels)


def test_a_folder_of_parquet_files_is_a_table(tmp_path):
    (tmp_path / "a.parquet").mkdir()
    for part, text in enumerate("ab"):
        write(tmp_path, f"a.parquet/part-{part}.parquet", {"text": [text], "label": [part]})
    (tmp_path / "a.parquet" / "_SUCCESS").touch()
    texts, labels = load_table(tmp_path / "a.parquet")
    assert (texts, labels.tolist()) == (["a", "b"], [0, 1])


def test_typed_columns_of_parquet(tmp_path):
    for labels in ([1, 0], [0.5, 2.25], ["good", "bad"], [True, False]):
        columns = {"sentence": ['a "tab\t', "b\nc"], "label": labels}
        texts, found = load_table(write(tmp_path, "a.parquet", columns))
        assert texts == columns["sentence"]
        assert found.tolist() == labels
        assert found.dtype.kind == np.array(labels).dtype.kind.replace("b", "i")
    values = ["the café".encode(), "été".encode()]
    binary = [pa.array(values, kind) for kind in (pa.binary(), pa.large_binary())]
    for texts in (*binary, binary[0].dictionary_encode()):
        columns = {"sentence": texts, "label": [b"good", b"bad"]}
        found, labels = load_table(write(tmp_path, "a.parquet", columns))
        assert (found, labels.tolist()) == (["the café", "été"], ["good", "bad"])
