"""What a checkpoint is: a classifier by its class, a CrossEncoder, or an encoder alone."""

import numpy as np
import pytest
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

from isoadapt import AdaptedEncoder, IsotropyLayer, Whitening, load_checkpoint
from isoadapt.encoders import TransformerEncoder, layer_report
from isoadapt.interop import merge_into_checkpoint, to_sentence_transformer
from tests.encoders.changes import edit
from tests.tiny_models import PAIRS, TEXTS, logits_of, make_model, save_model

ST_CONFIG, BERT_CONFIG = "config_sentence_transformers.json", "sentence_bert_config.json"
SIGMOID, LINEAR = "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"


def has_head(folder):
    return TransformerEncoder(folder).open().backbone.head is not None


class TestClassifiers:
    @pytest.mark.parametrize("classes", [None, ["BertForMultiLabelClassification"]])
    def test_the_head_of_an_unknown_class_is_read_if_it_is_asked_for(self, classes, tmp_path):
        folder = edit(save_model(tmp_path), architectures=classes)
        with pytest.raises(ValueError, match=r"weights classifier.bias.*'head_input'"):
            TransformerEncoder(folder).transform(TEXTS)
        encoder, head = load_checkpoint(folder)
        expected = logits_of(make_model(), TEXTS)
        np.testing.assert_allclose(head.outputs(encoder.transform(TEXTS)), expected, atol=1e-4)

    @pytest.mark.parametrize(
        ("architecture", "kind"), [("bert", "MaskedLM"), ("gpt2", "CausalLM"), ("bert", "")]
    )
    def test_other_heads_are_not_taken_for_one(self, architecture, kind, tmp_path):
        kind = f"AutoModelFor{kind}" if kind else "AutoModel"
        folder = save_model(tmp_path, architecture, kind=kind)
        for classes in ((), ["MyModel"]):
            assert not has_head(edit(folder, architectures=list(classes)))
            assert TransformerEncoder(folder).transform(TEXTS[:1]).shape == (1, 16)

    def test_where_weights_are_the_same_the_class_decides(self, tmp_path):
        """ModernBERT's classifiers of tokens and of texts have the same weights."""
        folder = save_model(tmp_path, "modernbert", kind="AutoModelForTokenClassification")
        assert not has_head(folder)
        with pytest.raises(ValueError, match="ForTokenClassification"):
            load_checkpoint(folder)


def predict(folder, pairs=PAIRS):
    return CrossEncoder(str(folder)).predict(pairs, batch_size=1)


def save_cross(folder, record, architecture="bert"):
    """A model with one output, with the record of a version of sentence-transformers."""
    save_model(folder, architecture, num_labels=1, model_max_length=60)
    return edit(folder, ST_CONFIG if "model_type" in record else "config.json", **record)


class TestCrossEncoders:
    @pytest.mark.parametrize(
        ("architecture", "record"),
        [
            ("bert", {"model_type": "CrossEncoder", "activation_fn": SIGMOID}),
            ("roberta", {"model_type": "CrossEncoder"}),
            ("modernbert", {"sentence_transformers": {"activation_fn": SIGMOID}}),
            ("bert", {"sbert_ce_default_activation_function": SIGMOID}),
        ],
    )
    def test_a_sigmoid_gives_two_classes(self, architecture, record, tmp_path):
        expected = predict(save_cross(tmp_path, record, architecture))
        encoder, head = load_checkpoint(tmp_path)
        X = encoder.transform(PAIRS)
        assert head.classes_.tolist() == [0, 1]
        np.testing.assert_allclose(head.predict_proba(X)[:, 1], expected, atol=1e-5)
        logits = np.log(expected / (1 - expected))
        np.testing.assert_allclose(head.decision_function(X), logits, atol=1e-4)

    @pytest.mark.parametrize(
        "record",
        [
            {},
            {"problem_type": "regression", "sentence_transformers": {"activation_fn": SIGMOID}},
            {"sbert_ce_default_activation_function": LINEAR},
        ],
    )
    def test_without_a_sigmoid_it_is_a_regressor(self, record, tmp_path):
        encoder, head = load_checkpoint(save_cross(tmp_path, record))
        assert head.classes_ is None
        expected = logits_of(make_model(num_labels=1), TEXTS[:1])[:, 0]
        np.testing.assert_allclose(head.predict(encoder.transform(TEXTS[:1])), expected, atol=1e-5)

    @pytest.mark.filterwarnings("ignore:this fit harms the task|the adapter's head is not")
    @pytest.mark.parametrize(
        ("write", "training"),
        [(merge_into_checkpoint, "joint"), (to_sentence_transformer, "frozen")],
    )
    def test_exports_have_one_output(self, write, training, tmp_path):
        source = save_cross(tmp_path / "source", {"model_type": "CrossEncoder"})
        layer = IsotropyLayer(max_epochs=1, random_state=0, head_training=training)
        model = AdaptedEncoder(source, layer).fit(PAIRS * 4, [0, 1] * 2 * len(PAIRS))
        write(model, source, tmp_path / "out")
        expected = model.predict_proba(PAIRS)[:, 1]
        np.testing.assert_allclose(predict(tmp_path / "out"), expected, atol=1e-5)

    def test_the_length_is_applied_and_the_case_refused(self, tmp_path):
        folder = tmp_path / "cross"
        CrossEncoder(str(save_cross(tmp_path / "plain", {}))).save_pretrained(str(folder))
        plain = predict(folder, PAIRS)
        edit(folder, BERT_CONFIG, max_seq_length=6)
        expected = predict(folder, PAIRS)
        assert np.abs(expected - plain).max() > 1e-3
        encoder, head = load_checkpoint(folder, pooling="readout")
        X = encoder.transform(PAIRS)[:, : head.n_features_in_]
        np.testing.assert_allclose(head.predict_proba(X)[:, 1], expected, atol=1e-5)
        model = AdaptedEncoder(folder, Whitening(shrinkage=0.5)).fit(PAIRS)
        merge_into_checkpoint(model, folder, tmp_path / "merged")
        expected = head.predict_proba(model.transform(PAIRS))[:, 1]
        np.testing.assert_allclose(predict(tmp_path / "merged", PAIRS), expected, atol=1e-5)
        edit(folder, BERT_CONFIG, do_lower_case=True)
        with pytest.raises(ValueError, match="CrossEncoder with modules or settings"):
            load_checkpoint(folder)[0].transform(PAIRS)


class TestEncoders:
    """Of an encoder-decoder, vectors are those of the encoder, as in sentence-transformers."""

    def save(self, architecture, folder):
        """Save a model, and a SentenceTransformer with the mean of its states."""
        plain = save_model(folder / "plain", architecture, kind="AutoModel")
        live = SentenceTransformer(modules=[Transformer(str(plain)), Pooling(16, "mean")])
        live.save(str(folder / "st"))
        return plain, live, folder / "st"

    @pytest.mark.filterwarnings("ignore:7 different texts")
    def test_alone_and_in_sentence_transformers(self, tmp_path):
        plain, live, folder = self.save("t5", tmp_path)
        expected = live.encode(TEXTS)
        edit(plain, architectures=None)
        for model, pooling in ((plain, "mean"), (folder, "auto")):
            found = TransformerEncoder(model, pooling=pooling).transform(TEXTS)
            np.testing.assert_allclose(found, expected, atol=1e-5)
        assert TransformerEncoder(plain, layer=1).transform(TEXTS).shape == (len(TEXTS), 16)
        assert len(layer_report(plain, TEXTS)) == 3

    def test_states_of_a_decoder_are_those_of_the_library(self, tmp_path):
        """sentence-transformers pools BART's decoder, but its own states are the encoder's."""
        _, live, folder = self.save("bart", tmp_path)
        for model in (live, folder):
            found = TransformerEncoder(model).transform(TEXTS)
            np.testing.assert_allclose(found, live.encode(TEXTS), atol=1e-5)
        assert not np.allclose(TransformerEncoder(folder, pooling="mean").transform(TEXTS), found)
