"""Fitting adapters on the command line."""

import json
import re
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from isoadapt import (
    AdaptedEncoder,
    IsotropyLayer,
    LinearHead,
    LogitPreservingWhitening,
    TransformerEncoder,
    Whitening,
    cli,
    load_checkpoint,
)
from isoadapt.adapters._registry import ADAPTERS, METHODS, NAMES
from isoadapt.cli._fit import _judge
from isoadapt.interop import load_adapter
from isoadapt.metrics import isoscore
from tests.cli.command_line import X, Y, fail, run, succeed, texts_and_labels
from tests.tiny_models import save_model


@pytest.mark.usefixtures("fixed_penalty")
class TestFit:
    def test_a_matrix(self, files):
        completed = succeed("fit", "whitening", "--on", "X.npy", "--out", "a")
        figures = re.findall(r"^(?:IsoScore|EV1) +([\d.]+) +([\d.]+)$", completed.stdout, re.M)
        (before, after), (ev1_before, ev1_after) = np.array(figures, dtype=float)
        assert before == pytest.approx(isoscore(X), abs=0.01)
        assert before < 0.1 < 0.7 < after < 1
        assert ev1_before > 2 * ev1_after
        assert "accuracy" not in completed.stdout
        expected = Whitening().fit(X)
        np.testing.assert_array_equal(load_adapter("a").transform(X), expected.transform(X))

    def test_a_single_text(self, files, checkpoint):
        (files / "one.tsv").write_text("sentence\tlabel\nthe cat sat\t0\n")
        for command in (
            ["fit", "whitening", "--model", checkpoint, "--on", "one.tsv", "--out", "a"],
            ["audit", checkpoint, "one.tsv"],
        ):
            assert re.search("one.tsv holds 1 row.*at least 2", fail(*command))
        assert not (files / "a").exists()

    @pytest.mark.parametrize("name", ["one.npy", "one.parquet"])
    def test_a_matrix_of_one_row(self, name, files):
        np.save("one.npy", X[:1])
        pd.DataFrame({f"f{i}": X[:1, i] for i in range(5)}).to_parquet("one.parquet")
        for arguments in (["fit", "whitening", "--on", name, "--out", "a"], ["audit", name]):
            assert f"{name} holds 1 row" in fail(*arguments)

    def test_labels_and_parameters(self, files):
        settings = ["--set", "head=logistic", "--set", "solver=exact", "--set", "ridge=0.5"]
        options = ["--on", "X.npy", "--labels", "y.npy", "--out", "a"]
        completed = succeed("fit", "isotropy-layer", *options, *settings)
        expected = IsotropyLayer("logistic", solver="exact", ridge=0.5).fit(X, Y)
        loaded = load_adapter("a")
        assert loaded.get_params() == expected.get_params()
        np.testing.assert_array_equal(loaded.transform(X), expected.transform(X))
        score = re.search(r"accuracy +([\d.]+) +([\d.]+)", completed.stdout)
        assert 0.9 < float(score[2]) < expected.score(X, Y)  # cross-fitted

    def test_parquet_keeps_the_names(self, files):
        options = ["--on", "X.parquet", "--out", "a", "--set", "head=ridge"]
        completed = succeed("fit", "whitening", *options)
        assert re.search(r"R² +-?[\d.]+ +-?[\d.]+", completed.stdout)
        loaded = load_adapter("a")
        assert loaded.feature_names_in_.tolist() == [f"f{i}" for i in range(5)]
        np.testing.assert_array_equal(loaded.map_.matrix, Whitening().fit(X).map_.matrix)

    def test_texts_take_the_checkpoints_head(self, files, checkpoint):
        options = ["--on", "texts.tsv", "--model", checkpoint, "--max-length", 5, "--out", "a"]
        completed = succeed("fit", "logit-preserving-whitening", *options)
        texts, labels = texts_and_labels()
        encoder, head = load_checkpoint(checkpoint, max_length=5)
        loaded = load_adapter("a")
        np.testing.assert_array_equal(loaded.head.coef_, head.coef_)
        score = head.score(encoder.transform(texts), labels)
        assert re.search(rf"accuracy +{score:.4f} +{score:.4f}", completed.stdout)
        card = (files / "a" / "README.md").read_text()
        assert f"- Base model: {checkpoint}" in card
        assert "- Data: source texts.tsv, rows 90, max_length 5" in card
        assert f"| accuracy | {score:.4g} | {score:.4g} |" in card

    def test_a_head_that_is_set_goes_before_the_checkpoints(self, files, checkpoint):
        options = ["--on", "texts.tsv", "--model", checkpoint, "--out", "a"]
        succeed("fit", "all-but-the-top", *options, "--set", "head=None")
        assert load_adapter("a").head_ is None
        succeed("fit", "all-but-the-top", *options, "--set", "head=logistic", "--overwrite")
        assert load_adapter("a").head == "logistic"
        assert "not empty" in fail("fit", "all-but-the-top", *options)

    def test_a_multi_label_head_is_replaced_or_preserved_and_not_scored(self, files):
        save_model(files / "many", problem_type="multi_label_classification")
        options = ["--on", "texts.tsv", "--model", "many", "--out", "a"]
        warned = succeed("fit", "isotropy-layer", *options).stderr
        assert "it knows an indicator matrix of [0, 1, 2]" in " ".join(warned.split())
        succeed("fit", "isotropy-layer", *options, "--set", "head=None", "--overwrite")
        completed = succeed("fit", "logit-preserving-whitening", *options, "--overwrite")
        assert re.search(r"IsoScore +[\d.]+ +[\d.]+", completed.stdout)
        assert not re.search("accuracy|R²", completed.stdout)
        succeed("merge", "a", "many", "merged")
        config = json.loads((files / "merged" / "config.json").read_text())
        assert config["problem_type"] == "multi_label_classification"

    @pytest.mark.parametrize("name", ["texts.parquet", "texts.jsonl.gz"])
    def test_texts_from_parquet_and_json(self, name, files, checkpoint):
        texts, labels = texts_and_labels()
        table = pd.DataFrame({"text": texts, "kind": labels})
        table.to_parquet("texts.parquet")
        table.to_json("texts.jsonl.gz", orient="records", lines=True, compression="gzip")
        options = ["--model", checkpoint, "--label", "kind", "--out", "a", "--set", "beta=1"]
        succeed("fit", "isobn", "--on", name, *options)
        assert load_adapter("a").beta == 1
        assert load_adapter("a").classes_.tolist() == [0, 1, 2]

    def test_a_matrix_may_take_the_head_of_a_model(self, files, checkpoint):
        texts, _ = texts_and_labels()
        np.save("E.npy", TransformerEncoder(checkpoint).transform(texts))
        options = ["--on", "E.npy", "--model", checkpoint, "--out", "a"]
        succeed("fit", "logit-preserving-whitening", *options)
        head = load_checkpoint(checkpoint)[1]
        np.testing.assert_array_equal(load_adapter("a").head.coef_, head.coef_)

    def test_warnings_are_notes(self, files):
        np.save("few.npy", X[:12])
        completed = succeed("fit", "whitening", "--on", "few.npy", "--out", "a")
        assert "Note: n_samples=6 is less than 15 = 3 × n_features" in completed.stderr  # a half

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["nonsense", "--on", "X.npy"], "'nonsense' is not .*; choose from isotropy-layer, "),
            (["Whitening", "--on", "X.npy"], "did you mean 'whitening'"),
            (["spectrum", "--on", "X.npy"], "did you mean 'spectrum-control'"),
            (["TopologicalEntropyAdapter", "--on", "X.npy"], "you mean 'topological-entropy'"),
            (["whitening", "--on", "absent.npy"], "absent.npy"),
            (
                ["whitening", "--on", "X.npy", "--set", "lam=1"],
                r"names head, head_training, method",
            ),
            (["whitening", "--on", "X.npy", "--set", "method"], "takes name=value"),
            (["whitening", "--on", "X.npy", "--set", "method=ica"], "'method' parameter"),
            (["whitening", "--on", "X.npy", "--set", "strength=two"], "'strength' parameter"),
            (["isotropy-layer", "--on", "X.npy"], "needs labels, and X.npy has none"),
            (
                ["logit-preserving-whitening", "--on", "X.npy"],
                "needs labels, and X.npy has none: .*, or name the classifier with --model",
            ),
            (["whitening", "--on", "X.npy", "--label", "y"], "use --labels y.npy"),
            (["whitening", "--on", "texts.tsv"], "needs --model"),
            (["whitening", "--on", "texts.tsv", "--labels", "y.npy"], "--label"),
            (["whitening", "--on", "X.parquet", "--label", "f9"], "'f9' is not a column"),
        ],
    )
    def test_errors_are_one_line(self, arguments, message, files):
        assert re.search(message, fail("fit", *arguments, "--out", "a"))
        assert not (files / "a").exists()


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
        assert expected == pytest.approx(0.9, abs=0.03)
        printed = result["after"]["isoscore_corrected"]
        assert expected - 0.15 < printed < expected + 0.03  # a half is fewer rows to fit to
        assert result["evaluated_on"] == "cross-fitted halves"
        twice = self.fit("whitening", np.repeat(rows, 2, axis=0), "--set", "shrinkage=0.0")
        for name in ("isoscore", "isoscore_corrected", "ev1"):  # copies are on one side
            assert twice["after"][name] == pytest.approx(result["after"][name])

    @pytest.mark.filterwarnings("ignore:n_samples=")
    def test_few_rows_of_a_real_encoder(self, files, shared):
        data = np.load(shared / "embeddings" / "cola.npz")
        head = LinearHead(data["W"], data["b"], [0, 1])
        adapter = LogitPreservingWhitening(head).fit(data["E_train"][:400])
        kind, figures = _judge(adapter, data["E_train"][:400], data["y_train"][:400])
        dev = isoscore(adapter.transform(data["E_dev"]), bias_corrected=True)
        assert kind == "cross-fitted halves"
        assert figures["after"]["isoscore_corrected"] == pytest.approx(dev, abs=0.1)
        assert figures["after"]["accuracy"] == head.score(
            data["E_train"][:400], data["y_train"][:400]
        )

    @pytest.mark.filterwarnings("ignore:training ended at max_epochs")
    def test_a_trained_adapter_is_judged_on_validation_rows(self, files):
        settings = ["--set", "head=None", "max_epochs=2"]
        result = self.fit("isotropy-layer", X, *settings)
        adapter = load_adapter("a")
        held = X[adapter._recognise(X) == 0]
        assert len(held) == round(0.3 * len(X))
        assert result["evaluated_on"] == "validation rows"
        for name, rows in (("before", held), ("after", adapter.transform(held))):
            assert result[name]["isoscore"] == pytest.approx(isoscore(rows))

    @pytest.mark.filterwarnings("ignore:training ended at max_epochs")
    @pytest.mark.parametrize(
        ("name", "n", "settings"),
        [
            ("istar", 40, ["max_epochs=1"]),  # fitted again, to all rows
            ("istar", 150, ["validation_fraction=None", "max_epochs=1"]),
            ("whitening", 7, ["head=None"]),  # too few for two halves
            ("whitening", 30, ["head=logistic"]),  # one half lacks a class
        ],
    )
    def test_otherwise_the_figures_say_that_the_rows_are_those_of_the_fit(
        self, name, n, settings, files
    ):
        labels = Y[:n] if name == "istar" else np.arange(n) == 3
        result = self.fit(name, X[:n], "--set", *settings, labels=labels.astype(int))
        assert result["evaluated_on"] == "rows the map was fitted to"
        expected = isoscore(load_adapter("a").transform(X[:n]))
        assert result["after"]["isoscore"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.25", 0.25),
        ("1e-1", 0.1),
        ("1", 1),
        ("oas", "oas"),
        ('"oas"', "oas"),
        ("'oas'", "oas"),
        (" 0.5 ", 0.5),
    ],
)
def test_values_of_parameters(text, value, files):
    succeed("fit", "whitening", "--on", "X.npy", "--out", "a", "--set", f"shrinkage={text}")
    found = load_adapter("a").shrinkage
    assert found == value
    assert type(found) is type(value)


def test_the_folder_of_the_command_line_has_no_pickle(files):
    succeed("fit", "whitening", "--on", "X.npy", "--out", "a")
    names = ["README.md", "adapter.safetensors", "config.json", "isoadapt.txt"]
    assert sorted(path.name for path in (files / "a").iterdir()) == names
    config = json.loads((files / "a" / "config.json").read_text())
    assert config["data"] == {"type": "dict", "items": {"source": "X.npy", "rows": 150}}


def test_help_names_every_adapter():
    help_text = CliRunner().invoke(cli.app, ["fit", "--help"], env={"COLUMNS": "400"}).output
    assert all(name in help_text for name in NAMES)


def test_labels_are_not_optional_where_a_head_is_not(tmp_path):
    np.save(tmp_path / "X.npy", X)
    for name, hint in (("whitening", None), ("istar", True), ("logit-preserving-whitening", False)):
        arguments = ["fit", name, "--on", tmp_path / "X.npy", "--out", tmp_path / name]
        if hint is None:
            succeed(*arguments)
        else:
            assert ("--set head=None" in fail(*arguments)) == hint


def test_labels_in_one_column(tmp_path):
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", Y[:, None])
    matrix = ["--on", tmp_path / "X.npy", "--labels", tmp_path / "y.npy"]
    succeed("fit", "istar", *matrix, "--set", "max_epochs=1", "--out", tmp_path / "a")
    assert load_adapter(tmp_path / "a").classes_.tolist() == [0, 1]


def test_fit_takes_several_settings_after_one_flag(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("X.npy", np.random.default_rng(0).normal(size=(60, 4)))
    line = "fit --set strength=0.5 shrinkage=0.1 --on X.npy whitening --set n_components=3 --out a"
    stderr = succeed(*line.split()).stderr
    for setting in ("strength=0.5", "shrinkage=0.1", "n_components=3"):
        assert setting in stderr


WORDS_FOR_LABELS = ["bad", "good", "so-so"]
KINDS = {
    "numbers that it knows": ({}, [0, 1, 2]),
    "words": ({}, WORDS_FOR_LABELS),
    "a regression head": ({"num_labels": 1}, [-1.5, 0.5, 2.0]),
    "a regression head and words": ({"num_labels": 1}, WORDS_FOR_LABELS),
    "a multi-label head": ({"problem_type": "multi_label_classification"}, [0, 1, 2]),
    "no labels": ({}, None),
    "no head": ({"kind": "AutoModel"}, WORDS_FOR_LABELS),
}


@pytest.mark.parametrize(
    "name",
    ["whitening", "logit-preserving-whitening", pytest.param("istar", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("fixed_penalty")
def test_the_head_is_the_one_that_adapted_encoder_chooses(kind, name, files):
    options, labels = KINDS[kind]
    folder = save_model(files / "model", **options)
    texts, y = texts_and_labels()
    table, arguments = pd.DataFrame({"text": texts}), ["--on", "t.tsv", "--model", "model"]
    if labels is not None:
        table["label"] = y = np.array(labels)[y]
    table.to_csv("t.tsv", sep="\t", index=False)
    adapter = ADAPTERS[METHODS[name]]()
    if name == "istar":
        adapter.set_params(max_epochs=1, random_state=0)
        arguments += ["--set", "max_epochs=1", "random_state=0"]
    completed = run("fit", name, *arguments, "--out", "a")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            model = AdaptedEncoder(folder, adapter).fit(texts, None if labels is None else y)
        except ValueError as error:
            refusal = f"isoadapt: {error}"
        else:
            refusal = None
    if refusal is not None:
        assert completed.code == (2 if labels is None else refusal)
        return
    expected, found = model.head_, load_adapter("a").head_
    assert repr(found) == repr(expected)
    if expected is not None:
        np.testing.assert_array_equal(found.coef_, expected.coef_)
    notes = {str(warning.message) for warning in caught if "unknown to" in str(warning.message)}
    assert {line for line in completed.stderr.split("\n") if "unknown to" in line} == {
        f"Note: {note}" for note in notes
    }
    unknown = labels is WORDS_FOR_LABELS and kind != "no head"
    ignored = name == "logit-preserving-whitening"  # it needs no labels
    assert bool(notes) == (unknown or (kind == "a multi-label head" and not ignored))


class TestNames:
    """Labels of a table may be the names in id2label, which the checkpoint's head then predicts."""

    @pytest.mark.filterwarnings("ignore:this fit harms the task")
    @pytest.mark.parametrize("method", ["isotropy-layer", "logit-preserving-whitening"])
    @pytest.mark.parametrize("names", [["good", "bad", "fair"], ["0", "1", "2"]])
    def test_the_head_is_that_of_the_checkpoint(self, method, names, files):
        folder = save_model(files / "named", id2label=dict(enumerate(names)))
        _, head = load_checkpoint(folder)
        texts, ids = texts_and_labels()
        digits = names[0].isdecimal()  # read as numbers, which are ids
        for name, labels in (("ids", ids), ("names", np.array(names)[ids])):
            table = pd.DataFrame({"sentence": texts, "label": labels})
            table.to_csv(f"{name}.tsv", sep="\t", index=False)
            settings = ["--set", "max_epochs=1"] if method == "isotropy-layer" else []
            arguments = ["--model", folder, "--on", f"{name}.tsv", "--out", name, *settings]
            completed = succeed("fit", method, *arguments)
            assert "unknown" not in completed.stderr
            adapter = load_adapter(name)
            by_name = name == "names" and not digits
            rows = np.argsort(names) if by_name else [0, 1, 2]
            assert adapter.classes_.tolist() == (sorted(names) if by_name else [0, 1, 2])
            np.testing.assert_array_equal(adapter.head_.coef_, head.coef_[rows])
            X = TransformerEncoder(folder).transform(texts)
            score = adapter.score(X, table["label"] if by_name else ids)
            accuracy = f"accuracy +[\\d.]+ +{score:.4g}"
            if method != "isotropy-layer":  # which is judged on its validation rows
                assert re.search(accuracy, completed.stdout)
