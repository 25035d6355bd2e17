"""The kind of a checkpoint is that of its weights, whatever its configuration says."""

import json

import numpy as np
import pytest
import torch
import transformers

from isoadapt import AdaptedEncoder, IsotropyLayer, LogitPreservingWhitening, load_checkpoint
from isoadapt.encoders import TransformerEncoder, layer_report
from isoadapt.interop import merge_into_checkpoint, to_sentence_transformer
from tests.tiny_models import (
    ARCHITECTURES,
    PAIRS,
    TEXTS,
    logits_of,
    make_model,
    make_tokenizer,
    save_model,
    save_pair,
)

SIGMOID = "torch.nn.modules.activation.Sigmoid"
LOST = {"id2label": None, "label2id": None, "num_labels": None}


def edit(folder, name="config.json", **changes):
    """Change entries of a JSON file; None removes one."""
    content = json.loads((folder / name).read_text()) | changes
    kept = {key: value for key, value in content.items() if value is not None}
    (folder / name).write_text(json.dumps(kept))


class OwnModel(transformers.BertPreTrainedModel):
    """A classifier under a name of one's own, with the weights of transformers' class."""

    def __init__(self, config):
        super().__init__(config)
        self.bert = transformers.BertModel(config)
        self.classifier = torch.nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def forward(self, input_ids, attention_mask=None, token_type_ids=None):
        pooled = self.bert(input_ids, attention_mask, token_type_ids).pooler_output
        return transformers.modeling_outputs.SequenceClassifierOutput(
            logits=self.classifier(pooled)
        )


class TestClassifiers:
    @pytest.mark.parametrize("architecture", [*ARCHITECTURES, "bart", "t5", "llama", "xlm"])
    @pytest.mark.parametrize(
        "changes",
        [
            {"architectures": None},
            {"architectures": ["MyModel"]},
            {"architectures": []} | LOST,
            LOST,
        ],
        ids=["absent", "own", "empty, labels lost", "labels lost"],
    )
    def test_its_weights_show_a_classifier(self, architecture, changes, tmp_path):
        folder = save_model(tmp_path, architecture)
        edit(folder, **changes)
        head = AdaptedEncoder(folder, LogitPreservingWhitening()).fit(TEXTS).head_
        X = np.concatenate([TransformerEncoder(folder).transform([text]) for text in TEXTS[:1]])
        expected = logits_of(make_model(architecture), TEXTS[:1], architecture)
        np.testing.assert_allclose(head.outputs(X), expected, atol=1e-4)
        layer = IsotropyLayer(max_epochs=1, random_state=0)
        model = AdaptedEncoder(folder, layer).fit(TEXTS * 3, [0, 1, 2] * len(TEXTS))
        np.testing.assert_array_equal(model.head_.coef_, head.coef_)

    def test_of_shards(self, tmp_path):
        make_model().save_pretrained(tmp_path, max_shard_size="5KB")
        make_tokenizer().save_pretrained(tmp_path)
        edit(tmp_path, architectures=None)
        assert TransformerEncoder(tmp_path).fit(TEXTS)._backbone().head is not None

    @pytest.mark.parametrize("architecture", ["bert", "roberta", "distilbert", "electra"])
    @pytest.mark.parametrize(
        "kind", ["TokenClassification", "QuestionAnswering", "MaskedLM", "MultipleChoice"]
    )
    @pytest.mark.parametrize("lost", [{}, LOST], ids=["labels", "lost"])
    def test_other_heads_are_not_taken_for_one(self, architecture, kind, lost, tmp_path):
        number = 2 if kind == "QuestionAnswering" else 3
        folder = save_model(tmp_path, architecture, kind=f"AutoModelFor{kind}", num_labels=number)
        edit(folder, architectures=None, **lost)
        assert TransformerEncoder(folder)._backbone().head is None

    def test_a_bias_too_many_is_that_of_another_head(self, tmp_path):
        """Llama's classifier of tokens has one, that of texts has none."""
        folder = save_model(tmp_path, "llama", kind="AutoModelForTokenClassification")
        edit(folder, architectures=None)
        assert TransformerEncoder(folder)._backbone().head is None

    def test_where_weights_are_the_same_class_and_tags_decide(self, tmp_path):
        """ModernBERT's classifiers of tokens and of texts have the same weights."""
        folder = save_model(tmp_path, "modernbert", kind="AutoModelForTokenClassification")
        assert TransformerEncoder(folder)._backbone().head is None
        edit(folder, architectures=None, id2label={"0": "O", "1": "B-PER", "2": "I-PER"})
        assert TransformerEncoder(folder)._backbone().head is None

    def test_an_other_head_name_is_none(self, tmp_path):
        folder = save_model(tmp_path)
        from safetensors.torch import load_file, save_file

        weights = load_file(folder / "model.safetensors")
        renamed = {name.replace("classifier", "my_head"): w for name, w in weights.items()}
        save_file(renamed, folder / "model.safetensors", {"format": "pt"})
        edit(folder, architectures=["MyModel"])
        assert TransformerEncoder(folder).transform(TEXTS).shape == (len(TEXTS), 16)
        with pytest.raises(ValueError, match=r"no weights for classifier.*fine-tuned"):
            load_checkpoint(folder)

    def test_a_live_model_of_an_own_class(self):
        source = make_model()
        model = OwnModel(source.config)
        model.load_state_dict(source.state_dict())
        encoder, head = load_checkpoint((model.eval(), make_tokenizer()))
        X = np.concatenate([encoder.transform([text]) for text in TEXTS])
        np.testing.assert_allclose(head.outputs(X), logits_of(source, TEXTS), atol=1e-5)
        model.classifier = torch.nn.Identity()
        with pytest.raises(ValueError, match="has no classifier head"):
            load_checkpoint((model, make_tokenizer()))


def save_cross(folder, record, architecture="bert"):
    """A model with one output, with the record of a version of sentence-transformers."""
    save_model(folder, architecture, num_labels=1, model_max_length=60)
    if record is None:
        return folder
    if "model_type" in record:
        (folder / "config_sentence_transformers.json").write_text(json.dumps(record))
    else:
        edit(folder, **record)
    return folder


class TestCrossEncoders:
    @pytest.mark.parametrize("architecture", ["bert", "roberta", "modernbert"])
    @pytest.mark.parametrize(
        "record",
        [
            {"model_type": "CrossEncoder", "activation_fn": SIGMOID},
            {"model_type": "CrossEncoder"},
            {"sentence_transformers": {"activation_fn": SIGMOID, "version": "4.0.1"}},
            {"sentence_transformers": {"version": "4.0.1"}},
            {"sbert_ce_default_activation_function": SIGMOID},
        ],
        ids=["6", "6, nothing", "4", "4, nothing", "3"],
    )
    def test_a_sigmoid_gives_two_classes(self, architecture, record, tmp_path):
        from sentence_transformers import CrossEncoder

        folder = save_cross(tmp_path, record, architecture)
        expected = CrossEncoder(str(folder)).predict(PAIRS, batch_size=1)
        encoder, head = load_checkpoint(folder)
        X = encoder.transform(PAIRS)
        assert head.classes_.tolist() == [0, 1]
        np.testing.assert_allclose(head.predict_proba(X)[:, 1], expected, atol=1e-5)
        logits = np.log(expected / (1 - expected))
        np.testing.assert_allclose(head.decision_function(X), logits, atol=1e-4)
        model = AdaptedEncoder(folder, LogitPreservingWhitening()).fit(PAIRS)
        assert model.score(PAIRS, (expected > 0.5).astype(int)) == 1

    @pytest.mark.parametrize(
        "record",
        [
            None,
            {"problem_type": "regression", "sentence_transformers": {"activation_fn": SIGMOID}},
            {"model_type": "CrossEncoder", "activation_fn": "torch.nn.modules.linear.Identity"},
            {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}},
            {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
        ],
        ids=["plain", "regression", "6", "4", "3"],
    )
    def test_without_a_sigmoid_it_is_a_regressor(self, record, tmp_path):
        encoder, head = load_checkpoint(save_cross(tmp_path, record))
        assert head.classes_ is None
        expected = logits_of(make_model(num_labels=1), TEXTS[:1])[:, 0]
        np.testing.assert_allclose(head.predict(encoder.transform(TEXTS[:1])), expected, atol=1e-5)

    @pytest.mark.filterwarnings("ignore:this fit harms the task")
    @pytest.mark.parametrize("write", [merge_into_checkpoint, to_sentence_transformer])
    @pytest.mark.parametrize("training", ["frozen", "joint"])
    @pytest.mark.parametrize("place", ["", "0_Transformer"])
    def test_exports_have_one_output(self, write, training, place, tmp_path):
        from sentence_transformers import CrossEncoder

        source = tmp_path / "source"
        save_cross(source / place, None)
        (source / "config_sentence_transformers.json").write_text('{"model_type": "CrossEncoder"}')
        if place:
            kind = "sentence_transformers.models.Transformer"
            (source / "modules.json").write_text(json.dumps([{"type": kind, "path": place}]))
        layer = IsotropyLayer(max_epochs=2, random_state=0, head_training=training)
        model = AdaptedEncoder(source, layer).fit(PAIRS * 4, [0, 1] * 2 * len(PAIRS))
        write(model, source, tmp_path / "out")
        expected = model.predict_proba(PAIRS)[:, 1]
        found = CrossEncoder(str(tmp_path / "out")).predict(PAIRS, batch_size=1)
        np.testing.assert_allclose(found, expected, atol=1e-5)
        encoder, head = load_checkpoint(tmp_path / "out")
        X = encoder.transform(PAIRS)
        np.testing.assert_allclose(head.predict_proba(X)[:, 1], expected, atol=1e-5)


T5 = {"vocab_size": 40, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
T5 |= {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}


class TestEncoders:
    """Of an encoder-decoder, vectors are those of the encoder, as in sentence-transformers."""

    def save(self, folder, name, form):
        config = getattr(transformers, f"{name}Config")(**T5)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = getattr(transformers, f"{name}{form}")(config).eval()
        return save_pair(model, make_tokenizer("roberta"), folder)

    @pytest.mark.filterwarnings("ignore:7 different texts")
    @pytest.mark.parametrize("name", ["T5", "MT5", "UMT5", "LongT5"])
    @pytest.mark.parametrize("form", ["EncoderModel", "Model"])
    def test_alone_and_in_sentence_transformers(self, name, form, tmp_path):
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

        folder = self.save(tmp_path / "plain", name, form)
        for mode in ("mean", "cls"):
            pooled = SentenceTransformer(
                modules=[Transformer(str(folder)), Pooling(16, pooling_mode=mode)]
            )
            pooled.save(str(tmp_path / mode))
            expected = pooled.encode(TEXTS)
            for place, pooling in ((folder, mode), (tmp_path / mode, "auto")):
                found = TransformerEncoder(place, pooling=pooling).transform(TEXTS)
                np.testing.assert_allclose(found, expected, atol=1e-5)
        edit(folder, architectures=None)
        encoder = TransformerEncoder(folder, layer=1).fit(TEXTS)
        assert encoder.transform(TEXTS).shape == (len(TEXTS), 16)
        assert len(layer_report(folder, TEXTS)) == 3

    def test_by_onnx(self, tmp_path):
        folder = self.save(tmp_path, "T5", "EncoderModel")
        expected, found = (
            TransformerEncoder(folder, backend=backend).transform(TEXTS)
            for backend in ("torch", "onnx")
        )
        np.testing.assert_allclose(found, expected, atol=1e-5)

    def test_states_of_a_decoder_are_refused(self, tmp_path):
        """sentence-transformers pools BART's decoder, but its own states are the encoder's."""
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

        folder = save_model(tmp_path / "plain", "bart", kind="AutoModel")
        live = SentenceTransformer(modules=[Transformer(str(folder)), Pooling(16)])
        live.save(str(tmp_path / "st"))
        for model in (live, tmp_path / "st"):
            with pytest.raises(ValueError, match=r"decoder of BartModel, which pooling='auto'"):
                TransformerEncoder(model).transform(TEXTS)
        assert TransformerEncoder(tmp_path / "st", pooling="mean").transform(TEXTS).ndim == 2


@pytest.mark.parametrize("kind", ["TokenClassification", "QuestionAnswering", "MultipleChoice"])
def test_heads_of_other_tasks_are_no_classifiers_of_texts(kind, tmp_path):
    save_model(tmp_path, "modernbert", kind=f"AutoModelFor{kind}")
    with pytest.raises(
        ValueError, match=f"^\\S+config.json names the class .*For{kind}, which does"
    ):
        load_checkpoint(tmp_path)
