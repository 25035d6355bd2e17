"""Export and merging of adapters on the command line."""

import json

import numpy as np
import pytest

from isoadapt import AdaptedEncoder, TransformerEncoder, Whitening, load_checkpoint
from isoadapt.interop import load_adapter, save_adapter
from isoadapt.interop._reference import read_reference
from tests.cli.command_line import fail, refuse, run, succeed, texts_and_labels

library = pytest.importorskip("sentence_transformers")


def exported(texts):
    return library.SentenceTransformer("m", device="cpu").encode(texts)


class TestExport:
    def test_one_folder_with_vectors_and_labels(self, files):
        texts = texts_and_labels()[0][:5]
        completed = succeed("export", "my-adapter", "--out", "m", "--normalize")
        assert "SentenceTransformer('m')" in completed.stdout
        assert "pipeline('text-classification', 'm')" in completed.stdout
        adapter = load_adapter("my-adapter")
        short = TransformerEncoder("my-model", max_length=4)  # the length of the fit
        expected = adapter.transform(short.transform(texts))
        unit = expected / np.linalg.norm(expected, axis=1, keepdims=True)
        np.testing.assert_allclose(exported(texts), unit, atol=1e-4)
        encoder, head = load_checkpoint("m")
        embeddings = encoder.transform(texts)
        logits = adapter.head_.outputs(adapter.transform(embeddings))
        np.testing.assert_allclose(head.outputs(embeddings), logits, atol=1e-4)
        refuse("not empty", "export", "my-adapter", "--out", "m")

    def test_the_pooling_of_a_matrix_is_not_known(self, files):
        encoder = TransformerEncoder("my-model", pooling="mean")
        texts = texts_and_labels()[0]
        save_adapter(Whitening().fit(encoder.transform(texts)), "a")
        options = ["--model", "my-model", "--out", "m", "--overwrite"]
        completed = succeed("export", "a", *options)
        assert "Note: the adapter records no pooling" in completed.stderr
        assert "Adapted: input of the classifier's last linear layer" in completed.stdout
        completed = succeed("export", "a", "--pooling", "mean", *options)
        assert "records no pooling" not in completed.stderr
        assert "pooling='mean'" in completed.stdout
        expected = load_adapter("a").transform(encoder.transform(texts[:5]))
        np.testing.assert_allclose(exported(texts[:5]), expected, atol=1e-4 * abs(expected).max())


@pytest.mark.parametrize("right", [True, False])
def test_the_status_of_check_says_whether_the_model_is_as_exported(right, monkeypatch):
    monkeypatch.setattr("isoadapt.cli._export.check", lambda *given: right)
    assert run("check", ".").code == (0 if right else 1)


def test_the_merged_checkpoint_predicts_like_the_adapter(files):
    line = ["export", "my-adapter", "--merge", "--out", "merged"]
    completed = succeed(*line)
    assert "AutoModelForSequenceClassification.from_pretrained('merged')" in completed.stdout
    encoder, head = load_checkpoint("merged")
    embeddings = encoder.transform(texts_and_labels()[0])
    expected = load_adapter("my-adapter").predict_proba(embeddings)
    np.testing.assert_allclose(head.predict_proba(embeddings), expected, atol=1e-4)
    refuse("not empty", *line)
    arguments = ["--model", "my-model", "--overwrite", "--json"]
    found = json.loads(succeed(*line, *arguments).stdout)
    (note,) = found.pop("notes")
    assert note in completed.stderr
    assert found == {"model": "merged", "head": "adapter"}
    save_adapter(Whitening().fit(embeddings), "bare")
    bare = succeed("export", "bare", *line[2:], *arguments)
    assert json.loads(bare.stdout)["head"] == "checkpoint"


def test_a_readout_of_hidden_layers_becomes_a_folder_with_code(files):
    line = "fit teacher-readout --on texts.tsv --model my-model --teacher my-base --out readout"
    succeed(*line.split())
    completed = succeed("export", "readout", "--out", "m")
    assert "SentenceTransformer('m', trust_remote_code=True)" in completed.stdout
    assert "pipeline('text-classification', 'm')" in completed.stdout
    assert "SentenceTransformer: cosines" in succeed("check", "m").stdout


def test_which_vectors_of_an_exported_folder_are_meant(files):
    texts = texts_and_labels()[0]
    succeed("export", "my-adapter", "--out", "m")
    audit = ["audit", "m", "texts.tsv", "--json"]
    read = succeed(*audit[:3]).stdout
    assert "Next: measure the repaired vectors" in read
    assert "\n  isoadapt audit m texts.tsv --vectors exported\n" in read
    assert "isoadapt fit" not in read
    with pytest.warns(UserWarning, match="also holds repaired vectors.*pooling='exported'"):
        AdaptedEncoder("m", Whitening()).fit(texts)
    encoder = TransformerEncoder("m", pooling="exported")
    np.testing.assert_allclose(encoder.transform(texts), exported(texts), atol=1e-4)
    assert encoder.identity() != TransformerEncoder("m").identity()
    found = succeed(*audit, "--vectors", "exported")
    assert "repaired" not in found.stdout
    assert json.loads(found.stdout)["isoscore"] > 2 * json.loads(succeed(*audit).stdout)["isoscore"]
    saved = save_adapter(Whitening().fit(encoder.transform(texts)), "again", base_model=encoder)
    assert read_reference(saved).settings["pooling"] == "exported"
    plain = fail("audit", "my-model", *audit[2:], "--vectors", "exported")
    assert "to_sentence_transformer wrote" in plain
