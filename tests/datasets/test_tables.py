"""load_table: GLUE-shaped files in, texts and labels out."""

import bz2
import csv
import gzip
import io
import json
import lzma
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from isoadapt.datasets import load_table


def write(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_single_texts_with_integer_labels(tmp_path):
    texts, labels = load_table(write(tmp_path, "a.tsv", "sentence\tlabel\nOne.\t1\nTwo.\t0\n"))
    assert texts == ["One.", "Two."]
    assert labels.dtype == np.int64
    assert labels.tolist() == [1, 0]


def test_pairs_with_float_labels(tmp_path):
    content = "sentence1\tsentence2\tlabel\na\tb\t1\nc\td\t2.5\n"
    texts, labels = load_table(write(tmp_path, "a.tsv", content))
    assert texts == [("a", "b"), ("c", "d")]
    assert labels.dtype == np.float64
    assert labels.tolist() == [1.0, 2.5]


def test_other_labels_are_strings(tmp_path):
    _, labels = load_table(write(tmp_path, "a.tsv", "sentence\tlabel\na\t1\nb\tgood\n"))
    assert labels.tolist() == ["1", "good"]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["01", "1", "2"], ["01", "1", "2"]),
        (["1_0", "10", "2"], ["1_0", "10", "2"]),
        (["00.5", "0.5"], ["00.5", "0.5"]),
        (["-1", "+2", " 10"], [-1, 2, 10]),
        (["1.", ".5", "-2.5e-1", "1E2"], [1.0, 0.5, -0.25, 100.0]),
    ],
)
def test_different_names_are_not_made_equal_numbers(labels, expected, tmp_path):
    rows = "".join(f"a\t{label}\n" for label in labels)
    found = load_table(write(tmp_path, "a.tsv", f"sentence\tlabel\n{rows}"))[1]
    assert found.tolist() == expected


def test_a_quotation_mark_is_an_ordinary_character_in_tsv(tmp_path):
    texts, labels = load_table(write(tmp_path, "a.tsv", 'sentence\tlabel\n" he said\t1\nb"\t0\n'))
    assert texts == ['" he said', 'b"']
    assert len(labels) == 2


def test_a_quotation_mark_quotes_in_csv(tmp_path):
    texts, _ = load_table(write(tmp_path, "a.csv", 'sentence,label\n"a, ""b""\nc",1\nd,0\n'))
    assert texts == ['a, "b"\nc', "d"]


def test_line_ends_of_windows_and_a_byte_order_mark(tmp_path):
    texts, labels = load_table(write(tmp_path, "a.tsv", b"\xef\xbb\xbfsentence\tlabel\r\na\t1\r\n"))
    assert (texts, labels.tolist()) == (["a"], [1])


def test_columns_by_name(tmp_path):
    path = write(tmp_path, "a.csv", "id,question,answer,score\n7,q,a,0.5\n")
    texts, labels = load_table(path, text=("question", "answer"), label="score")
    assert (texts, labels.tolist()) == ([("q", "a")], [0.5])
    assert load_table(path, text="answer") == (["a"], None)


def test_a_column_called_text_holds_the_texts(tmp_path):
    content = "id,text,label\n7,One.,1\n8,Two.,0\n"
    assert load_table(write(tmp_path, "a.csv", content))[0] == ["One.", "Two."]
    content = "text,sentence,label\nx,One.,1\n"
    assert load_table(write(tmp_path, "b.csv", content))[0] == ["One."]


def test_the_only_other_column_holds_the_texts(tmp_path):
    path = write(tmp_path, "a.csv", "label,review\n1,fine\n")
    assert load_table(path)[0] == ["fine"]
    assert load_table(path, label=None) == (["fine"], None)


def test_each_line_of_a_txt_file_is_a_text(tmp_path):
    path = write(tmp_path, "a.txt", b'\xef\xbb\xbfOne\ttext.\r\n\n \n Two, "three"\nlabel')
    expected = ["One\ttext.", ' Two, "three"', "label"]
    assert load_table(path) == load_table(path, label=None) == (expected, None)
    with pytest.raises(ValueError, match="'gold' is not a column"):
        load_table(path, label="gold")
    with pytest.raises(ValueError, match="line 1: byte 0xe9 is not UTF-8"):
        load_table(write(tmp_path, "b.txt", b"\xe9t\xe9\n"))


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("a.tsv", "", {}, "is empty"),
        ("a.txt", "\n", {}, "holds no text; add"),
        ("a.tsv", "sentence\tlabel\n", {}, "header line only"),
        ("a.tsv", "sentence\tlabel\na\t1\nb\n", {}, "line 3: 1 fields, but the header has 2"),
        ("a.csv", 'sentence,label\n"a\nb",1\nc,1,2\n', {}, "line 4: 3 fields"),
        ("a.csv", 'sentence,label\n"a,1\n', {}, "line 2: .*quotation marks"),
        ("a.tsv", b"sentence\tlabel\na\t1\n\xe9t\xe9\t0\n", {}, "line 3: byte 0xe9 is not UTF-8"),
        ("a.tsv", "sentence\tlabel\na\t1\nb\t\n", {}, "line 3: the label is empty"),
        ("a.tsv", "sentence\tlabel\na\t1\n", {"label": "gold"}, "'gold' is not a column.*sentence"),
        ("a.tsv", "sentence\tlabel\na\t1\n", {"text": "body"}, "'body' is not a column.*sentence"),
        ("a.tsv", "sentence\tlabel\na\t1\n", {"text": ["a", "b", "c"]}, "names 3 columns"),
        ("a.tsv", "x\ty\tlabel\na\tb\t1\n", {}, "which hold the texts"),
        ("a.tsv", "x\tx\na\tb\n", {}, "two columns named 'x'"),
        ("a.json", "{}", {}, r"read from \.tsv and \.csv"),
        ("a.parquet.gz", b"", {}, r"suffix '\.gz'; tables are read from"),
        ("a.tsv", "sentence\tlabel\na\t1\n\t0\n", {}, "line 3: column 'sentence' is empty, a miss"),
        ("a.csv", 'x,sentence\n1,a\n\n2,""\n', {}, "line 4: column 'sentence' is empty, a miss"),
        ("a.tsv", "sentence1\tsentence2\na\t\n", {}, "line 2: column 'sentence2' is empty"),
        (
            "a.csv",
            'sentence;label\n"a, b";1\n',
            {},
            "'sentence;label' seems to be separated by a semicolon",
        ),
        ("a.csv", '"sentence";"label"\n"a, b";1\n', {}, "separated by a semicolon.*with commas"),
        ("a.csv", "sentence\tlabel\na\t1\n", {}, "separated by a tab"),
        ("a.tsv", "sentence;label\na;1\n", {}, "separated by a semicolon"),
        ("a.csv", "sentence|label\na|1\n", {}, "separated by a vertical bar"),
        ("a.tsv", "label | sentence\n1 | a\n", {}, "separated by a vertical bar"),
        ("a.csv", "sentence1|sentence2\na|b\n", {}, "separated by a vertical bar"),
        ("a.tsv", "sentence  label\na  1\n", {}, "separated by another character.*as .tsv"),
        ("a.csv", "label:sentence\n1:a\n", {}, "separated by another character"),
        ("a.csv", "sentence,label\na,1\n".encode("utf-16"), {}, "UTF-16 files.*save .* as UTF-8"),
        ("a.csv", b"sentence\n\xe9t\xe9\n", {}, "line 2: byte 0xe9 is not UTF-8 .*Latin-1"),
        ("a.csv.gz", b"sentence\na\n", {}, r"cannot be decompressed .*as the suffix \.gz"),
        ("a.csv.xz", gzip.compress(b"sentence\na\n", mtime=0), {}, "cannot be decompressed"),
        (
            "a.csv.gz",
            gzip.compress(b"sentence\n" + b"abc" * 99, mtime=0)[:-9],
            {},
            "cannot be decompressed",
        ),
        ("a.jsonl", "\n", {}, "is empty; it must have a JSON object"),
        ("a.jsonl", '{"sentence": "a"}\n\n{"sentence"\n', {}, "line 3: not a JSON object"),
        ("a.jsonl", '[{"sentence": "a"}]', {}, "line 1: not a JSON object .it holds a list"),
        ("a.jsonl", '{"sentence": "a"}\n\n{"label": 1}', {}, "row 3: column 'sentence' is empty"),
        ("a.jsonl", '{"sentence": "a", "label": 1}\n{"sentence": "b"}', {}, "line 2: the label is"),
        ("a.jsonl", '{"sentence": ["a"]}', {}, "'sentence' holds a list, but .* must be strings"),
    ],
)
def test_what_is_wrong_and_where(tmp_path, name, content, options, message):
    with pytest.raises(ValueError, match=message):
        load_table(write(tmp_path, name, content), **options)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "sentence, label\na,x\nb,y\n"),
        ("a.csv", "sentence, label\na, x\nb, y\n"),
        ("a.csv", "sentence,label\na, x\nb, y\n"),
        ("a.csv", "label, sentence\nx, a\ny, b\n"),
        ("a.csv", '"sentence", "label"\n"a", "x"\n"b", "y"\n'),
        ("a.csv", "sentence,\u00a0label\na,x \nb,y \n"),
        ("a.tsv", " sentence\tlabel \na\tx\nb\t y\n"),
    ],
)
def test_spaces_beside_the_separator_are_ignored(name, content, tmp_path):
    texts, labels = load_table(write(tmp_path, name, content))
    assert texts == ["a", "b"]
    assert labels.tolist() == ["x", "y"]


@pytest.mark.parametrize(
    "entries",
    [
        ["t.tsv", "__MACOSX/._t.tsv"],
        ["data/", "data/t.tsv", "data/.DS_Store", "__MACOSX/", "__MACOSX/data/._t.tsv"],
    ],
)
def test_what_macos_adds_to_an_archive_is_left_out(entries, tmp_path):
    with zipfile.ZipFile(tmp_path / "a.tsv.zip", "w") as archive:
        for entry in entries:
            archive.writestr(entry, "sentence\na\n" if entry in ("t.tsv", "data/t.tsv") else b"\0")
    assert load_table(tmp_path / "a.tsv.zip") == (["a"], None)


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.tsv"):
        load_table(tmp_path / "none.tsv")


FIELD = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1)


@settings(max_examples=30)
@given(st.lists(st.tuples(FIELD, st.integers(-(2**63), 2**63 - 1)), min_size=1))
def test_csv_gives_back_what_was_written(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("table") / "a.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("sentence", "label"), *rows])
    texts, labels = load_table(path)
    assert list(zip(texts, labels.tolist(), strict=True)) == rows


def zipped(data):
    with zipfile.ZipFile(file := io.BytesIO(), "w") as archive:
        archive.writestr("inside", data)
    return file.getvalue()


def zstandard(data):
    pa = pytest.importorskip("pyarrow")
    sink = pa.BufferOutputStream()
    with pa.output_stream(sink, compression="zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


PACKINGS = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
PACKINGS |= {".zip": zipped, ".ZST": zstandard}
ROWS = [{"sentence": "a\u2028b", "label": 1}, {"label": 0, "sentence": "ü; {}"}]
FORMATS = {
    "jsonl": "\ufeff" + "\r\n\n".join(map(json.dumps, ROWS)),
    "ndjson": "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS),
    "csv": "sentence,label\na\u2028b,1\nü; {},0\n",
    "tsv": "sentence\tlabel\na\u2028b\t1\nü; {}\t0\n",
}


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("name", FORMATS)
def test_formats_and_their_compressions(tmp_path, name, packing):
    path = write(tmp_path, f"a.{name}{packing}", PACKINGS[packing](FORMATS[name].encode()))
    texts, labels = load_table(path)
    assert (texts, labels.tolist()) == (["a\u2028b", "ü; {}"], [1, 0])


def test_an_empty_string_of_json_is_a_text(tmp_path):
    path = write(tmp_path, "a.jsonl", '{"sentence": "", "label": true}\n{"sentence": 3}')
    assert load_table(path, label=None)[0] == ["", "3"]


class TestColumnsOfParquet:
    def table(self, tmp_path, texts, labels=(0, 1)):
        pa = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pa.table({"sentence": texts, "label": labels}), tmp_path / "a.parquet")
        return tmp_path / "a.parquet"

    @pytest.mark.parametrize("kind", ["binary", "large_binary", "dictionary", "fixed"])
    def test_binary_columns_are_decoded(self, tmp_path, kind):
        pa = pytest.importorskip("pyarrow")
        values = ["the café".encode(), "été dog".encode()]
        size = {"fixed": len(values[0])}.get(kind, -1)
        texts = pa.array(values, pa.large_binary() if kind == "large_binary" else pa.binary(size))
        texts = texts.dictionary_encode() if kind == "dictionary" else texts
        labels = pa.array([b"good", b"bad"])
        found, classes = load_table(self.table(tmp_path, texts, labels))
        assert found == ["the café", "été dog"]
        assert classes.tolist() == ["good", "bad"]

    def test_bytes_that_are_not_utf8_name_the_row(self, tmp_path):
        path = self.table(tmp_path, [b"the cat", b"caf\xe9"])
        with pytest.raises(ValueError, match=r"row 2: column 'sentence' .*0xe9 at position 3"):
            load_table(path)

    @pytest.mark.parametrize("texts", [["the cat", None], [1.5, float("nan")], [b"the cat", None]])
    def test_missing_texts_name_the_row(self, tmp_path, texts):
        path = self.table(tmp_path, texts)
        with pytest.raises(ValueError, match="row 2: column 'sentence' is empty; drop"):
            load_table(path)

    def test_lists_are_not_texts(self, tmp_path):
        path = self.table(tmp_path, [["a"], ["b"]])
        with pytest.raises(ValueError, match=r"'sentence' holds a list, but .* must be strings"):
            load_table(path)
