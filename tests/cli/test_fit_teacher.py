"""Fitting a TeacherReadout to texts on the command line, and its use from a folder."""

import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest

from isoadapt import AdaptedEncoder, TeacherReadout, TransformerEncoder
from isoadapt.interop import load_adapter
from tests.cli.command_line import fail, run, succeed, texts_and_labels
from tests.tiny_models import WORDS, make_model, make_tokenizer, save_model

rng = np.random.default_rng(1)
LINES = [" ".join(rng.choice(WORDS, size=5)) for _ in range(40)]


@pytest.fixture
def place(files, checkpoint):
    """The fixture `files`, with a file of plain texts, a classifier and its teacher."""
    (files / "lines.txt").write_text("\n".join([*LINES[:20], "", *LINES[20:]]) + "\n")
    shutil.copytree(checkpoint, files / "model")
    make_model().bert.save_pretrained(files / "base")
    make_tokenizer().save_pretrained(files / "base")
    return files


MODELS = ["--model", "model", "--teacher", "base", "--out", "a"]


def expected(texts, **parameters):
    encoder = TransformerEncoder("model", pooling="readout")
    return AdaptedEncoder(encoder, TeacherReadout(**parameters), teacher="base").fit(texts)


def test_several_files_of_texts_without_labels(place):
    completed = succeed("fit", "teacher-readout", "--on", "texts.tsv", "lines.txt", *MODELS)
    whole = expected([*texts_and_labels()[0], *LINES])
    adapter, own = load_adapter("a"), whole.pipeline_["adapter"]
    np.testing.assert_array_equal(adapter.map_.matrix, own.map_.matrix)
    np.testing.assert_array_equal(adapter.head.coef_, whole.head_.coef_)
    assert re.search(rf"^R² +{adapter.r2_:.4g}$", completed.stdout, re.M)
    result = "width 16, from 80 columns of one pass, and are comparable with the teacher's.\n"
    assert f"{result}The classifier's predictions stay as they are.\n\nAdapter" in completed.stdout
    assert "Adapter: a" in completed.stdout
    card = (place / "a" / "README.md").read_text()
    assert "- Data: source texts.tsv, lines.txt, rows 130, teacher base" in card
    assert f"| r2 | {adapter.r2_:.4g} |" in card


def test_the_folder_transforms_texts_by_the_columns_that_it_records(place):
    succeed("fit", "teacher-readout", "--on", "texts.tsv", *MODELS, "--set", "space=head")
    shutil.rmtree("base")
    succeed("transform", "a", "lines.txt", "out.npy")
    encoder = TransformerEncoder("model", pooling="readout")
    adapter = load_adapter("a")
    assert (adapter.space, adapter.head.n_features_in_) == ("head", 16)
    Z = adapter.transform(encoder.transform(LINES))
    np.testing.assert_array_equal(np.load("out.npy"), Z)
    head_input = TransformerEncoder("model").transform(LINES)
    np.testing.assert_allclose(adapter.head.outputs(Z), adapter.head.outputs(head_input), atol=1e-4)
    (place / "model").rename("moved")
    succeed("transform", "a", "lines.txt", "moved.npy", "--model", "moved")
    np.testing.assert_array_equal(np.load("moved.npy"), Z)
    np.save("X.npy", encoder.set_params(model="moved").transform(LINES))
    succeed("transform", "a", "X.npy", "matrix.npy")
    np.testing.assert_array_equal(np.load("matrix.npy"), Z)
    save_model(place / "other", hidden_act="relu")
    assert "another checkpoint" in fail("transform", "a", "lines.txt", "b.npy", "--model", "other")


def test_settings_json_and_labels_of_any_kind(place):
    table = pd.DataFrame({"text": LINES, "kind": [f"kind {i % 7}" for i in range(40)]})
    table.to_parquet("texts.parquet")
    options = ["--label", "kind", "--json", "--quiet", "--set", "ridge=0.5", "head=None"]
    arguments = ["--on", "lines.txt", "--on", "texts.parquet", *MODELS, *options]
    result = json.loads(succeed("fit", *arguments, "teacher-readout").stdout)
    adapter = load_adapter("a")
    assert result["after"] == {"r2": adapter.r2_}
    assert (result["rows"], result["evaluated_on"]) == (80, "held-out folds")
    assert (adapter.ridge_, adapter.head_) == (0.5, None)


def test_texts_of_pairs_each_alone(place):
    pairs = pd.DataFrame({"sentence1": LINES[:20], "sentence2": LINES[20:], "label": "x"})
    pairs.to_csv("pairs.csv", index=False)
    files = ["--on", "pairs.csv", "lines.txt"]
    assert "--separately" in fail("fit", "teacher-readout", *files, *MODELS)
    succeed("fit", "teacher-readout", *files, *MODELS, "--separately")
    whole = expected([*LINES, *LINES])
    np.testing.assert_array_equal(load_adapter("a").map_.matrix, whole.pipeline_["adapter"].map_[0])
    options = ["--separately", "--max-length", "4", "--overwrite"]
    succeed("fit", "teacher-readout", "--on", "pairs.csv", *MODELS, *options)
    assert load_adapter("a").n_features_in_ == 80


def test_a_low_r2_is_a_note(place):
    save_model(place / "other", hidden_size=24, kind="AutoModel")
    arguments = ["--model", "model", "--teacher", "other", "--out", "a"]
    completed = succeed("fit", "teacher-readout", "--on", "lines.txt", *arguments)
    assert "Note: R² of the teacher's vectors is" in completed.stderr
    assert load_adapter("a").map_.n_features_out == 24


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["teacher-readout", "--on", "texts.tsv", "--model", "model"], "needs .* and --teacher"),
        (["teacher-readout", "--on", "texts.tsv", "--teacher", "base"], "needs --model"),
        (["teacher-readout", "--on", "X.npy", *MODELS[:4]], "'X.npy' is a matrix"),
        (["whitening", "--on", "texts.tsv", *MODELS[:4]], "--teacher is for teacher-readout, not"),
        (["whitening", "--on", "a.tsv", "b.tsv", "--model", "model"], "several files after --on"),
        (["teacher", "--on", "texts.tsv", *MODELS[:4]], "did you mean 'teacher-readout'"),
        (["teacher-readout", "--on", "lines.txt", *MODELS[:4], "--set", "space=x"], "'space'"),
    ],
)
def test_wrong_usage_is_one_line(arguments, message, place):
    completed = run("fit", *arguments, "--out", "a")
    assert completed.code == 2
    assert re.search(message, completed.stderr.rstrip("\n").split("\n")[-1])
    assert not (place / "a").exists()


def test_failures_are_one_line(place):
    (place / "empty.txt").write_text("\n \n")
    options = ["--on", "texts.tsv", "empty.txt", *MODELS]
    assert "empty.txt holds no text" in fail("fit", "teacher-readout", *options)
    assert "absent" in fail("fit", "teacher-readout", "--on", "absent.txt", *MODELS)
    (place / "one.txt").write_text("the cat\n")
    assert "1 row" in fail("fit", "teacher-readout", "--on", "one.txt", *MODELS)
    assert not (place / "a").exists()


def test_comparisons_take_no_adapter_that_needs_a_teacher(place):
    arguments = ["--model", "model", "--encoder-unseen", "--adapters", "teacher-readout"]
    message = fail("compare", "texts.tsv", *arguments)
    assert "'teacher-readout' is not the name of an adapter" in message
