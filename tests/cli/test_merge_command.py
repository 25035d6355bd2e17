"""Merging adapters into checkpoints on the command line."""

import numpy as np

from isoadapt import load_checkpoint
from isoadapt.interop import load_adapter
from tests.cli.command_line import fail, succeed, texts_and_labels


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
