"""The command line as a user meets it."""

import io
import json
import runpy
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import joblib
import numpy as np
import pandas as pd
import pytest

import isoadapt
from isoadapt import adapters, cli
from tests.tiny_models import WORDS, save_model


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


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    rng = np.random.default_rng(0)
    for name in ("train", "dev"):
        rows = [f"{' '.join(rng.choice(WORDS, size=6))}\t{rng.integers(0, 3)}" for _ in range(90)]
        (folder / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    return folder


@pytest.fixture(scope="module")
def result(tables, checkpoint, tmp_path_factory):
    out = tmp_path_factory.mktemp("out") / "demo"
    options = ["--train", tables / "train.tsv", "--dev", tables / "dev.tsv"]
    return run("demo", *options, "--checkpoint", checkpoint, "--out", out), out


class TestDemo:
    def test_one_table_and_one_sentence(self, result):
        completed, _ = result
        assert completed.code in (None, 0), completed
        lines = completed.stdout.splitlines()
        header = next(line for line in lines if "accuracy" in line and "EV1" in line)
        for column in (
            "Matthews",
            "cross-entropy",
            "IsoScore",
            "corrected",
            "mean cosine",
            "fit s",
        ):
            assert column in header
        for row in (
            "no adapter",
            "head refit only",
            "same layer, no penalty",
            "IsotropyLayer, minibatch",
            "IsotropyLayer, exact",
            *(name for name in adapters.__all__ if name != "IsotropyLayer"),
        ):
            assert sum(line.startswith(row) for line in lines) == 1
        assert "The Isotropy Layer took the corrected IsoScore from" in completed.stdout
        assert "Traceback" not in completed.stderr

    def test_logits_are_preserved_in_the_table(self, result):
        lines = result[0].stdout.splitlines()
        base = next(line for line in lines if line.startswith("no adapter")).split()
        kept = next(line for line in lines if line.startswith("LogitPreserving")).split()
        assert base[2:5] == kept[1:4]

    def test_picture_and_pipeline(self, result):
        _, out = result
        assert (out / "spectra.png").read_bytes().startswith(b"\x89PNG")
        pipeline = joblib.load(out / "pipeline.joblib")
        assert pipeline.predict(["the cat sat", "a dog ran"]).shape == (2,)
        assert {path.name for path in out.iterdir()} == {"spectra.png", "pipeline.joblib"}

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--train", "absent.tsv"], "--train and --dev go together"),
            (["--out", __file__], "cannot be written to"),
            (["--checkpoint", "{folder}"], "config.json"),
        ],
    )
    def test_errors_are_one_line(self, options, message, tables):
        options = [str(option).format(folder=tables) for option in options]
        completed = run("demo", *options)
        assert str(completed.code).startswith("isoadapt: ")
        assert message in str(completed.code)


class TestAudit:
    def test_matrix(self, tmp_path):
        rng = np.random.default_rng(0)
        np.save(tmp_path / "X.npy", rng.normal(size=(90, 4)) * [9, 1, 1, 1])
        completed = run("audit", tmp_path / "X.npy")
        assert completed.code in (None, 0), completed
        assert completed.stdout.startswith("IsotropyReport: 90 × 4")
        report = json.loads(run("audit", tmp_path / "X.npy", "--json").stdout)
        assert report["n_samples"] == 90
        assert 0 < report["isoscore"] < 0.1

    def test_parquet_matrix_with_classes(self, tmp_path):
        frame = pd.DataFrame(np.random.default_rng(0).normal(size=(90, 4)), columns=list("abcd"))
        frame.assign(kind=["x", "y"] * 45).to_parquet(tmp_path / "X.parquet")
        completed = run("audit", tmp_path / "X.parquet", "--label", "kind")
        assert completed.code in (None, 0), completed
        assert completed.stdout.startswith("IsotropyReport: 90 × 4")
        assert "group y: n=45" in completed.stdout

    def test_model_on_texts_with_classes(self, tables, checkpoint):
        completed = run("audit", checkpoint, tables / "dev.tsv", "--label", "label")
        assert completed.code in (None, 0), completed
        assert "IsotropyReport: 90 × 16" in completed.stdout
        assert "group 2: n=" in completed.stdout

    def test_layers(self, tables, checkpoint):
        completed = run("audit", checkpoint, tables / "dev.tsv", "--layers")
        assert completed.code in (None, 0), completed
        title, header, *rows, _ = completed.stdout.splitlines()
        assert title.startswith("LayerReport: 720 tokens × 16 from 90 texts")
        names = "layer IsoScore corrected EV1 EV2 EV3 anisotropy_1 centred mean cosine TwoNN"
        assert " ".join(header.split()) == names
        assert [row.split()[0] for row in rows] == ["0", "1", "2"]

    def test_layers_as_json(self, tables, checkpoint):
        options = ["--layers", "--json", "--max-length", "3"]
        completed = run("audit", checkpoint, tables / "dev.tsv", *options)
        report = json.loads(completed.stdout)
        assert [layer["layer"] for layer in report["layers"]] == [0, 1, 2]
        assert {layer["n_tokens"] for layer in report["layers"]} == {270}
        assert 0 < report["layers"][2]["isoscore_corrected"] <= 1

    @pytest.mark.parametrize("layers", [[], ["--layers"]])
    def test_the_share_of_truncated_texts(self, layers, tmp_path, checkpoint):
        texts = [f"{'cat ' * n}".strip() for n in (1, 2, 3, 6, 8, 8)]  # 2 more are special tokens
        (tmp_path / "texts.tsv").write_text("\n".join(["sentence", *texts]) + "\n")
        arguments = [checkpoint, tmp_path / "texts.tsv", "--max-length", 7, *layers]
        report = json.loads(run("audit", *arguments, "--json").stdout)
        assert report["truncation"] == {
            "max_length": 7,
            "n_texts": 6,
            "n_truncated": 3,
            "share_of_texts_truncated": 0.5,
            "share_of_tokens_kept": 33 / 40,
        }
        last = run("audit", *arguments).stdout.splitlines()[-1]
        expected = "3 of 6 exceed max_length=7 tokens; 0.8250 of all tokens are kept"
        assert " ".join(last.split()) == f"truncated texts 0.5000 {expected}"

    def test_no_text_is_truncated(self, tables, checkpoint, tmp_path):
        report = json.loads(run("audit", checkpoint, tables / "dev.tsv", "--json").stdout)
        assert report["truncation"]["max_length"] == 64
        assert report["truncation"]["n_truncated"] == 0
        assert report["truncation"]["share_of_tokens_kept"] == 1.0
        model = save_model(tmp_path / "xlnet", "xlnet")
        completed = run("audit", model, tables / "dev.tsv", "--json")
        assert json.loads(completed.stdout)["truncation"]["max_length"] is None
        last = run("audit", model, tables / "dev.tsv").stdout.splitlines()[-1]
        assert " ".join(last.split()) == "truncated texts 0.0000 0 of 90; the model has no limit"

    def test_pairs_are_counted_together(self, tmp_path, checkpoint):
        rows = ["the cat\ta dog", "the cat sat on the mat\ta dog ran", "cat\tdog"]
        (tmp_path / "p.tsv").write_text("\n".join(["sentence1\tsentence2", *rows]) + "\n")
        completed = run("audit", checkpoint, tmp_path / "p.tsv", "--max-length", 7, "--json")
        found = json.loads(completed.stdout)["truncation"]
        assert (found["n_texts"], found["n_truncated"]) == (3, 1)  # 7, 12 and 5 tokens
        assert found["share_of_tokens_kept"] == 19 / 24

    def test_a_matrix_says_nothing_of_texts(self, tmp_path):
        np.save(tmp_path / "X.npy", np.random.default_rng(0).normal(size=(90, 4)))
        assert "truncation" not in json.loads(run("audit", tmp_path / "X.npy", "--json").stdout)
        assert "truncated" not in run("audit", tmp_path / "X.npy").stdout

    def test_few_tokens_are_a_note(self, tmp_path, checkpoint):
        (tmp_path / "one.tsv").write_text("sentence\na cat\nthe dog\n")
        completed = run("audit", checkpoint, tmp_path / "one.tsv", "--layers", "--json")
        assert "Note: n_tokens=8 is less than 3 × n_features=48" in completed.stderr
        assert len(json.loads(completed.stdout)["layers"]) == 3

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["absent.npy"], "absent.npy"),
            (["absent.npy", "--layers"], "--layers needs a checkpoint and texts"),
            (["{checkpoint}", "--layers"], "needs texts"),
            (["{checkpoint}", "a.tsv", "--layers", "--label", "x"], "do not go together"),
            (["{checkpoint}"], "needs texts"),
            (["{checkpoint}", "absent.tsv"], "absent.tsv"),
            (["{pickle}"], "pickle"),
        ],
    )
    def test_errors_are_one_line(self, arguments, message, checkpoint, tmp_path):
        pickle = tmp_path / "pickle.npy"
        np.save(pickle, np.array([{}], dtype=object), allow_pickle=True)
        arguments = [a.format(checkpoint=checkpoint, pickle=pickle) for a in arguments]
        completed = run("audit", *arguments)
        assert str(completed.code).startswith("isoadapt: ")
        assert message in str(completed.code)


def test_version():
    assert run("--version").stdout.strip() == isoadapt.__version__


def test_help_names_every_command():
    output = run("--help").stdout
    assert "demo" in output
    assert "audit" in output


@pytest.mark.parametrize(
    ("example", "expected"),
    [
        ("quickstart", "no penalty: accuracy"),
        ("grid_search", "best: {"),
        ("save_and_load", "same predictions: True"),
    ],
)
def test_examples_run(example, expected, tmp_path, monkeypatch, capsys):
    folder = save_model(tmp_path / "checkpoint", num_labels=2)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [example, str(folder)])
    runpy.run_path(str(Path(__file__).parents[1] / "examples" / f"{example}.py"))
    assert expected in capsys.readouterr().out


def test_the_readme_examples_run(tmp_path, monkeypatch, capsys):
    text = (Path(__file__).parents[1] / "README.md").read_text()
    save_model(tmp_path / "isoadapt-demo" / "checkpoint", num_labels=2)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in text.split("```python\n")[1:]:
        exec(block.split("```")[0], names)
    assert capsys.readouterr().out.count("IsotropyReport: 1196 × 16") == 2
    assert (tmp_path / "my-merged-model" / "model.safetensors").is_file()
