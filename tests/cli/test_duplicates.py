"""Near-duplicates of a table, and search in it, on the command line."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics.pairwise import cosine_similarity

from isoadapt import TransformerEncoder
from isoadapt.metrics import find_duplicates
from tests.cli.command_line import refuse, succeed, texts_and_labels

DUPLICATES = ["duplicates", "texts.tsv", "--model", "my-model", "--false-pairs", 40]


def test_duplicates_are_printed_and_written_with_their_texts_and_row_numbers(files):
    texts, _ = texts_and_labels()
    found = find_duplicates(TransformerEncoder("my-model").transform(texts), false_pairs=40)
    result = json.loads(succeed(*DUPLICATES, "--out", "found.tsv", "--json").stdout)
    assert result["threshold"] == pytest.approx(found.threshold, abs=1e-6)
    assert (result["n_texts"], result["n_copies"], result["file"]) == (60, 0, "found.tsv")
    table = pd.read_csv("found.tsv", sep="\t")
    assert len(table) > 10
    np.testing.assert_array_equal(table[["row1", "row2"]], found.pairs + 1)
    assert table.to_dict("records") == [pytest.approx(each) for each in result["pairs"]]
    first = found.pairs[0].tolist()
    assert table.loc[0, ["text1", "text2"]].tolist() == [texts[row] for row in first]
    lines = succeed(*DUPLICATES).stdout.splitlines()
    assert lines[0].split("  ") == [f"{found.cosines[0]:.4f}", f"{first[0] + 1}: {texts[first[0]]}"]
    assert lines[20] == f"... and {len(table) - 10} more, which --out FILE writes"
    assert lines[21].startswith(f"Pairs: {len(table)} above the cosine {found.threshold:.4f}")
    refuse("'found.tsv' exists.*--overwrite", *DUPLICATES, "--out", "found.tsv")
    succeed(*DUPLICATES, "--out", "found.tsv", "--overwrite")


def test_the_closest_pairs_are_printed_if_none_is_above_the_threshold(files):
    texts, _ = texts_and_labels()
    X = TransformerEncoder("my-model").transform(texts)
    cosines = np.sort(cosine_similarity(X)[np.triu_indices(60, 1)])[::-1]
    found = find_duplicates(X, false_pairs=1e-9)
    assert len(found.pairs) == 0
    head, *lines = succeed(*DUPLICATES[:-1], 1e-9).stdout.splitlines()
    assert head == "The closest pairs, below the threshold (--false-pairs lowers it):"
    shown = [float(line.split("  ")[0]) for line in lines[:10:2]]
    assert shown == pytest.approx(cosines[:5], abs=1e-4)
    assert lines[10].startswith("Pairs: 0 above the cosine")


def test_duplicates_of_pairs_and_of_both_columns(files):
    options = ["duplicates", "pairs.tsv", "--model", "my-model", "--json"]
    assert json.loads(succeed(*options).stdout)["n_texts"] == 90
    texts = pd.read_csv("pairs.tsv", sep="\t")[["sentence1", "sentence2"]].to_numpy()
    result = json.loads(succeed(*options, "--false-pairs", 40).stdout)["pairs"][0]
    assert result["text1"] == " / ".join(texts[result["row1"] - 1])
    assert json.loads(succeed(*options, "--separately").stdout)["n_texts"] == 180


def test_search_prints_the_nearest_texts(files):
    texts, _ = texts_and_labels()
    encoder = TransformerEncoder("my-model")
    cosines = cosine_similarity(encoder.transform(["a cat"]), encoder.transform(texts))[0]
    options = ["search", "texts.tsv", "a cat", "--model", "my-model"]
    nearest = json.loads(succeed(*options, "--json").stdout)["nearest"]
    order = np.argsort(-cosines, kind="stable")[:5]
    assert [each["row"] for each in nearest] == (order + 1).tolist()
    assert [each["text"] for each in nearest] == [texts[row] for row in order]
    assert [each["cosine"] for each in nearest] == pytest.approx(cosines[order], abs=1e-6)
    first = f"{cosines[order[0]]:.4f}  {order[0] + 1}: {texts[order[0]]}\n"
    assert succeed(*options).stdout.startswith(first)
    succeed("search", "texts.tsv", "a cat " * 99, "--model", "my-model")  # no name of a file


def test_an_exported_folder_gives_its_repaired_vectors(files):
    pytest.importorskip("sentence_transformers")
    succeed("export", "my-adapter", "--model", "my-model", "--out", "my-exported")
    encoder = TransformerEncoder("my-exported", pooling="exported")
    texts, _ = texts_and_labels()
    cosines = cosine_similarity(encoder.transform(["a cat"]), encoder.transform(texts))[0]
    options = ["search", "texts.tsv", "a cat", "--model", "my-exported", "--json", "--quiet"]
    found = [each["cosine"] for each in json.loads(succeed(*options).stdout)["nearest"]]
    assert found == pytest.approx(np.sort(cosines)[:-6:-1], abs=1e-6)


def test_an_exported_readout_gives_the_vectors_of_the_teachers_layer(files):
    library = pytest.importorskip("sentence_transformers")
    fit = ["fit", "teacher-readout", "--on", "texts.tsv", "--model", "my-model"]
    succeed(*fit, "--teacher", "my-model", "--general", "none", "--out", "my-readout")
    succeed("export", "my-readout", "--model", "my-model", "--out", "served")
    model = library.SentenceTransformer("served", trust_remote_code=True, device="cpu")
    texts, _ = texts_and_labels()
    cosines = cosine_similarity(model.encode(["a cat"]), model.encode(texts))[0]
    options = ["search", "texts.tsv", "a cat", "--model", "served", "--json", "--quiet"]
    found = [each["cosine"] for each in json.loads(succeed(*options).stdout)["nearest"]]
    assert found == pytest.approx(np.sort(cosines)[:-6:-1], abs=1e-5)
    Path("served", "isoadapt_readout.py").write_text("raise SystemExit")
    refuse("not the isoadapt_readout.py that this version of isoadapt writes", *options)
