"""Fitting, applying and merging adapters on the command line."""

import io
import json
import re
import shutil
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from isoadapt import IsotropyLayer, TransformerEncoder, Whitening, adapters, cli, load_checkpoint
from isoadapt._commands import make_adapter
from isoadapt.interop import load_adapter, save_adapter
from isoadapt.metrics import isoscore
from tests.tiny_models import WORDS, make_model, make_tokenizer, save_model

rng = np.random.default_rng(0)
X = (rng.normal(size=(150, 5)) * [9, 3, 1, 1, 0.3] + 2).astype(np.float32)
Y = (X[:, 2] > 2).astype(int)


class Completed(NamedTuple):
    code: int | str | None
    stdout: str
    stderr: str


def run(*arguments):
    """Call the entry point as the shell does: exit code and both streams."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["isoadapt", *map(str, arguments)])
        try:
            code = cli.main()
        except SystemExit as stop:
            code = stop.code
    return Completed(code, out.getvalue(), err.getvalue())


def succeed(*arguments):
    completed = run(*arguments)
    assert completed.code in (None, 0), completed
    return completed


def fail(*arguments):
    """The message of a command that must fail: one line."""
    completed = run(*arguments)
    assert str(completed.code).startswith("isoadapt: "), completed
    assert "\n" not in str(completed.code)
    assert "Traceback" not in completed.stderr
    return str(completed.code)


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A folder with the same rows in every kind of file, and texts."""
    monkeypatch.chdir(tmp_path)
    np.save("X.npy", X)
    np.save("y.npy", Y)
    columns = {f"f{i}": X[:, i] for i in range(5)}
    pd.DataFrame(columns | {"label": Y, "id": "x"}).to_parquet("X.parquet")
    rows = [f"{' '.join(rng.choice(WORDS, size=6))}\t{i % 3}" for i in range(90)]
    (tmp_path / "texts.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    return tmp_path


def texts_and_labels():
    table = pd.read_csv("texts.tsv", sep="\t")
    return table["sentence"].tolist(), table["label"].to_numpy()


class TestFit:
    def test_a_matrix(self, files):
        completed = succeed("fit", "whitening", "--on", "X.npy", "--out", "a")
        figures = dict(re.findall(r"^(IsoScore|EV1) +([\d.]+)", completed.stdout, re.M))
        assert figures["IsoScore"] == f"{isoscore(X):.4f}"
        assert re.search(r"IsoScore +0\.\d+ +1\.0000", completed.stdout)
        assert "fitted to; judge it on others" in completed.stdout
        assert "accuracy" not in completed.stdout
        expected = Whitening().fit(X)
        np.testing.assert_array_equal(load_adapter("a").transform(X), expected.transform(X))

    @pytest.mark.parametrize("command", ["fit", "audit"])
    def test_a_single_text(self, command, files, checkpoint):
        (files / "one.tsv").write_text("sentence\tlabel\nthe cat sat\t0\n")
        arguments = {
            "fit": ["whitening", "--model", checkpoint, "--on", "one.tsv", "--out", "a"],
            "audit": [checkpoint, "one.tsv"],
        }
        message = fail(command, *arguments[command])
        assert "one.tsv holds 1 row" in message
        assert "at least 2" in message
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
        assert float(score[2]) == round(expected.score(X, Y), 4)

    def test_parquet_keeps_the_names(self, files):
        options = ["--on", "X.parquet", "--out", "a", "--set", "head=ridge"]
        completed = succeed("fit", "Whitening", *options)
        assert re.search(r"R² +-?[\d.]+ +-?[\d.]+", completed.stdout)
        loaded = load_adapter("a")
        assert loaded.feature_names_in_.tolist() == [f"f{i}" for i in range(5)]
        np.testing.assert_array_equal(loaded.map_.matrix, Whitening().fit(X).map_.matrix)

    def test_texts_take_the_checkpoints_head(self, files, checkpoint):
        completed = succeed(
            "fit",
            "logit_preserving_whitening",
            "--on",
            "texts.tsv",
            "--model",
            checkpoint,
            "--max-length",
            5,
            "--out",
            "a",
        )
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
        succeed("fit", "allbutthetop", *options, "--set", "head=None")
        assert load_adapter("a").head_ is None
        succeed("fit", "allbutthetop", *options, "--set", "head=logistic", "--overwrite")
        assert load_adapter("a").head == "logistic"
        assert "not empty" in fail("fit", "allbutthetop", *options)

    def test_a_head_that_cannot_be_taken_is_no_matter_where_another_is_set(self, files):
        save_model(files / "many", problem_type="multi_label_classification")
        options = ["--on", "texts.tsv", "--model", "many", "--out", "a"]
        assert "multi-label head" in fail("fit", "isotropy-layer", *options)
        succeed("fit", "isotropy-layer", *options, "--set", "head=None")

    def test_a_multi_label_head_is_preserved_and_not_scored(self, files):
        save_model(files / "many", problem_type="multi_label_classification")
        options = ["--on", "texts.tsv", "--model", "many", "--out", "a"]
        completed = succeed("fit", "logit-preserving-whitening", *options)
        assert re.search(r"IsoScore +[\d.]+ +[\d.]+", completed.stdout)
        assert not re.search("accuracy|R²", completed.stdout)
        succeed("merge", "a", "many", "merged")
        config = json.loads((files / "merged" / "config.json").read_text())
        assert config["problem_type"] == "multi_label_classification"

    def test_texts_from_parquet(self, files, checkpoint):
        texts, labels = texts_and_labels()
        pd.DataFrame({"text": texts, "kind": labels}).to_parquet("texts.parquet")
        options = ["--model", checkpoint, "--label", "kind", "--out", "a", "--set", "beta=1"]
        succeed("fit", "isobn", "--on", "texts.parquet", *options)
        assert load_adapter("a").beta == 1
        assert load_adapter("a").classes_.tolist() == [0, 1, 2]

    def test_a_matrix_may_take_the_head_of_a_model(self, files, checkpoint):
        texts, _ = texts_and_labels()
        np.save("E.npy", TransformerEncoder(checkpoint).transform(texts))
        options = ["--on", "E.npy", "--model", checkpoint, "--out", "a"]
        succeed("fit", "logitpreservingwhitening", *options)
        head = load_checkpoint(checkpoint)[1]
        np.testing.assert_array_equal(load_adapter("a").head.coef_, head.coef_)

    def test_warnings_are_notes(self, files):
        np.save("few.npy", X[:12])
        completed = succeed("fit", "whitening", "--on", "few.npy", "--out", "a")
        assert "Note: n_samples=12 is less than 3 × n_features=15" in completed.stderr

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["nonsense", "--on", "X.npy"], "'nonsense' is no adapter; choose from"),
            (["whitening", "--on", "absent.npy"], "absent.npy"),
            (
                ["whitening", "--on", "X.npy", "--set", "lam=1"],
                r"names head, head_training, method",
            ),
            (["whitening", "--on", "X.npy", "--set", "method"], "takes name=value"),
            (["whitening", "--on", "X.npy", "--set", "method=ica"], "'method' parameter"),
            (["whitening", "--on", "X.npy", "--set", "strength=two"], "'strength' parameter"),
            (["isotropylayer", "--on", "X.npy"], "needs labels, and X.npy has none"),
            (["whitening", "--on", "X.npy", "--label", "y"], "use --labels y.npy"),
            (["whitening", "--on", "texts.tsv"], "needs --model"),
            (["whitening", "--on", "texts.tsv", "--labels", "y.npy"], "--label"),
            (["whitening", "--on", "X.parquet", "--label", "f9"], "'f9' is no column"),
        ],
    )
    def test_errors_are_one_line(self, arguments, message, files):
        assert re.search(message, fail("fit", *arguments, "--out", "a"))
        assert not (files / "a").exists()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Whitening", "Whitening"),
        ("all-but-the-top", "AllButTheTop"),
        ("istar", "IStarAdapter"),
        ("IStarAdapter", "IStarAdapter"),
        ("cosreg", "CosRegAdapter"),
        ("spectrum_control", "SpectrumControlAdapter"),
    ],
)
def test_names_of_adapters(name, expected):
    assert type(make_adapter(name, [])).__name__ == expected


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
def test_values_of_parameters(text, value):
    found = make_adapter("whitening", [f"shrinkage={text}"]).shrinkage
    assert found == value
    assert type(found) is type(value)
    assert make_adapter("isobn", ["head=null"]).head is make_adapter("isobn", ["head=None"]).head


class TestTransform:
    @pytest.fixture
    def adapter(self, files):
        succeed("fit", "whitening", "--on", "X.npy", "--out", "a")
        return load_adapter("a")

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_a_matrix(self, dtype, adapter):
        np.save("Z.npy", X[:9].astype(dtype))
        completed = succeed("transform", "a", "Z.npy", "out.npy")
        assert completed.stdout == f"Wrote 9 × 5 ({np.dtype(dtype)}): out.npy\n"
        found = np.load("out.npy")
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, adapter.transform(X[:9].astype(dtype)))

    def test_the_suffix_may_be_in_capitals(self, adapter, files):
        succeed("transform", "a", "X.npy", "OUT.NPY")
        np.testing.assert_array_equal(np.load("OUT.NPY"), adapter.transform(X))
        assert not [path.name for path in files.iterdir() if path.name.startswith(".")]

    def test_into_parquet(self, adapter):
        succeed("transform", "a", "X.npy", "out.parquet")
        found = pd.read_parquet("out.parquet")
        assert list(found.columns) == [f"whitening{i}" for i in range(5)]
        np.testing.assert_array_equal(found.to_numpy(), adapter.transform(X))

    def test_columns_are_found_by_name(self, files):
        succeed("fit", "whitening", "--on", "X.parquet", "--out", "a")
        table = pd.read_parquet("X.parquet")
        table.assign(more=1.0)[["more", "f4", "f3", "f2", "f1", "f0"]].to_parquet("other.parquet")
        succeed("transform", "a", "other.parquet", "out.npy")
        np.testing.assert_array_equal(np.load("out.npy"), Whitening().fit_transform(X))
        table[["f0", "f1"]].to_parquet("other.parquet")
        assert "['f2', 'f3', 'f4']" in fail("transform", "a", "other.parquet", "out.npy")

    def test_texts_by_the_model_that_the_folder_names(self, files, tmp_path):
        model = save_model(tmp_path / "model")
        options = ["--model", "model", "--max-length", "4", "--out", "a"]
        succeed("fit", "whitening", "--on", "texts.tsv", *options, "--set", "shrinkage=0.1")
        texts, _ = texts_and_labels()
        adapter = load_adapter("a")
        succeed("transform", "a", "texts.tsv", "own.npy")
        expected = adapter.transform(TransformerEncoder(model, max_length=4).transform(texts))
        np.testing.assert_array_equal(np.load("own.npy"), expected)
        succeed("transform", "a", "texts.tsv", "longer.npy", "--max-length", 8, "--model", "model")
        expected = adapter.transform(TransformerEncoder(model, max_length=8).transform(texts))
        np.testing.assert_array_equal(np.load("longer.npy"), expected)
        (tmp_path / "model").rename(tmp_path / "moved")
        message = fail("transform", "a", "texts.tsv", "out.npy")
        assert "is no folder here: pass --model" in message
        succeed("transform", "a", "texts.tsv", "moved.npy", "--model", "moved")
        np.testing.assert_array_equal(np.load("moved.npy"), np.load("own.npy"))

    def test_a_failure_leaves_the_old_file(self, adapter, files):
        (files / "out.npy").write_text("old")
        np.save("narrow.npy", X[:, :3])
        assert "3 features" in fail("transform", "a", "narrow.npy", "out.npy")
        assert (files / "out.npy").read_text() == "old"

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["absent", "X.npy", "out.npy"], "save_adapter made"),
            (["a", "absent.npy", "out.npy"], "absent.npy"),
            (["a", "X.npy", "out.csv"], r"must end in \.npy or \.parquet"),
            (["a", "X.npy", "absent/out.npy"], "'absent' is no folder"),
            (["a", "texts.tsv", "out.npy"], "None.*pass --model"),
            ([".", "X.npy", "out.npy"], "config.json is missing"),
        ],
    )
    def test_errors_are_one_line(self, arguments, message, adapter, files):
        assert re.search(message, fail("transform", *arguments))
        assert not (files / "out.npy").exists()


class TestIdentity:
    """An adapter that was fitted with a model goes with that model only."""

    @pytest.fixture
    def adapter(self, files, checkpoint):
        options = ["--on", "texts.tsv", "--model", checkpoint, "--out", "a"]
        succeed("fit", "whitening", *options, "--set", "shrinkage=0.1")
        model = make_model()
        model.bert.pooler.dense.bias.data += 0.01
        model.save_pretrained(files / "other")
        make_tokenizer().save_pretrained(files / "other")
        return files / "a"

    def test_fit_records_the_model(self, adapter, checkpoint):
        vectors = json.loads((adapter / "config.json").read_text())["vectors"]
        assert vectors["kind"] == "pooling='head_input'"
        assert re.fullmatch("[0-9a-f]{64}", vectors["checkpoint"])

    def test_a_copy_of_the_model_serves(self, adapter, checkpoint, files):
        shutil.copytree(checkpoint, files / "copy")
        succeed("merge", "a", "copy", "merged")
        succeed("transform", "a", "texts.tsv", "copy.npy", "--model", "copy")
        succeed("transform", "a", "texts.tsv", "own.npy")
        np.testing.assert_array_equal(np.load("copy.npy"), np.load("own.npy"))

    def test_another_model_is_refused(self, adapter, files):
        assert "another checkpoint" in fail("merge", "a", "other", "merged")
        message = fail("transform", "a", "texts.tsv", "out.npy", "--model", "other")
        assert re.search(r"model='other' is another checkpoint.*by --model", message)
        assert not (files / "merged").exists()
        assert not (files / "out.npy").exists()

    def test_a_model_that_was_trained_on_is_refused(self, adapter, files, checkpoint):
        save_model(files / "mine")
        options = ["--on", "texts.tsv", "--model", "mine", "--out", "b"]
        succeed("fit", "whitening", *options, "--set", "shrinkage=0.1")
        shutil.rmtree(files / "mine")
        (files / "other").rename(files / "mine")
        assert "another checkpoint" in fail("transform", "b", "texts.tsv", "out.npy")

    def test_vectors_of_another_kind_are_refused(self, files, checkpoint):
        encoder = TransformerEncoder(checkpoint, pooling="mean", layer=1)
        fitted = Whitening(shrinkage=0.1).fit(encoder.transform(texts_and_labels()[0]))
        save_adapter(fitted, "a", base_model=encoder)
        assert "pooling='mean', layer=1" in fail("merge", "a", checkpoint, "merged")
        for options in ([], ["--model", checkpoint]):
            message = fail("transform", "a", "texts.tsv", "out.npy", *options)
            assert re.search("pooling='mean', layer=1.*pooling='head_input'", message)

    def test_a_matrix_tells_of_the_checkpoint_only(self, files, checkpoint, adapter):
        np.save("E.npy", TransformerEncoder(checkpoint).transform(texts_and_labels()[0]))
        options = ["--on", "E.npy", "--model", checkpoint, "--out", "b"]
        succeed("fit", "whitening", *options, "--set", "shrinkage=0.1")
        assert json.loads((files / "b" / "config.json").read_text())["vectors"]["kind"] is None
        assert "another checkpoint" in fail("merge", "b", "other", "merged")
        succeed("merge", "b", checkpoint, "merged")

    def test_a_record_less_adapter_goes_with_any_model(self, adapter, files):
        save_adapter(Whitening(shrinkage=0.1).fit(rng.normal(size=(90, 16))), "bare")
        succeed("merge", "bare", "other", "merged")
        succeed("transform", "bare", "texts.tsv", "out.npy", "--model", "other")


class TestMerge:
    def test_the_merged_checkpoint_predicts_like_the_adapter(self, files, checkpoint):
        options = ["--on", "texts.tsv", "--model", checkpoint, "--out", "a"]
        succeed("fit", "whitening", *options, "--set", "shrinkage=0.1")
        completed = succeed("merge", "a", checkpoint, "merged")
        assert "AutoModelForSequenceClassification.from_pretrained('merged')" in completed.stdout
        texts, _ = texts_and_labels()
        encoder, head = load_checkpoint("merged")
        embeddings = encoder.transform(texts)
        expected = load_adapter("a").predict_proba(embeddings)
        np.testing.assert_allclose(head.predict_proba(embeddings), expected, atol=1e-4)
        assert "not empty" in fail("merge", "a", checkpoint, "merged")
        succeed("merge", "a", checkpoint, "merged", "--overwrite")

    def test_errors_are_one_line(self, files, checkpoint):
        succeed("fit", "whitening", "--on", "X.npy", "--out", "a")
        assert "n_features_in_=5" in fail("merge", "a", checkpoint, "merged")
        assert "config.json" in fail("merge", "a", files, "merged")
        assert not (files / "merged").exists()


def test_help_names_the_commands():
    result = CliRunner().invoke(cli.app, ["--help"])
    for command in ("fit", "transform", "merge"):
        assert re.search(rf"\b{command}\b", result.output)
    for command in ("fit", "transform", "merge"):
        assert CliRunner().invoke(cli.app, [command, "--help"]).exit_code == 0


def test_the_folder_of_the_command_line_has_no_pickle(files):
    succeed("fit", "whitening", "--on", "X.npy", "--out", "a")
    assert sorted(path.name for path in (files / "a").iterdir()) == [
        "README.md",
        "adapter.safetensors",
        "config.json",
        "isoadapt.sha256",
    ]
    config = json.loads((files / "a" / "config.json").read_text())
    assert config["data"] == {"type": "dict", "items": {"source": "X.npy", "rows": 150}}


def test_help_names_every_adapter():
    assert sorted(cli.ADAPTERS) == sorted(adapters.__all__)
    help_text = CliRunner().invoke(cli.app, ["fit", "--help"], env={"COLUMNS": "400"}).output
    assert all(name in help_text for name in cli.ADAPTERS)


def test_labels_are_not_optional_where_a_head_is_not(tmp_path):
    np.save(tmp_path / "X.npy", X)
    for name, hint in (("whitening", None), ("istar", True), ("logit-preserving-whitening", False)):
        arguments = ["fit", name, "--on", tmp_path / "X.npy", "--out", tmp_path / name]
        if hint is None:
            succeed(*arguments)
        else:
            assert ("--set head=None" in fail(*arguments)) == hint


def test_the_input_is_not_overwritten(tmp_path):
    np.save(tmp_path / "X.npy", X)
    succeed("fit", "whitening", "--on", tmp_path / "X.npy", "--out", tmp_path / "a")
    message = fail("transform", tmp_path / "a", tmp_path / "X.npy", tmp_path / "X.npy")
    assert "is the file that is read" in message
    np.testing.assert_array_equal(np.load(tmp_path / "X.npy"), X)


def test_labels_in_one_column(tmp_path):
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", Y[:, None])
    matrix = ["--on", tmp_path / "X.npy", "--labels", tmp_path / "y.npy"]
    succeed("fit", "istar", *matrix, "--set", "max_epochs=1", "--out", tmp_path / "a")
    assert load_adapter(tmp_path / "a").classes_.tolist() == [0, 1]
