"""One folder serves adapted vectors and the classifier, without isoadapt."""

import json
import re
import sys
import warnings

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.pipeline import make_pipeline
from tokenizers.pre_tokenizers import Split

from isoadapt import AdaptedEncoder, LinearHead, TransformerEncoder, adapters, load_checkpoint
from isoadapt.adapters import Affine
from isoadapt.interop import load_adapter, save_adapter, to_sentence_transformer
from isoadapt.interop._loaders import check_loader
from isoadapt.interop._reference import Reference, read_reference, refuse_if_wrong, rounding_limit
from tests.encoders.changes import edit
from tests.interop.conftest import LENGTH
from tests.interop.examples import CLASSES, ROWS, blurred, served_logits, without_isoadapt
from tests.tiny_models import (
    ARCHITECTURES,
    TEXTS,
    make_model,
    make_tokenizer,
    save_model,
    save_pair,
)

pytestmark = pytest.mark.filterwarnings("ignore:the adapter's head is not the checkpoint's")

library = pytest.importorskip("sentence_transformers")
modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")


def pipeline_of(encoder, adapter, y=None):
    return make_pipeline(encoder, adapter.fit(blurred(encoder), y))


def vectors_of(folder, texts=TEXTS, **options):
    with without_isoadapt():
        return library.SentenceTransformer(str(folder), device="cpu").encode(texts, **options)


def logits_of(folder, texts=TEXTS):
    return served_logits(folder, texts, padded=True, max_length=LENGTH)


def close(found, expected):
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())


def check(folder, pipeline, texts=TEXTS):
    """Vectors are those of the pipeline, in a padded batch and alone."""
    expected = np.concatenate([pipeline.transform([text]) for text in texts])
    close(vectors_of(folder, texts), expected)
    close(vectors_of(folder, texts, batch_size=1), expected)


def same_weights(first, second):
    old, new = (load_file(folder / "model.safetensors") for folder in (first, second))
    return old.keys() == new.keys() and all(torch.equal(old[name], new[name]) for name in old)


class TestClassifiers:
    def test_vectors_and_logits(self, source, sentence):
        check(sentence, make_pipeline(source.encoder, source.adapter))
        close(logits_of(sentence), source.head.outputs(source.encoder.transform(TEXTS)))
        assert same_weights(source.folder, sentence)
        model = library.SentenceTransformer(str(sentence), device="cpu")
        assert model.max_seq_length == LENGTH

    @pytest.mark.parametrize("strips", [True, False])
    @pytest.mark.parametrize("architecture", ["gpt2", "llama"])
    def test_a_decoder_without_a_bias_and_tokens_of_no_text(self, architecture, strips, tmp_path):
        model, tokenizer = make_model(architecture, num_hidden_layers=1), make_tokenizer("gpt2")
        if architecture == "llama":
            tokenizer.pad_token, tokenizer.padding_side = "[PAD]", "left"
        if not strips:
            tokenizer.backend_tokenizer.pre_tokenizer = Split(" ", "isolated")
        folder = save_pair(model, tokenizer, tmp_path / "model")
        encoder, head = load_checkpoint(folder, max_length=LENGTH)
        model = pipeline_of(encoder, adapters.LogitPreservingWhitening(head))
        out = to_sentence_transformer(model, folder, tmp_path / "out")
        texts = [*TEXTS, " ", "\n"]
        check(out, model, texts)
        close(vectors_of(out, [""], prompt="the cat"), model.transform(["the cat"]))
        close(TransformerEncoder(out, pooling="exported").transform(texts), model.transform(texts))
        assert "Write `[SEP]` for an empty text" in (out / "README.md").read_text()
        written = [text if tokenizer(text)["input_ids"] else "[SEP]" for text in texts]
        close(logits_of(out, written), head.outputs(encoder.transform(texts)))
        assert same_weights(folder, out)
        reference = read_reference(out)
        assert "" in reference.texts
        assert check_loader(out, "SentenceTransformer", reference, False).wrong is None
        settings = out / "sentence_bert_config.json"  # leaves an empty text without tokens
        settings.write_text(json.dumps({"max_seq_length": LENGTH}))
        assert "cannot be used" in check_loader(out, "SentenceTransformer", reference, False).wrong

    @pytest.mark.parametrize("architecture", ["bert", "modernbert"])
    def test_the_adapters_own_head_becomes_the_classifier(self, architecture, tmp_path):
        folder = save_model(tmp_path / "model", architecture, num_hidden_layers=1)
        encoder = TransformerEncoder(folder, max_length=LENGTH)
        model = pipeline_of(encoder, adapters.Whitening(head="logistic"), CLASSES)
        out = to_sentence_transformer(model, folder, tmp_path / "out")
        check(out, model)
        close(logits_of(out), model[-1].head_.outputs(model.transform(TEXTS)))

    def test_without_a_head_or_with_other_vectors_the_classifier_stays(self, source, tmp_path):
        mean = TransformerEncoder(source.folder, pooling="mean", max_length=LENGTH)
        for name, model in (
            ("none", pipeline_of(source.encoder, adapters.Whitening())),
            ("mean", pipeline_of(mean, adapters.Whitening(head="logistic"), CLASSES)),
        ):
            out = to_sentence_transformer(model, source.folder, tmp_path / name)
            check(out, model)
            assert same_weights(source.folder, out)
            assert "predicts as before" in (out / "README.md").read_text()


class TestModules:
    def test_length_and_normalisation_of_a_sentence_transformers_folder(self, bare, tmp_path):
        pooling = modules.Pooling(16, ("mean", "max"))
        parts = [modules.Transformer(str(bare)), pooling, modules.Normalize()]
        model = library.SentenceTransformer(modules=parts, device="cpu")
        model.max_seq_length = LENGTH
        model.save(str(tmp_path / "model"))
        encoder = TransformerEncoder(tmp_path / "model")
        pipeline = pipeline_of(encoder, adapters.Whitening(n_components=4))
        out = to_sentence_transformer(pipeline, tmp_path / "model", tmp_path / "out")
        check(out, pipeline)
        assert library.SentenceTransformer(str(out), device="cpu").max_seq_length == LENGTH

    @pytest.mark.parametrize("name", ["dense", "truncated", "weightedmean"])
    def test_further_modules_and_fewer_columns(self, name, bare, tmp_path):
        dense = modules.Dense(16, 12, activation_function=torch.nn.GELU())
        more = [modules.Normalize(), dense] if name == "dense" else [modules.LayerNorm(16)]
        pooling = modules.Pooling(16, "cls")
        if name == "weightedmean":  # which no parameter of an encoder names
            pooling, more = modules.Pooling(16, name), []
        parts = [modules.Transformer(str(bare)), pooling, *more]
        cut = 5 if name == "truncated" else None
        model = tmp_path / "model"
        library.SentenceTransformer(modules=parts, device="cpu", truncate_dim=cut).save(str(model))
        edit(model, "sentence_bert_config.json", max_seq_length=None)
        pipeline = pipeline_of(TransformerEncoder(model), adapters.Whitening(shrinkage=0.1))
        path = save_adapter(pipeline[1], tmp_path / "saved", base_model=pipeline[0])
        saved = load_adapter(path)
        out = to_sentence_transformer(saved, model, tmp_path / "out")
        check(out, pipeline)
        edit(model, "config_sentence_transformers.json", truncate_dim=4)
        with pytest.raises(ValueError, match=r"fitted to vectors of another|have width 4"):
            to_sentence_transformer(saved, model, tmp_path / "other")


LAST = [("cls", -1), ("mean", -1)]


def readout(folder, pooling, head=None, **options):
    encoder = TransformerEncoder(folder, pooling=pooling, max_length=LENGTH)
    X = blurred(encoder)
    teacher = X @ np.random.default_rng(0).normal(size=(X.shape[1], 8))
    return make_pipeline(
        encoder, adapters.TeacherReadout(head, ridge=0.01, **options).fit(X, teacher)
    )


class TestReadouts:
    @pytest.mark.parametrize("pooling", [LAST[::-1], [("max", 1), ("mean", -1), ("cls", 1)]])
    def test_vectors_of_the_readout_and_logits_of_the_checkpoint(self, source, tmp_path, pooling):
        """The poolings are those of the pipeline, or recorded by the folder of the readout."""
        given = pipeline = readout(source.folder, pooling)
        if pooling[0] == LAST[1]:
            save_adapter(pipeline[-1], tmp_path / "a", base_model=pipeline[0])
            given = make_pipeline(load_adapter(tmp_path / "a"))
        out = to_sentence_transformer(given, source.folder, tmp_path / "m")
        check(out, pipeline)
        np.testing.assert_array_equal(logits_of(out), logits_of(source.folder))
        card = (out / "README.md").read_text()
        assert "Transformer → Pooling → Dense" in card
        assert "the teacher is usually the better choice" in card

    @pytest.mark.parametrize("space", ["teacher", "head"])
    def test_the_head_reads_the_input_of_the_readout(self, source, tmp_path, space):
        """A readout of the head's input alone: the logits are those of its head on this input."""
        own = source.head
        other = LinearHead(own.coef_[::-1] + 1, own.intercept_, own.classes_)
        head = own if space == "head" else other
        pipeline = readout(source.folder, "head_input", head, space=space)
        out = to_sentence_transformer(pipeline, source.folder, tmp_path / "m")
        check(out, pipeline)
        close(logits_of(out), head.outputs(pipeline[0].transform(TEXTS)))


class TestFolder:
    def test_the_card_tells_both_uses_and_what_was_measured(self, sentence, monkeypatch):
        card = (sentence / "README.md").read_text()
        assert re.search(r"Largest differences: cosines \d\.\de-\d\d", card)
        assert re.search(r"logits \d\.\de-\d\d \(relative\)", card)
        assert "LogitPreservingWhitening" in card
        assert str(sentence) not in card
        monkeypatch.chdir(sentence.parent)
        first, second = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
        with without_isoadapt():
            exec(first + second, {})
        assert "pipeline(" in second

    def test_adapters_alone_and_unit_length(self, source, tmp_path):
        """Pooling and length are recorded, those of an encoder, or assumed."""
        encoder = TransformerEncoder(source.folder, pooling="mean", max_length=LENGTH)
        pipeline = pipeline_of(encoder, adapters.Whitening())
        saved = load_adapter(save_adapter(pipeline[1], tmp_path / "adapter", base_model=encoder))
        with warnings.catch_warnings(action="error", category=UserWarning):
            to_sentence_transformer(saved, source.folder, tmp_path / "a")
            to_sentence_transformer(pipeline, source.folder, tmp_path / "b", normalize=True)
        expected = pipeline.transform(TEXTS)
        close(vectors_of(tmp_path / "a"), expected)
        unit = expected / np.linalg.norm(expected, axis=1, keepdims=True)
        close(vectors_of(tmp_path / "b"), unit)
        with pytest.warns(UserWarning, match=r"records no pooling.*pooling='head_input'"):
            out = to_sentence_transformer(
                pipeline[1], source.folder, tmp_path / "a", overwrite=True
            )
        assert "pooling='head_input'" in (out / "README.md").read_text()


class TestDifferences:
    """What is compared before a folder appears: rounding passes, however amplified."""

    @pytest.mark.slow
    @pytest.mark.parametrize("architecture", ARCHITECTURES)
    def test_fit_and_export_at_defaults(self, tmp_path, architecture):
        folder = save_model(tmp_path / "model", architecture)
        model = AdaptedEncoder(folder, adapters.LogitPreservingWhitening()).fit(ROWS)
        out = to_sentence_transformer(model, folder, tmp_path / "out")
        close(vectors_of(out, ROWS[:20]), model.transform(ROWS[:20]))

    def test_a_map_that_takes_a_large_mean_away_amplifies_rounding(self):
        small = np.random.default_rng(0).normal(size=(20, 4))
        vectors = small + 1000
        gain = (np.linalg.norm(vectors, axis=1) / np.linalg.norm(small, axis=1)).max()
        centring = Affine(np.eye(4), np.full(4, -1000.0))
        assert rounding_limit(centring, vectors) == pytest.approx(2e-6 * gain)
        assert rounding_limit(Affine(9 * np.eye(4), np.zeros(4)), vectors) == 1e-5

    def test_another_neighbour_or_prediction_is_an_error(self):
        angles = np.array([0.0, 0.100, -0.101, 2.0])  # the first vector's neighbours nearly tie
        moved, vectors = (
            np.column_stack([np.cos(turned), np.sin(turned)])
            for turned in (angles - [0.001, 0, 0, 0], angles)
        )
        reference = Reference(TEXTS[:4], vectors, None, 1e-6, {})
        with pytest.raises(ValueError, match="nearest neighbours"):
            refuse_if_wrong(reference.compare({"vectors": [moved]}, {}))
        logits = np.array([[1.0, 1.001], [3.0, -1.0]])
        found = {"logits": [logits - [0, 0.002]]}
        reference = Reference(TEXTS[:2], None, logits, 1e-6, {})
        with pytest.raises(ValueError, match="predictions of the exported model"):
            refuse_if_wrong(reference.compare(found, {}))
        check = reference._replace(limit=1e-3).compare(found, {})
        refuse_if_wrong(check)
        assert check.differences == {"logits": pytest.approx(0.002 / 3)}

    def test_a_wrong_folder_is_not_published(self, source, tmp_path, monkeypatch):
        encode = library.SentenceTransformer.encode
        shifted = lambda self, *texts, **options: encode(self, *texts, **options) + 1  # noqa: E731
        monkeypatch.setattr(library.SentenceTransformer, "encode", shifted)
        with pytest.raises(ValueError, match="cosines of the exported model differ by"):
            to_sentence_transformer(source.adapter, source.folder, tmp_path / "out")
        assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_exported_is_named(source, bare, tmp_path, monkeypatch):
    model, out = make_pipeline(source.encoder, source.adapter), tmp_path / "out"
    other = save_model(tmp_path / "other", num_labels=4, num_hidden_layers=1, layer_norm_eps=0.1)
    flow = adapters.FlowAdapter(max_epochs=1).fit(source.rows)
    for adapter, folder, named in (
        (model, bare, "no weights for classifier"),
        (model, other, "another checkpoint"),
        (flow, source.folder, "not an affine map"),
        (adapters.Whitening().fit(np.eye(5)), source.folder, "n_features_in_=5.*width 16"),
    ):
        with pytest.raises(ValueError, match=named):
            to_sentence_transformer(adapter, folder, out)
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(ImportError, match=r"isoadapt\[st\]"):
        to_sentence_transformer(model, source.folder, out)
    assert not out.exists()


@pytest.mark.parametrize(
    ("architecture", "options", "match"),
    [
        ("bart", {}, "head_input.* of Bart.*: the decoder follows the encoder; serve it with"),
        ("modernbert", {"norm_eps": 1e-3}, "eps=0.001"),
        ("fnet", {}, "cosines .* differ"),
    ],
)
def test_architectures_that_cannot_be_expressed(tmp_path, architecture, options, match):
    folder = save_model(tmp_path / "model", architecture, **options)
    encoder, head = load_checkpoint(folder)
    model = pipeline_of(encoder, adapters.LogitPreservingWhitening(head))
    with pytest.raises(ValueError, match=match):
        to_sentence_transformer(model, folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()
