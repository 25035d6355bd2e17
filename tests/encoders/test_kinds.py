"""The kind of a checkpoint is that of its weights, whatever its configuration says."""

import json
import shutil

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

    @pytest.mark.parametrize(
        ("architecture", "kind"),
        [
            *((name, "AutoModel") for name in ("bert", "modernbert", "gpt2", "bart", "t5")),
            *((name, "AutoModelForMaskedLM") for name in ("bert", "roberta", "modernbert")),
            *((name, "AutoModelForPreTraining") for name in ("bert", "electra")),
            *((name, "AutoModelForCausalLM") for name in ("gpt2", "llama")),
        ],
    )
    def test_under_the_name_of_a_class_without_it(self, architecture, kind, tmp_path):
        name = type(make_model(architecture, kind)).__name__
        expected, head = load_checkpoint(save_model(tmp_path, architecture))
        expected = expected.transform(TEXTS)
        edit(tmp_path, architectures=[name])
        np.testing.assert_array_equal(TransformerEncoder(tmp_path).transform(TEXTS), expected)
        np.testing.assert_array_equal(load_checkpoint(tmp_path)[1].coef_, head.coef_)
        folder = save_model(tmp_path / "other", architecture, kind=kind)
        assert TransformerEncoder(folder)._backbone().head is None

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


CASED = [(first.replace("cat", "CAT"), second.title()) for first, second in PAIRS]


class TestSettingsOfCrossEncoders:
    """The files that a CrossEncoder writes, with length, case and prompts of texts."""

    @pytest.fixture
    def save(self, tmp_path):
        from sentence_transformers import CrossEncoder

        def save(
            changes, place="", architecture="bert", number=1, file="sentence_bert_config.json"
        ):
            save_model(tmp_path / "plain", architecture, num_labels=number)
            folder = tmp_path / "cross"
            CrossEncoder(str(tmp_path / "plain")).save_pretrained(str(folder))
            edit(folder, file, **changes)
            if place:
                (folder / place).mkdir()
                for name in ("model.safetensors", "config.json", "sentence_bert_config.json"):
                    (folder / name).rename(folder / place / name)
                for path in folder.glob("tokenizer*"):
                    path.rename(folder / place / path.name)
                kind = "sentence_transformers.base.modules.transformer.Transformer"
                modules = [{"idx": 0, "name": "0", "path": place, "type": kind}]
                (folder / "modules.json").write_text(json.dumps(modules))
            return folder

        return save

    def predict(self, folder):
        from sentence_transformers import CrossEncoder

        return CrossEncoder(str(folder)).predict(CASED, batch_size=1)

    PROMPT = {"prompts": {"q": "query: "}, "default_prompt_name": "q"}  # noqa: RUF012
    CHANGES = ({"max_seq_length": 6}, {"do_lower_case": True, "max_seq_length": 9})

    @pytest.mark.parametrize("architecture", ["bert", "roberta"])
    @pytest.mark.parametrize("changes", CHANGES, ids=str)
    @pytest.mark.parametrize("place", ["", "0_Transformer"])
    def test_length_and_case_are_applied(self, save, architecture, changes, place, tmp_path):
        plain = self.predict(save({}, architecture=architecture))
        shutil.rmtree(tmp_path / "cross")
        folder = save(changes, place, architecture)
        expected = self.predict(folder)
        assert np.abs(expected - plain).max() > 1e-3
        for pooling in ("head_input", "readout"):
            encoder, head = load_checkpoint(folder, pooling=pooling)
            X = encoder.transform(CASED)[:, : head.n_features_in_]
            np.testing.assert_allclose(head.predict_proba(X)[:, 1], expected, atol=1e-5)
        model = AdaptedEncoder(folder, LogitPreservingWhitening()).fit(CASED)
        merge_into_checkpoint(model, folder, tmp_path / "merged")
        np.testing.assert_allclose(self.predict(tmp_path / "merged"), expected, atol=1e-5)
        if "do_lower_case" in changes:
            with pytest.raises(ValueError, match=r"CrossEncoder with do_lower_case.*merge_into"):
                to_sentence_transformer(model, folder, tmp_path / "out")
        else:
            to_sentence_transformer(model, folder, tmp_path / "out")
            np.testing.assert_allclose(self.predict(tmp_path / "out"), expected, atol=1e-5)

    def test_a_parameter_goes_before_the_length_of_the_file(self, save):
        folder = save({"max_seq_length": 6})
        expected = TransformerEncoder(save({}), max_length=10).transform(CASED)
        edit(folder, "sentence_bert_config.json", max_seq_length=6)
        found = TransformerEncoder(folder, max_length=10).transform(CASED)
        np.testing.assert_array_equal(found, expected)

    @pytest.mark.parametrize(
        ("file", "changes", "says"),
        [
            ("config_sentence_transformers.json", PROMPT, "puts a prompt"),
            ("config_sentence_transformers.json", {"truncation": "left"}, "truncation='left'"),
            ("config_sentence_transformers.json", {"truncate_dim": 3}, "truncate_dim=3"),
            ("sentence_bert_config.json", {"processing_kwargs": {"text": {}}}, "processing_kw"),
            ("sentence_bert_config.json", {"module_output_name": "x"}, "module_output_name='x'"),
        ],
    )
    def test_others_are_refused_with_their_file(self, save, file, changes, says):
        folder = save(changes, file=file)
        with pytest.raises(ValueError, match=f"{file} .*{says}"):
            load_checkpoint(folder)
        assert TransformerEncoder(folder, pooling="mean").transform(CASED).shape == (8, 16)

    def test_without_the_list_of_modules_the_library_reads_none(self, save):
        folder = save({"max_seq_length": 6})
        (folder / "modules.json").unlink()
        encoder, head = load_checkpoint(folder)
        found = head.predict_proba(encoder.transform(CASED))[:, 1]
        np.testing.assert_allclose(found, self.predict(folder), atol=1e-5)


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
