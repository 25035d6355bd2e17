"""Readouts of the last layer as sentence-transformers models, with the checkpoint's classifier."""

import warnings

import numpy as np
import pytest
from sklearn.pipeline import make_pipeline

from isoadapt import LinearHead, TeacherReadout, TransformerEncoder, load_checkpoint
from isoadapt.interop import load_adapter, save_adapter, to_sentence_transformer
from tests.interop.test_sentence_transformer import LENGTH, ROWS, logits_of, vectors_of
from tests.tiny_models import TEXTS

rng = np.random.default_rng(0)
LAST = [("cls", -1), ("mean", -1)]


def readout(checkpoint, pooling, head=None, **options):
    """A pipeline of encoder and readout, with noise because a random model has empty directions."""
    encoder = TransformerEncoder(checkpoint, pooling=pooling, max_length=LENGTH)
    X = encoder.transform(ROWS).astype(np.float64)
    X += 0.3 * X.std() * rng.normal(size=X.shape)
    teacher = X @ rng.normal(size=(X.shape[1], 8))
    return make_pipeline(encoder, TeacherReadout(head, ridge=0.01, **options).fit(X, teacher))


class TestReadouts:
    @pytest.mark.parametrize(
        "pooling",
        [LAST, LAST[::-1], [("max", 2), ("mean", -1), ("cls", 2)], [("mean", -1)]],
        ids=lambda parts: "+".join(mode for mode, _ in parts),
    )
    def test_vectors_of_the_readout_and_logits_of_the_checkpoint(
        self, checkpoint, tmp_path, pooling
    ):
        pipeline = readout(checkpoint, pooling)
        to_sentence_transformer(pipeline, checkpoint, tmp_path / "m")
        expected = pipeline.transform(TEXTS)
        found = vectors_of(tmp_path / "m")
        np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())
        np.testing.assert_array_equal(logits_of(tmp_path / "m"), logits_of(checkpoint))
        card = (tmp_path / "m" / "README.md").read_text()
        assert "Transformer → Pooling → Dense" in card
        assert "predictions are unchanged" in card
        assert "the teacher is usually the better choice" in card
        assert "LogitPreservingWhitening" not in card

    def test_saved_readouts_and_their_cards(self, checkpoint, tmp_path):
        """The folder records the poolings, of the readout alone and of a pipeline."""
        pipeline = readout(checkpoint, LAST[::-1])
        save_adapter(pipeline[-1], tmp_path / "alone", base_model=pipeline[0])
        save_adapter(pipeline, tmp_path / "whole")
        expected = pipeline.transform(TEXTS)
        for name, options in (("alone", {"max_length": LENGTH}), ("whole", {})):
            saved = load_adapter(tmp_path / name)
            with warnings.catch_warnings(action="error", category=UserWarning):
                to_sentence_transformer(saved, checkpoint, tmp_path / f"m-{name}", **options)
            np.testing.assert_allclose(vectors_of(tmp_path / f"m-{name}"), expected, atol=1e-4)
        card = (tmp_path / "alone" / "README.md").read_text()
        assert "pooling=[('mean', 2), ('cls', 2)])" in card

    def test_a_readout_alone_needs_its_poolings(self, checkpoint, tmp_path):
        pipeline = readout(checkpoint, LAST)
        with pytest.raises(
            ValueError, match=r"n_features_in_=32.*width 16: .*export it with the pooling="
        ):
            to_sentence_transformer(pipeline[-1], checkpoint, tmp_path / "m")
        given = {"pooling": LAST, "max_length": LENGTH}
        to_sentence_transformer(pipeline[-1], checkpoint, tmp_path / "m", **given)
        np.testing.assert_allclose(vectors_of(tmp_path / "m"), pipeline.transform(TEXTS), atol=1e-4)

    @pytest.mark.parametrize("space", ["teacher", "head"])
    def test_the_head_reads_the_input_of_the_readout(self, checkpoint, tmp_path, space):
        """A readout of the head's input alone: the logits are those of its head on this input."""
        own = load_checkpoint(checkpoint)[1]
        pipeline = readout(checkpoint, "head_input", own, space=space)
        to_sentence_transformer(pipeline, checkpoint, tmp_path / "m")
        np.testing.assert_allclose(vectors_of(tmp_path / "m"), pipeline.transform(TEXTS), atol=1e-4)
        np.testing.assert_array_equal(load_checkpoint(tmp_path / "m")[1].coef_, own.coef_)
        other = LinearHead(own.coef_[::-1] + 1, own.intercept_, own.classes_)
        pipeline = readout(checkpoint, "head_input", other, space=space)
        to_sentence_transformer(pipeline, checkpoint, tmp_path / "m", overwrite=True)
        expected = other.outputs(pipeline[0].transform(TEXTS))
        np.testing.assert_allclose(logits_of(tmp_path / "m"), expected, atol=1e-5)

    @pytest.mark.parametrize(
        "pooling", ["readout", [("mean", 1), ("cls", -1)], [("head_input", -1), ("mean", -1)]]
    )
    def test_other_columns_are_refused(self, checkpoint, tmp_path, pooling):
        match = r"pooling=\(\(.*hidden layers other than the last \(2\), or the input of the head"
        match += r".*space='head'.*AdaptedEncoder.*joblib"
        pipeline = readout(checkpoint, pooling)
        save_adapter(pipeline[-1], tmp_path / "a", base_model=pipeline[0])
        for given in (pipeline, load_adapter(tmp_path / "a")):
            with pytest.raises(ValueError, match=match):
                to_sentence_transformer(given, checkpoint, tmp_path / "m")
        assert not (tmp_path / "m").exists()
