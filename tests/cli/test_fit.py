"""Fitting adapters on the command line."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from isoadapt import AdaptedEncoder, TeacherReadout, TransformerEncoder, adapters, load_checkpoint
from isoadapt.adapters._registry import METHODS, adapter_class
from isoadapt.interop import load_adapter
from isoadapt.metrics import isoscore
from tests.cli.command_line import X, Y, refuse, run, succeed, texts_and_labels, write_table
from tests.tiny_models import WORDS, save_model

pytestmark = pytest.mark.usefixtures("fixed_penalty")


class TestMatrix:
    def test_an_adapter_without_labels(self, files):
        completed = succeed("fit", "whitening", "--on", "X.npy", "--out", "a")
        figures = re.findall(r"^(?:IsoScore|EV1) +([\d.]+) +([\d.]+)$", completed.stdout, re.M)
        (before, after), (ev1_before, ev1_after) = np.array(figures, dtype=float)
        assert before == pytest.approx(isoscore(X), abs=0.01)
        assert before < 0.1 < 0.7 < after < 1
        assert ev1_before > 2 * ev1_after
        shares = f"{ev1_after:.1%} of the variance ({ev1_before:.1%} before)."
        assert completed.stdout.startswith(f"The first direction holds {shares}")
        assert "accuracy" not in completed.stdout
        np.testing.assert_array_equal(
            load_adapter("a").transform(X), adapters.Whitening().fit_transform(X)
        )
        names = ["README.md", "adapter.skops", "isoadapt.txt"]  # no pickle
        assert sorted(path.name for path in (files / "a").iterdir()) == names
        assert "- Data: source X.npy, rows 150" in (files / "a" / "README.md").read_text()

    def test_labels_and_parameters(self, files):
        settings = ["--set=head=logistic", "--set=ridge=0.5"]
        options = ["--on", "X.npy", "--labels", "y.npy", "--out", "a"]
        completed = succeed("fit", "exact-isotropy-layer", *options, *settings)
        expected = adapters.ExactIsotropyLayer("logistic", ridge=0.5).fit(X, Y)
        loaded = load_adapter("a")
        assert loaded.get_params() == expected.get_params()
        np.testing.assert_array_equal(loaded.transform(X), expected.transform(X))
        score = re.search(r"accuracy +([\d.]+) +([\d.]+)", completed.stdout)
        assert 0.85 < float(score[2]) < expected.score(X, Y)  # cross-fitted
        verdict = f"; the accuracy is {float(score[2]):.3g} ({float(score[1]):.3g} before).\n"
        assert verdict in completed.stdout


class TestTexts:
    def test_they_take_the_head_of_the_checkpoint(self, files, place):
        options = ["--on", "texts.tsv", "--model", "my-model", "--max-length", 5, "--out", "a"]
        completed = succeed("fit", "logit-preserving-whitening", *options)
        texts, labels = texts_and_labels()
        encoder, head = load_checkpoint("my-model", max_length=5)
        loaded, rows = load_adapter("a"), encoder.transform(texts)
        np.testing.assert_array_equal(loaded.head.coef_, head.coef_)
        expected = adapters.LogitPreservingWhitening(head).fit(rows)
        np.testing.assert_array_equal(loaded.map_.matrix, expected.map_.matrix)
        score = head.score(rows, labels)
        assert re.search(rf"accuracy +{score:.4g} +{score:.4g}", completed.stdout)
        card = (files / "a" / "README.md").read_text()
        assert f"- Encoder: {place / 'my-model'}" in card
        assert "- Data: source texts.tsv, rows 60" in card
        assert "- Vectors: pooling='head_input', layer=-1, max_length=5" in card
        assert f"| accuracy | {score:.4g} | {score:.4g} |" in card
        np.save("E.npy", TransformerEncoder("my-model").transform(texts))
        options = ["--on", "E.npy", "--model", "my-model", "--out", "b"]
        succeed("fit", "logit-preserving-whitening", *options)  # to a matrix
        np.testing.assert_array_equal(load_adapter("b").head.coef_, head.coef_)


NAMES = ["bad", "good", "so-so"]
PRESERVING = "logit-preserving-whitening"
KNOWN = {"id2label": dict(enumerate(["so-so", "bad", "good"]))}
MULTI_LABEL = {"problem_type": "multi_label_classification"}


@pytest.mark.parametrize(
    ("name", "options", "labels"),
    [
        (PRESERVING, {}, NAMES),
        (PRESERVING, KNOWN, NAMES),
        ("whitening", {"num_labels": 1}, NAMES),
        (PRESERVING, MULTI_LABEL, [0, 1, 2]),
        (PRESERVING, {}, None),
        (PRESERVING, {"kind": "AutoModel"}, NAMES),
    ],
    ids=["unknown", "known", "regression", "multi-label", "no labels", "no head"],
)
def test_the_head_is_the_one_that_adapted_encoder_chooses(name, options, labels, files):
    folder = save_model(files / "model", **options)
    texts, y = texts_and_labels()
    y = None if labels is None else np.array(labels)[y]
    table = {"a": texts[::-1], "b": texts} | ({} if y is None else {"kind": y})
    pd.DataFrame(table).to_csv("t.csv", index=False)
    columns = ["--text", "b"] + ([] if y is None else ["--label", "kind"])
    completed = run("fit", name, "--on", "t.csv", "--model", "model", "--out", "a", *columns)
    try:
        expected = AdaptedEncoder(folder, adapter_class(METHODS[name])()).fit(texts, y).head_
    except ValueError as error:
        status, end = 1, f"isoadapt: {error}\n"
    else:
        status, end = 0, "\n"
    assert ((completed.code or 0), completed.stderr[-len(end) :]) == (status, end)
    if status == 0:
        found = load_adapter("a").head_
        assert repr(found) == repr(expected)
        np.testing.assert_array_equal(found.coef_, expected.coef_)


def test_own_labels_of_the_same_classes_and_a_new_head(files):
    save_model(files / "model", **KNOWN)
    texts, y = texts_and_labels()
    write_table("t.tsv", texts, np.array(["middling", "awful", "fine"])[y])
    line = ["fit", PRESERVING, "--on", "t.tsv", "--model", "model", "--out", "a", "--quiet"]
    refuse("y holds .*--class-names awful=…", *line)
    refuse("'awful': ''.* one to one, to all classes", *line, "--class-names", "awful")
    names = ["--class-names", "awful=bad, fine = good,middling=so-so"]
    assert "\nHead: the checkpoint's\n" in succeed(*line, *names).stdout
    head = load_checkpoint("model")[1]
    np.testing.assert_array_equal(load_adapter("a").head_.coef_, head.coef_)
    assert load_adapter("a").classes_.tolist() == NAMES  # as an export needs them
    new = succeed(*line, "--head", "logistic", "--overwrite").stdout
    assert "\nHead: a new one, fitted to these rows, so predictions can differ" in new
    assert load_adapter("a").classes_.tolist() == ["awful", "fine", "middling"]
    completed = succeed(*line[:-1], *names, "--overwrite", "--json")
    found = json.loads(completed.stdout)
    assert found["head"] == "checkpoint"
    assert found["notes"] == re.findall("^Note: (.*)$", completed.stderr, re.M) != []
    matrix = ["fit", PRESERVING, "--on", "X.npy", "--labels", "y.npy", "--out", "b"]
    refuse("--class-names needs --model", *matrix, *names, status=2)


@pytest.mark.filterwarnings("ignore:training ended at max_epochs")
class TestJudgedRows:
    """No figure is that of rows that the map was fitted to, unless it says so."""

    def fit(self, name, rows, *options, labels=None):
        np.save("rows.npy", rows)
        if labels is not None:
            np.save("labels.npy", labels)
            options = ("--labels", "labels.npy", *options)
        arguments = ["fit", name, "--on", "rows.npy", *options, "--out", "a", "--overwrite"]
        result = json.loads(succeed(*arguments, "--json", "--quiet").stdout)
        assert f"| before ({result['evaluated_on']}) |" in Path("a/README.md").read_text("utf-8")
        return result

    def test_a_closed_form_is_cross_fitted(self, files):
        rng = np.random.default_rng(0)
        rotation = np.linalg.qr(rng.normal(size=(8, 8)))[0] * np.geomspace(30, 0.3, 8)
        rows, fresh = (rng.normal(size=(n, 8)) @ rotation.T for n in (100, 3000))
        result = self.fit("whitening", rows, "--set", "shrinkage=0.0")
        adapter = load_adapter("a")
        assert isoscore(adapter.transform(rows), bias_corrected=True) == pytest.approx(1)
        expected = isoscore(adapter.transform(fresh), bias_corrected=True)
        printed = result["after"]["isoscore_corrected"]
        assert expected - 0.15 < printed < expected + 0.03  # a half is fewer rows to fit to
        assert result["evaluated_on"] == "cross-fitted halves"
        twice = self.fit("whitening", np.repeat(rows, 2, axis=0), "--set", "shrinkage=0.0")
        for name in ("isoscore", "ev1"):  # copies are on one side
            assert twice["after"][name] == pytest.approx(result["after"][name])

    @pytest.mark.parametrize(
        ("name", "n", "settings"),
        [
            ("istar", 7, ["--set=max_epochs=1", "--set=head=None"]),
            ("whitening", 7, ["--set=head=None"]),  # too few for two halves
            ("whitening", 30, ["--set=head=logistic"]),  # one half lacks a class
        ],
    )
    def test_otherwise_they_are_said_to_be_those_of_the_fit(self, name, n, settings, files):
        labels = Y[:n] if name == "istar" else np.arange(n) == 3
        result = self.fit(name, X[:n], *settings, labels=labels.astype(int))
        assert result["evaluated_on"] == "rows the map was fitted to"
        expected = isoscore(load_adapter("a").transform(X[:n]))
        assert result["after"]["isoscore"] == pytest.approx(expected)


rng = np.random.default_rng(1)
LINES = [" ".join(rng.choice(WORDS, size=5)) for _ in range(40)]
MODELS = ["--model", "my-model", "--teacher", "my-base"]


@pytest.fixture
def more_files(files):
    """The fixture `files`, with a file of plain texts and one of pairs."""
    (files / "lines.txt").write_text("\n".join([*LINES[:20], "", *LINES[20:]]) + "\n")
    pairs = pd.DataFrame({"sentence1": LINES[:20], "sentence2": LINES[20:], "label": "x"})
    pairs.to_csv("pairs.csv", index=False)
    return files


def fit(*arguments):
    return succeed("fit", "teacher-readout", *arguments, "--out", "a")


def test_several_files_of_texts_without_labels(more_files):
    completed = fit("--on", "pairs.csv", "lines.txt", *MODELS, "--separately")
    encoder = TransformerEncoder("my-model", pooling="readout")
    whole = AdaptedEncoder(encoder, TeacherReadout(), teacher="my-base").fit([*LINES, *LINES])
    adapter, own = load_adapter("a")[-1], whole.pipeline_["adapter"]
    np.testing.assert_array_equal(adapter.map_.matrix, own.map_.matrix)
    np.testing.assert_array_equal(adapter.head.coef_, whole.head_.coef_)
    for title, value in {"R²": whole.r2_own_, "  general": whole.r2_general_}.items():
        assert re.search(rf"^{title} +{value:.4g}$", completed.stdout, re.M)
    assert f"teacher's vectors with an R² of {whole.r2_own_:.3g}.\n" in completed.stdout
    succeed("transform", "a", "pairs.csv", "out.npy", "--separately")
    np.testing.assert_allclose(np.load("out.npy"), whole.transform(LINES), atol=1e-6)
    assert "as exported" in succeed("check", "a").stdout
    result = "width 16, from one pass and 1 layer(s) of the teacher, and are comparable "
    result += "with the teacher's.\n"
    assert f"{result}\nHead: the checkpoint's\nAdapter" in completed.stdout
    card = (more_files / "a" / "README.md").read_text()
    assert "source pairs.csv, lines.txt, rows 80, teacher my-base, pairs separately" in card
    assert f"| r2 | {whole.r2_own_:.4g} |" in card


@pytest.mark.parametrize("suffix", [".npy", ".parquet"])
def test_matrices_of_two_encoders(files, suffix):
    old, new = np.vstack([X, X + 1]), X @ np.cos(np.arange(35.0)).reshape(5, 7)
    for name, rows in {"old": old[:150], "new": new, "stored": old}.items():
        np.save(f"{name}.npy", rows)
        pd.DataFrame(rows).add_prefix("f").to_parquet(f"{name}.parquet")
    arguments = ["--on", f"old{suffix}", "--teacher", f"./new{suffix}"]
    completed = fit(*arguments)
    expected = TeacherReadout().fit(old[:150], new)
    assert re.search(rf"^R² +{expected.r2_:.4g}$", completed.stdout, re.M)
    succeed("transform", "a", f"stored{suffix}", "moved.npy")
    np.testing.assert_allclose(np.load("moved.npy"), expected.transform(old), atol=1e-6)
    Path(f"new{suffix}").unlink()
    assert f"new{suffix}" in run("fit", "teacher-readout", *arguments, "--out", "b").stderr


def test_the_folder_transforms_texts_by_the_columns_that_it_records(more_files):
    shutil.copytree("my-model", "model")
    pooled = "--teacher-layers", "0", "--general", "none"
    fit("--on", "texts.tsv", "--model", "model", *MODELS[2:], "--set", "space=head", *pooled)
    (more_files / "model").rename("moved")
    succeed("transform", "a", "lines.txt", "out.npy", "--model", "moved")
    encoder = TransformerEncoder("moved", pooling="readout")
    adapter = load_adapter("a")
    assert (adapter.space, adapter.head.n_features_in_) == ("head", 16)
    Z = adapter.transform(encoder.transform(LINES))
    np.testing.assert_array_equal(np.load("out.npy"), Z)
    head_input = TransformerEncoder("moved").transform(LINES)
    np.testing.assert_allclose(adapter.head.outputs(Z), adapter.head.outputs(head_input), atol=1e-4)
