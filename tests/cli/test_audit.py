"""The audit as a user meets it."""

import json
import re

import numpy as np
import pandas as pd
import pytest

from isoadapt.adapters._registry import ADAPTERS
from tests.cli.command_line import fail, run, succeed
from tests.tiny_models import save_model


class TestAudit:
    def test_matrix(self, tmp_path):
        rng = np.random.default_rng(0)
        np.save(tmp_path / "X.npy", rng.normal(size=(90, 4)) * [9, 1, 1, 1])
        completed = succeed("audit", tmp_path / "X.npy")
        assert completed.stdout.startswith("IsotropyReport: 90 × 4\n")
        report = json.loads(run("audit", tmp_path / "X.npy", "--json").stdout)
        assert report["n_samples"] == 90
        assert 0 < report["isoscore"] < 0.1

    def test_parquet_matrix_with_classes(self, tmp_path):
        frame = pd.DataFrame(np.random.default_rng(0).normal(size=(90, 4)), columns=list("abcd"))
        frame.assign(kind=["x", "y"] * 45).to_parquet(tmp_path / "X.parquet")
        completed = succeed("audit", tmp_path / "X.parquet", "--label", "kind")
        assert completed.stdout.startswith("IsotropyReport: 90 × 4\n")
        assert "label y: n=45" in completed.stdout

    def test_model_on_texts_with_classes(self, tables, checkpoint):
        completed = succeed("audit", checkpoint, tables / "dev.tsv", "--label", "label")
        assert "IsotropyReport: 90 × 16" in completed.stdout
        assert "label 2: n=" in completed.stdout

    def test_layers(self, tables, checkpoint):
        completed = succeed("audit", checkpoint, tables / "dev.tsv", "--layers")
        tokens, _, vectors = completed.stdout.partition("\n\nVectors: ")
        *_, heading, title, header = tokens.splitlines()[:-3]
        assert heading == "Tokens of each layer:"
        assert title.startswith("LayerReport: 720 tokens × 16 from 90 texts, token states without")
        names = "layer IsoScore corrected EV1 EV2 EV3 anisotropy_1 mean cosine TwoNN"
        assert " ".join(header.split()) == names
        assert [row.split()[0] for row in tokens.splitlines()[-3:]] == ["0", "1", "2"]
        assert vectors.startswith("one for each text, input of the classifier's last linear layer")
        assert "IsotropyReport: 90 × 16" in vectors

    def test_layers_of_one_text_have_no_pooled_report(self, checkpoint, tmp_path):
        (tmp_path / "one.tsv").write_text("sentence\nthe cat sat on the mat\n")
        arguments = ["audit", checkpoint, tmp_path / "one.tsv", "--layers"]
        assert "IsotropyReport" not in succeed(*arguments).stdout
        assert "pooled" not in json.loads(succeed(*arguments, "--json").stdout)

    def test_what_was_pooled(self, checkpoint, tables, tmp_path):
        dev = tables / "dev.tsv"
        lines = succeed("audit", checkpoint, dev).stdout.splitlines()
        found = next(line for line in lines if line.startswith("Vectors: "))
        assert found.endswith("last linear layer (pooling='head_input')")
        body = save_model(tmp_path / "body", kind="AutoModel")
        vectors = json.loads(succeed("audit", body, dev, "--json").stdout)["vectors"]
        assert vectors == "token states of layer 2 of 2 (pooling='mean')"

    def test_references_and_next_steps_as_json(self, tmp_path):
        np.save(tmp_path / "X.npy", np.random.default_rng(0).normal(size=(90, 4)))
        found = json.loads(succeed("audit", tmp_path / "X.npy", "--json").stdout)
        healthy, collapsed = (found["references"][name] for name in ("healthy", "collapsed"))
        assert healthy.keys() == collapsed.keys() > {"isoscore_corrected", "ev1", "mean_cosine"}
        for name in re.findall(r"\b[A-Z][a-z]+[A-Z]?\w+ing\b", found["next_steps"]):
            assert name in ADAPTERS
        assert "LogitPreservingWhitening" in found["next_steps"]

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
        line = "Texts: 6 texts, 3 truncated at max_length=7 tokens (0.825 of all tokens are kept)"
        assert line in succeed("audit", *arguments).stdout.splitlines()

    def test_no_text_is_truncated(self, tables, checkpoint, tmp_path):
        report = json.loads(run("audit", checkpoint, tables / "dev.tsv", "--json").stdout)
        assert report["truncation"]["max_length"] == 64
        assert report["truncation"]["n_truncated"] == 0
        assert report["truncation"]["share_of_tokens_kept"] == 1.0
        model = save_model(tmp_path / "xlnet", "xlnet")
        completed = run("audit", model, tables / "dev.tsv", "--json")
        assert json.loads(completed.stdout)["truncation"]["max_length"] is None
        lines = succeed("audit", model, tables / "dev.tsv").stdout.splitlines()
        assert "Texts: 90 texts, none truncated (the model has no limit)" in lines
        lines = succeed("audit", checkpoint, tables / "dev.tsv").stdout.splitlines()
        assert "Texts: 90 texts, none truncated at max_length=64 tokens" in lines

    def test_pairs_are_counted_together(self, tmp_path, checkpoint):
        rows = ["the cat\ta dog", "the cat sat on the mat\ta dog ran", "cat\tdog"]
        (tmp_path / "p.tsv").write_text("\n".join(["sentence1\tsentence2", *rows]) + "\n")
        completed = run("audit", checkpoint, tmp_path / "p.tsv", "--max-length", 7, "--json")
        found = json.loads(completed.stdout)["truncation"]
        assert (found["n_texts"], found["n_truncated"]) == (3, 1)  # 7, 12 and 5 tokens
        assert found["share_of_tokens_kept"] == 19 / 24

    def test_two_columns_each_alone(self, tmp_path, checkpoint):
        pairs = [("the cat", "a dog"), ("a cat sat", "the dog ran"), ("cat", "dog")]
        rows = ["\t".join(pair) for pair in pairs]
        (tmp_path / "p.tsv").write_text("\n".join(["sentence1\tsentence2", *rows]) + "\n")
        texts = [text for column in zip(*pairs, strict=True) for text in column]
        (tmp_path / "t.tsv").write_text("\n".join(["sentence", *texts]) + "\n")
        separate = succeed("audit", checkpoint, tmp_path / "p.tsv", "--separately").stdout
        assert separate == succeed("audit", checkpoint, tmp_path / "t.tsv").stdout
        assert "Vectors: one for each text, " in separate
        together = succeed("audit", checkpoint, tmp_path / "p.tsv").stdout
        assert "Vectors: one for each pair of texts, " in together

    def test_a_matrix_says_nothing_of_texts(self, tmp_path):
        np.save(tmp_path / "X.npy", np.random.default_rng(0).normal(size=(90, 4)))
        assert "truncation" not in json.loads(run("audit", tmp_path / "X.npy", "--json").stdout)
        assert "truncated" not in run("audit", tmp_path / "X.npy").stdout

    def test_few_tokens_are_a_note(self, tmp_path, checkpoint):
        (tmp_path / "one.tsv").write_text("sentence\na cat\nthe dog\n")
        completed = run("audit", checkpoint, tmp_path / "one.tsv", "--layers", "--json")
        assert "Note: 2 different texts are fewer than 48 = 3 × n_features" in completed.stderr
        assert len(json.loads(completed.stdout)["layers"]) == 3

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["absent.npy"], "absent.npy"),
            (["absent.npy", "--layers"], "--layers needs a checkpoint and texts"),
            (["{checkpoint}", "--layers"], "needs texts"),
            (["{checkpoint}", "a.tsv", "--layers", "--label", "x"], "cannot be combined"),
            (["{checkpoint}", "a.tsv", "--separately", "--label", "x"], "cannot be combined"),
            (["absent.npy", "--separately"], "is a matrix"),
            (["{checkpoint}"], "needs texts"),
            (["{checkpoint}", "absent.tsv"], "absent.tsv"),
            (["{pickle}"], "pickle"),
        ],
    )
    def test_errors_are_one_line(self, arguments, message, checkpoint, tmp_path):
        pickle = tmp_path / "pickle.npy"
        np.save(pickle, np.array([{}], dtype=object), allow_pickle=True)
        arguments = [a.format(checkpoint=checkpoint, pickle=pickle) for a in arguments]
        assert message in fail("audit", *arguments)
