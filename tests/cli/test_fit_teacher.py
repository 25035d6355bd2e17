"""Fitting a TeacherReadout to texts on the command line, and its use from a folder."""

import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest

from isoadapt import AdaptedEncoder, TeacherReadout, TransformerEncoder
from isoadapt.interop import load_adapter
from tests.cli.command_line import refuse, succeed, texts_and_labels
from tests.tiny_models import WORDS, save_model

rng = np.random.default_rng(1)
LINES = [" ".join(rng.choice(WORDS, size=5)) for _ in range(40)]
MODELS = ["--model", "my-model", "--teacher", "my-base"]


@pytest.fixture
def place(files):
    """The fixture `files`, with a file of plain texts and one of pairs."""
    (files / "lines.txt").write_text("\n".join([*LINES[:20], "", *LINES[20:]]) + "\n")
    pairs = pd.DataFrame({"sentence1": LINES[:20], "sentence2": LINES[20:], "label": "x"})
    pairs.to_csv("pairs.csv", index=False)
    return files


def fit(*arguments):
    return succeed("fit", "teacher-readout", *arguments, "--out", "a")


def expected(texts):
    encoder = TransformerEncoder("my-model", pooling="readout")
    return AdaptedEncoder(encoder, TeacherReadout(), teacher="my-base").fit(texts)


def test_several_files_of_texts_without_labels(place):
    completed = fit("--on", "texts.tsv", "lines.txt", *MODELS)
    whole = expected([*texts_and_labels()[0], *LINES])
    adapter, own = load_adapter("a"), whole.pipeline_["adapter"]
    np.testing.assert_array_equal(adapter.map_.matrix, own.map_.matrix)
    np.testing.assert_array_equal(adapter.head.coef_, whole.head_.coef_)
    assert re.search(rf"^R² +{adapter.r2_:.4g}$", completed.stdout, re.M)
    result = "width 16, from 80 columns of one pass, and are comparable with the teacher's.\n"
    assert f"{result}The classifier's predictions stay as they are.\n\nAdapter" in completed.stdout
    card = (place / "a" / "README.md").read_text()
    assert "- Data: source texts.tsv, lines.txt, rows 100, teacher my-base" in card
    assert f"| r2 | {adapter.r2_:.4g} |" in card


def test_the_folder_transforms_texts_by_the_columns_that_it_records(place):
    shutil.copytree("my-model", "model")
    fit("--on", "texts.tsv", "--model", "model", *MODELS[2:], "--set", "space=head")
    (place / "model").rename("moved")
    succeed("transform", "a", "lines.txt", "out.npy", "--model", "moved")
    encoder = TransformerEncoder("moved", pooling="readout")
    adapter = load_adapter("a")
    assert (adapter.space, adapter.head.n_features_in_) == ("head", 16)
    Z = adapter.transform(encoder.transform(LINES))
    np.testing.assert_array_equal(np.load("out.npy"), Z)
    head_input = TransformerEncoder("moved").transform(LINES)
    np.testing.assert_allclose(adapter.head.outputs(Z), adapter.head.outputs(head_input), atol=1e-4)
    np.save("E.npy", encoder.transform(LINES))
    succeed("transform", "a", "E.npy", "matrix.npy")
    np.testing.assert_array_equal(np.load("matrix.npy"), Z)
    save_model(place / "other", hidden_act="relu")
    arguments = ["lines.txt", "b.npy", "--model", "other"]
    refuse("another checkpoint", "transform", "a", *arguments)


def test_settings_json_and_labels_of_any_kind(place):
    table = pd.DataFrame({"text": LINES, "kind": [f"kind {i % 7}" for i in range(40)]})
    table.to_parquet("texts.parquet")
    files = ["--on", "lines.txt", "--on", "texts.parquet", "--label", "kind"]
    settings = ["--set", "ridge=0.5", "head=None"]
    result = json.loads(fit(*files, *MODELS, "--json", "--quiet", *settings).stdout)
    adapter = load_adapter("a")
    assert result["after"] == {"r2": adapter.r2_}
    assert (result["rows"], result["evaluated_on"]) == (80, "held-out folds")
    assert (adapter.ridge_, adapter.head_) == (0.5, None)


def test_texts_of_pairs_each_alone(place):
    fit("--on", "pairs.csv", "lines.txt", *MODELS, "--separately")
    own = expected([*LINES, *LINES]).pipeline_["adapter"]
    np.testing.assert_array_equal(load_adapter("a").map_.matrix, own.map_.matrix)


READOUT = ["teacher-readout", "--on"]


@pytest.mark.parametrize(
    ("status", "word", "arguments"),
    [
        (2, "--teacher", [*READOUT, "texts.tsv", *MODELS[:2]]),
        (2, "--model", [*READOUT, "texts.tsv", *MODELS[2:]]),
        (2, "'X.npy' is a matrix", [*READOUT, "X.npy", *MODELS]),
        (2, "--teacher is for teacher-readout", ["whitening", "--on", "texts.tsv", *MODELS]),
        (2, "--on", ["whitening", "--on", "a.tsv", "b.tsv", *MODELS[:2]]),
        (2, "'space'", [*READOUT, "lines.txt", *MODELS, "--set", "space=x"]),
        (2, "--separately", [*READOUT, "pairs.csv", "lines.txt", *MODELS]),
        (1, "empty.txt holds no text", [*READOUT, "texts.tsv", "empty.txt", *MODELS]),
        (1, "absent", [*READOUT, "absent.txt", *MODELS]),
        (1, "1 row", [*READOUT, "one.txt", *MODELS]),
    ],
)
def test_refusals(status, word, arguments, place):
    (place / "empty.txt").write_text("\n \n")
    (place / "one.txt").write_text("the cat\n")
    refuse(word, "fit", *arguments, "--out", "a", status=status)
