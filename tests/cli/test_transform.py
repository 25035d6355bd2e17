"""Applying saved adapters on the command line."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest

from isoadapt import TransformerEncoder, Whitening
from isoadapt.interop import load_adapter, save_adapter
from tests.cli.command_line import X, refuse, succeed, texts_and_labels
from tests.tiny_models import save_model


class TestMatrix:
    @pytest.fixture
    def adapter(self, files):
        save_adapter(Whitening().fit(X), "a")
        return load_adapter("a")

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_the_file_holds_all_digits(self, dtype, adapter):
        np.save("Z.npy", X[:9].astype(dtype))
        for suffix in ("npy", "csv", "parquet"):
            completed = succeed("transform", "a", "Z.npy", f"out.{suffix}")
            assert completed.stdout == f"Wrote 9 × 5 ({dtype}): out.{suffix}\n"
        csv = pd.read_csv("out.csv", dtype=str).astype(dtype)
        tables = csv, pd.read_parquet("out.parquet")
        assert [[*table.columns] for table in tables] == [[f"whitening{i}" for i in range(5)]] * 2
        for found in (np.load("out.npy"), *(table.to_numpy() for table in tables)):
            assert found.dtype == dtype
            np.testing.assert_array_equal(found, adapter.transform(X[:9].astype(dtype)))

    def test_a_file_is_replaced_only_if_allowed_and_by_success(self, adapter, files, monkeypatch):
        (files / "out.npy").write_text("precious")
        refuse("'out.npy' exists", "transform", "a", "X.npy", "out.npy")
        np.save("narrow.npy", X[:, :3])
        refuse("3 features", "transform", "a", "narrow.npy", "out.npy", "--overwrite")
        with monkeypatch.context() as patch:
            patch.setattr("isoadapt.cli._transform.np.save", half_written)
            refuse("disk is full", "transform", "a", "X.npy", "out.npy", "--overwrite")
        assert (files / "out.npy").read_text() == "precious"
        succeed("transform", "a", "X.npy", "out.npy", "--overwrite")
        np.testing.assert_array_equal(np.load("out.npy"), adapter.transform(X))

    def test_columns_of_parquet(self, adapter):
        vectors = pd.DataFrame({"id": range(len(X)), "a": list(X), "b": list(-X)})
        vectors.to_parquet("vectors.parquet")
        refuse("--text a", "transform", "a", "vectors.parquet", "out.npy")
        succeed("transform", "a", "vectors.parquet", "vectors.npy", "--text", "b")
        np.testing.assert_array_equal(np.load("vectors.npy"), adapter.transform(-X))
        table = pd.read_parquet("X.parquet")
        save_adapter(Whitening().fit(table[[f"f{i}" for i in range(5)]]), "b")
        table.assign(more=1.0)[["more", "f4", "f3", "f2", "f1", "f0"]].to_parquet("other.parquet")
        succeed("transform", "b", "other.parquet", "named.npy")
        np.testing.assert_array_equal(np.load("named.npy"), adapter.transform(X))


def half_written(file, array):
    file.write(b"half of the")
    raise OSError("the disk is full")


class TestTexts:
    """The adapter my-adapter was fitted with my-model to texts of at most 4 tokens."""

    def expected(self, folder, **options):
        encoder = TransformerEncoder("my-model", **options)
        return load_adapter(folder).transform(encoder.transform(texts_and_labels()[0]))

    def test_model_and_length_are_those_of_the_folder_unless_given(self, place, files):
        table = pd.DataFrame({"sentence": texts_and_labels()[0], "label": ["x", "", ""] * 20})
        table.to_csv("some.tsv", sep="\t", index=False)  # labels are not read
        succeed("transform", "my-adapter", "some.tsv", "own.npy")
        expected = self.expected("my-adapter", max_length=4)
        np.testing.assert_array_equal(np.load("own.npy"), expected)
        np.testing.assert_allclose(expected.mean(axis=0), 0, atol=1e-4)  # as in the fit
        shutil.copytree("my-model", "copy")
        options = ["--max-length", 8, "--model", "copy"]
        succeed("transform", "my-adapter", "texts.tsv", "longer.npy", *options)
        found = np.load("longer.npy")
        np.testing.assert_array_equal(found, self.expected("my-adapter", max_length=8))
        settings = json.loads((files / "my-adapter" / "reference.json").read_text())["settings"]
        own = {"pooling": "head_input", "max_length": 4, "model": str(place / "my-model")}
        assert settings.items() >= own.items()  # a relative name was given

    def test_another_model_is_refused_but_for_an_adapter_without_a_record(self, files):
        save_model(files / "other", intermediate_size=32)
        other = ["texts.tsv", "out.npy", "--model", "other"]
        refuse("of another checkpoint .* than '.*other'", "transform", "my-adapter", *other)
        np.save("E.npy", TransformerEncoder("my-model").transform(texts_and_labels()[0]))
        save_adapter(Whitening(shrinkage=0.1).fit(np.load("E.npy")), "bare")
        succeed("transform", "bare", *other)

    def test_the_layer_is_that_of_the_record(self, files):
        encoder = TransformerEncoder("my-model", pooling="mean", layer=1)
        vectors = encoder.transform(texts_and_labels()[0])
        save_adapter(Whitening(shrinkage=0.1).fit(vectors), "inner", base_model=encoder)
        succeed("transform", "inner", "texts.tsv", "out.npy")
        np.testing.assert_array_equal(np.load("out.npy"), load_adapter("inner").transform(vectors))
