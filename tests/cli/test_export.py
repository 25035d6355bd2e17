"""Export and merging of adapters on the command line, and two columns embedded each alone."""

import numpy as np
import pytest

from isoadapt import TeacherReadout, TransformerEncoder, load_checkpoint
from isoadapt.interop import load_adapter, save_adapter
from isoadapt.interop._folder import provenance, read_config
from tests.cli.command_line import fail, succeed, texts_and_labels
from tests.tiny_models import PAIRS

library = pytest.importorskip("sentence_transformers")
WHITENING = ["--set", "shrinkage=0.1"]


class TestExport:
    def test_one_folder_with_vectors_and_labels(self, files, checkpoint):
        options = ["--on", "texts.tsv", "--model", checkpoint, "--out", "a", "--max-length", 4]
        succeed("fit", "whitening", *options, *WHITENING)
        completed = succeed("export", "a", "--model", checkpoint, "--out", "m", "--normalize")
        assert "SentenceTransformer('m')" in completed.stdout
        assert "pipeline('text-classification', 'm')" in completed.stdout
        texts = texts_and_labels()[0][:5]
        model = library.SentenceTransformer("m", device="cpu")
        assert model.max_seq_length == 4
        encoder, head = load_checkpoint("m")
        embeddings = encoder.transform(texts)
        expected = load_adapter("a").transform(embeddings)
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
        np.testing.assert_allclose(model.encode(texts), expected, atol=1e-4)
        before = load_checkpoint(checkpoint)[1]
        adapter = load_adapter("a")
        logits = adapter.head_.outputs(adapter.transform(embeddings))
        np.testing.assert_allclose(head.outputs(embeddings), logits, atol=1e-4)
        assert not np.allclose(head.coef_, before.coef_)
        assert "not empty" in fail("export", "a", "--out", "m")
        succeed("export", "a", "--out", "m", "--overwrite")  # the recorded checkpoint
        rows = library.SentenceTransformer("m", device="cpu").encode(texts)
        assert not np.allclose(np.linalg.norm(rows, axis=1), 1)

    def test_the_checkpoint_must_be_known(self, files, checkpoint):
        succeed("fit", "whitening", "--on", "X.npy", "--out", "a")
        assert "pass --model" in fail("export", "a", "--out", "m")
        assert "n_features_in_=5" in fail("export", "a", "--model", checkpoint, "--out", "m")
        assert not (files / "m").exists()

    def test_the_pooling_of_a_matrix_is_not_known(self, files, checkpoint):
        encoder = TransformerEncoder(checkpoint, pooling="mean")
        texts = texts_and_labels()[0]
        np.save("pooled.npy", encoder.transform(texts))
        succeed("fit", "whitening", "--on", "pooled.npy", "--out", "a", "--set", "head=None")
        completed = succeed("export", "a", "--model", checkpoint, "--out", "m")
        assert "Note: the adapter records no pooling" in completed.stderr
        assert "Adapted: input of the classifier's last linear layer" in completed.stdout
        options = ["--model", checkpoint, "--out", "m", "--overwrite"]
        completed = succeed("export", "a", "--pooling", "mean", *options)
        assert "records no pooling" not in completed.stderr
        assert "pooling='mean'" in completed.stdout
        expected = load_adapter("a").transform(encoder.transform(texts[:5]))
        found = library.SentenceTransformer("m", device="cpu").encode(texts[:5])
        np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())
        assert "--pooling 'sum' is unknown" in fail("export", "a", "--pooling", "sum", *options)

    def test_a_readout_of_the_last_layer(self, files, checkpoint):
        encoder = TransformerEncoder(checkpoint, pooling=[("mean", -1), ("cls", -1)])
        texts = texts_and_labels()[0]
        X = encoder.transform(texts)
        teacher = X @ np.random.default_rng(0).normal(size=(32, 8))
        save_adapter(TeacherReadout(ridge=0.1).fit(X, teacher), "a", base_model=encoder)
        completed = succeed("export", "a", "--out", "m")
        assert "Adapted: poolings of several hidden states" in completed.stdout
        assert "pipeline('text-classification', 'm')" in completed.stdout
        expected = load_adapter("a").transform(X[:5])
        found = library.SentenceTransformer("m", device="cpu").encode(texts[:5])
        np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())
        encoder = TransformerEncoder(checkpoint, pooling="readout")
        every = TeacherReadout(ridge=0.1).fit(encoder.transform(texts), teacher)
        save_adapter(every, "b", base_model=encoder)
        assert "hidden layers other than the last" in fail("export", "b", "--out", "n")
        assert not (files / "n").exists()


class TestSeparately:
    @pytest.fixture
    def pairs(self, files):
        rows = ["\t".join((*pair, str(i % 2))) for i, pair in enumerate(PAIRS) if all(pair)]
        (files / "pairs.tsv").write_text("\n".join(["a\tb\tlabel", *rows]) + "\n")
        return [pair for pair in PAIRS if all(pair)]

    def test_each_text_is_embedded_alone(self, files, checkpoint, pairs):
        options = ["--model", checkpoint, "--text", "a,b", "--separately"]
        fitted = ["--set", "shrinkage=0.5", "head=None"]
        succeed("fit", "whitening", "--on", "pairs.tsv", *options, "--out", "a", *fitted)
        succeed("transform", "a", "pairs.tsv", "both.npy", "--text", "a,b", "--separately")
        succeed("transform", "a", "pairs.tsv", "left.npy", "--text", "a")
        succeed("transform", "a", "pairs.tsv", "right.npy", "--text", "b")
        both = np.load("both.npy")
        columns = [np.load("left.npy"), np.load("right.npy")]
        np.testing.assert_array_equal(both, np.concatenate(columns))
        left, right = (list(column) for column in zip(*pairs, strict=True))
        alone = TransformerEncoder(checkpoint).transform(left + right)
        np.testing.assert_array_equal(both, load_adapter("a").transform(alone))
        np.testing.assert_allclose(both.mean(axis=0), 0, atol=1e-4)  # fitted to the same rows
        assert provenance(read_config(files / "a"))["data"]["pairs"] == "separately"

    def test_it_needs_two_columns(self, files, checkpoint, pairs):
        adapter = ["whitening", "--out", "a", "--separately", "--on"]
        message = fail("fit", *adapter, "texts.tsv", "--model", checkpoint)
        assert "needs two columns" in message
        assert "matrix" in fail("fit", *adapter, "X.npy")
        options = ["pairs.tsv", "--text", "a,b", "--model", checkpoint]
        message = fail("fit", "isotropy-layer", *adapter[1:], *options)
        assert "labels are those of pairs" in message


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
