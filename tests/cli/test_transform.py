"""Applying saved adapters on the command line."""

import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest

from isoadapt import TransformerEncoder, Whitening
from isoadapt.interop import load_adapter, save_adapter
from tests.cli.command_line import X, fail, succeed, texts_and_labels
from tests.tiny_models import make_model, make_tokenizer, save_model, save_pair

rng = np.random.default_rng(0)


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

    def test_a_file_is_replaced_only_if_allowed_and_the_command_succeeds(self, adapter, files):
        (files / "out.npy").write_text("precious")
        assert "'out.npy' exists; choose another" in fail("transform", "a", "X.npy", "out.npy")
        np.save("narrow.npy", X[:, :3])
        assert "3 features" in fail("transform", "a", "narrow.npy", "out.npy", "--overwrite")
        assert (files / "out.npy").read_text() == "precious"
        message = fail("transform", "a", "X.npy", "X.npy", "--overwrite")
        assert "is the input file" in message
        np.testing.assert_array_equal(np.load("X.npy"), X)
        succeed("transform", "a", "X.npy", "out.npy", "--overwrite")
        np.testing.assert_array_equal(np.load("out.npy"), adapter.transform(X))

    def test_into_parquet(self, adapter):
        succeed("transform", "a", "X.npy", "out.parquet")
        found = pd.read_parquet("out.parquet")
        assert list(found.columns) == [f"whitening{i}" for i in range(5)]
        np.testing.assert_array_equal(found.to_numpy(), adapter.transform(X))

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_into_csv_with_all_digits(self, dtype, adapter):
        np.save("Z.npy", X[:9].astype(dtype))
        succeed("transform", "a", "Z.npy", "out.csv")
        found = pd.read_csv("out.csv", dtype=dtype)
        assert list(found.columns) == [f"whitening{i}" for i in range(5)]
        np.testing.assert_array_equal(found.to_numpy(), adapter.transform(X[:9].astype(dtype)))

    def test_a_column_of_vectors(self, adapter):
        vectors = pd.DataFrame({"id": range(len(X)), "a": list(X), "b": list(-X)})
        vectors.to_parquet("vectors.parquet")
        assert "--text a" in fail("transform", "a", "vectors.parquet", "out.npy")
        succeed("transform", "a", "vectors.parquet", "out.parquet", "--text", "b")
        np.testing.assert_array_equal(pd.read_parquet("out.parquet"), adapter.transform(-X))
        assert succeed("audit", "out.parquet").stdout.startswith(f"IsotropyReport: {len(X)} × 5\n")
        vectors[["id", "a"]].to_parquet("vectors.parquet")
        assert succeed("audit", "vectors.parquet").stdout == succeed("audit", "X.npy").stdout

    def test_columns_are_found_by_name(self, files):
        succeed("fit", "whitening", "--on", "X.parquet", "--out", "a")
        table = pd.read_parquet("X.parquet")
        table.assign(more=1.0)[["more", "f4", "f3", "f2", "f1", "f0"]].to_parquet("other.parquet")
        succeed("transform", "a", "other.parquet", "out.npy")
        np.testing.assert_array_equal(np.load("out.npy"), Whitening().fit_transform(X))
        table[["f0", "f1"]].to_parquet("other.parquet")
        assert "['f2', 'f3', 'f4']" in fail("transform", "a", "other.parquet", "narrow.npy")

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
        assert "is not a folder here: pass --model" in message
        succeed("transform", "a", "texts.tsv", "moved.npy", "--model", "moved")
        np.testing.assert_array_equal(np.load("moved.npy"), np.load("own.npy"))

    def test_labels_are_not_read(self, files, checkpoint):
        options = ["--model", checkpoint, "--out", "a", "--set", "shrinkage=0.1"]
        succeed("fit", "whitening", "--on", "texts.tsv", *options)
        texts, labels = texts_and_labels()
        some = pd.DataFrame({"sentence": texts, "label": ["" if i % 3 else "x" for i in labels]})
        some.to_csv("some.tsv", sep="\t", index=False)
        for name in ("texts.tsv", "some.tsv"):
            succeed("transform", "a", name, f"{name}.npy")
        np.testing.assert_array_equal(np.load("texts.tsv.npy"), np.load("some.tsv.npy"))

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["absent", "X.npy", "out.npy"], "is not a folder; pass one that save_adapter wrote"),
            (["a", "absent.npy", "out.npy"], "absent.npy"),
            (["a", "X.npy", "out.tsv"], r"must end in \.npy, \.csv or \.parquet"),
            (["a", "X.npy", "absent/out.npy"], "'absent' is not a folder"),
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
        save_pair(model, make_tokenizer(), files / "other")
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
        assert re.search(r"of another checkpoint .* than '.*other', with other weights", message)
        assert not (files / "merged").exists()
        assert not (files / "out.npy").exists()

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
