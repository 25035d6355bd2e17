"""Only adapters of a checkpoint's own head input are folded into it or applied to its vectors."""

import json

import numpy as np
import pytest
import torch
from sklearn.pipeline import make_pipeline

from isoadapt import (
    AdaptedEncoder,
    LogitPreservingWhitening,
    TransformerEncoder,
    Whitening,
    load_checkpoint,
)
from isoadapt.encoders._identity import vector_source
from isoadapt.interop import AdapterFolderError, load_adapter, merge_into_checkpoint, save_adapter
from tests.interop.examples import checksum
from tests.tiny_models import WORDS, make_model, make_tokenizer, save_model, save_pair

rng = np.random.default_rng(0)
TEXTS = [" ".join(rng.choice(WORDS, size=n)) for n in rng.integers(2, 12, 60)]
LABELS = rng.integers(0, 3, 60)


def save_other(folder):
    """A checkpoint of the same widths as the fixture `checkpoint`, with one other weight."""
    model = make_model()
    with torch.no_grad():
        model.bert.pooler.dense.bias[0] += 1e-3
    return save_pair(model, make_tokenizer(), folder)


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    return save_other(tmp_path_factory.mktemp("other"))


def edit_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def whitened(encoder):
    return Whitening(shrinkage=0.1).fit(encoder.transform(TEXTS))


def pipeline(encoder):
    return make_pipeline(encoder, whitened(encoder))


class TestPipelines:
    """The encoder that a pipeline begins with must give this checkpoint's head input."""

    @pytest.mark.parametrize(
        ("settings", "named"),
        [
            ({"pooling": "mean"}, "pooling='mean', layer=-1"),
            ({"pooling": "cls"}, "pooling='cls', layer=-1"),
            ({"pooling": "max", "layer": 1}, "pooling='max', layer=1"),
            ({"pooling": "mean", "layer": -2}, "pooling='mean', layer=1"),
            (None, "another checkpoint"),
        ],
    )
    def test_other_vectors_are_refused(self, settings, named, checkpoint, other, tmp_path):
        encoder = TransformerEncoder(checkpoint if settings else other, **(settings or {}))
        parts = ["pooling='head_input'"] if settings else [str(other), str(checkpoint)]
        for model in (pipeline(encoder), AdaptedEncoder(encoder, Whitening()).fit(TEXTS)):
            with pytest.raises(ValueError, match=named) as refusal:
                merge_into_checkpoint(model, checkpoint, tmp_path / "out")
            assert all(part in str(refusal.value) for part in parts)
        assert not (tmp_path / "out").exists()

    def test_another_tokenizer_is_another_checkpoint(self, checkpoint, tmp_path):
        tokenizer = make_tokenizer()
        tokenizer.backend_tokenizer.normalizer = None
        tokenizer.backend_tokenizer.post_processor = None  # no [CLS] and [SEP] around the text
        encoder = TransformerEncoder((make_model(), tokenizer))
        with pytest.raises(ValueError, match="another checkpoint"):
            merge_into_checkpoint(pipeline(encoder), checkpoint, tmp_path / "out")

    @pytest.mark.parametrize(
        "changes", [{"num_attention_heads": 4}, {"layer_norm_eps": 0.1}, {"hidden_act": "relu"}]
    )
    def test_another_configuration_is_another_checkpoint(self, changes, checkpoint, tmp_path):
        copy = save_pair(make_model(), make_tokenizer(), tmp_path / "copy")
        edit_config(copy, **changes)
        encoders = [TransformerEncoder(folder) for folder in (copy, checkpoint)]
        first, second = (encoder.transform(TEXTS) for encoder in encoders)
        assert np.abs(first - second).max() > 1e-4
        with pytest.raises(ValueError, match="another checkpoint"):
            merge_into_checkpoint(pipeline(encoders[0]), checkpoint, tmp_path / "out")

    def test_entries_that_decide_no_vector_do_not_count(self, checkpoint, tmp_path):
        copy = save_pair(make_model(), make_tokenizer(), tmp_path / "copy")
        labels = {"id2label": {"0": "x", "1": "y", "2": "z"}, "label2id": {"x": 0, "y": 1, "z": 2}}
        names = {"_name_or_path": "elsewhere", "transformers_version": "5.0.0"}
        training = {"hidden_dropout_prob": 0.3, "classifier_dropout": 0.2, "use_cache": False}
        problem = {"problem_type": "single_label_classification", "dtype": "float16"}
        edit_config(copy, **labels, **names, **training, **problem)
        merge_into_checkpoint(pipeline(TransformerEncoder(copy)), checkpoint, tmp_path / "out")

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_a_live_copy_in_half_precision_is_the_same_checkpoint(self, dtype, tmp_path):
        for architecture in ("bert", "modernbert", "deberta-v2", "gpt2"):
            folder = save_model(tmp_path / architecture, architecture)
            model, tokenizer = make_model(architecture).to(dtype), make_tokenizer(architecture)
            saved = save_pair(model, tokenizer, tmp_path / f"{architecture}-half")
            source = vector_source(TransformerEncoder((model, tokenizer)))
            for copy in (folder, saved):
                assert source.is_of(TransformerEncoder(copy)._backbone())

    def test_a_folder_that_was_renamed_is_the_same_checkpoint(self, tmp_path):
        folder = save_model(tmp_path / "before")
        model = AdaptedEncoder(str(folder), Whitening(shrinkage=0.1)).fit(TEXTS)
        folder.rename(tmp_path / "after")
        with pytest.raises(OSError, match=r"before.*set_params\(model=.*adapter alone"):
            merge_into_checkpoint(model, tmp_path / "after", tmp_path / "again")
        model.pipeline_["encoder"].set_params(model=tmp_path / "after")
        merge_into_checkpoint(model, tmp_path / "after", tmp_path / "again")

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_a_live_model_counts_by_its_weights(self, dtype, checkpoint, other, tmp_path):
        live = TransformerEncoder((make_model().to(dtype), make_tokenizer()))
        model = pipeline(live)
        merge_into_checkpoint(model, checkpoint, tmp_path / "out")
        live.model[0].bert.encoder.layer[0].output.dense.weight.data[0, 0] += 1
        with pytest.raises(ValueError, match="another checkpoint"):
            merge_into_checkpoint(model, checkpoint, tmp_path / "wrong")

    def test_settings_that_are_no_other_vectors(self, checkpoint, tmp_path):
        adapter = whitened(TransformerEncoder(checkpoint))
        settings = {"pooling": "head_input", "max_length": 4, "dtype": "bfloat16"}
        settings |= {"batch_tokens": 8, "backend": "onnx"}
        for name, value in settings.items():
            model = make_pipeline(TransformerEncoder(checkpoint, **{name: value}), adapter)
            merge_into_checkpoint(model, checkpoint, tmp_path / name)

    def test_int8_vectors_are_refused(self, checkpoint, tmp_path):
        encoder = TransformerEncoder(checkpoint, backend="onnx", dtype="int8")
        model = make_pipeline(encoder, whitened(TransformerEncoder(checkpoint)))
        with pytest.raises(ValueError, match="pooling='head_input', dtype='int8'"):
            merge_into_checkpoint(model, checkpoint, tmp_path / "out")

    def test_a_merged_checkpoint_has_the_same_head_input(self, checkpoint, tmp_path):
        model = pipeline(TransformerEncoder(checkpoint))
        merged = merge_into_checkpoint(model, checkpoint, tmp_path / "out")
        merge_into_checkpoint(model, merged, tmp_path / "again")


class TestSavedAdapters:
    """An adapter folder carries what its vectors were."""

    def save(self, encoder, folder, base_model):
        return save_adapter(whitened(encoder), folder, base_model=base_model)

    def test_other_vectors_are_refused(self, checkpoint, tmp_path):
        encoder = TransformerEncoder(checkpoint, pooling="mean", layer=1)
        adapter = load_adapter(self.save(encoder, tmp_path / "a", encoder))
        with pytest.raises(ValueError, match=r"pooling='mean', layer=1.*pooling='head_input'"):
            merge_into_checkpoint(adapter, checkpoint, tmp_path / "out")
        with pytest.raises(ValueError, match="pooling='mean', layer=1"):
            merge_into_checkpoint(make_pipeline(adapter), checkpoint, tmp_path / "out")

    @pytest.mark.parametrize("of_folder", [False, True])
    def test_another_checkpoint_is_refused(self, of_folder, checkpoint, other, tmp_path):
        encoder = TransformerEncoder(other)
        base = other if of_folder else encoder
        adapter = load_adapter(self.save(encoder, tmp_path / "a", base))
        with pytest.raises(ValueError, match="another checkpoint"):
            merge_into_checkpoint(adapter, checkpoint, tmp_path / "out")
        merge_into_checkpoint(adapter, save_other(tmp_path / "elsewhere"), tmp_path / "out")

    def test_the_identity_stays_when_it_is_saved_again(self, checkpoint, other, tmp_path):
        encoder = TransformerEncoder(checkpoint)
        first = self.save(encoder, tmp_path / "a", encoder)
        again = save_adapter(load_adapter(first), tmp_path / "b", base_model="org/name")
        configs = [json.loads((folder / "config.json").read_text()) for folder in (first, again)]
        assert configs[0]["vectors"] == configs[1]["vectors"]
        assert configs[0]["vectors"]["kind"] == "pooling='head_input'"
        with pytest.raises(ValueError, match="another checkpoint"):
            merge_into_checkpoint(load_adapter(again), other, tmp_path / "out")

    def test_it_goes_when_the_adapter_is_fitted_again(self, checkpoint, other, tmp_path):
        encoder = TransformerEncoder(other)
        adapter = load_adapter(self.save(encoder, tmp_path / "a", encoder))
        adapter.fit(TransformerEncoder(checkpoint).transform(TEXTS))
        merge_into_checkpoint(adapter, checkpoint, tmp_path / "out")

    def test_a_live_encoder_in_half_precision(self, checkpoint, other, tmp_path):
        live = TransformerEncoder((make_model().bfloat16(), make_tokenizer()))
        adapter = load_adapter(self.save(live, tmp_path / "a", live))
        merge_into_checkpoint(adapter, checkpoint, tmp_path / "out")

    @pytest.mark.parametrize("base_model", [(make_model(), make_tokenizer()), 3, b"name"])
    def test_a_base_model_of_another_type_is_refused(self, base_model, checkpoint, tmp_path):
        encoder = TransformerEncoder(checkpoint)
        with pytest.raises(
            TypeError, match=r"^base_model is .*name or folder.*TransformerEncoder\(\(model, token"
        ) as refusal:
            self.save(encoder, tmp_path / "a", base_model)
        assert len(str(refusal.value)) < 300
        adapter = load_adapter(self.save(encoder, tmp_path / "b", encoder))  # it has a record
        with pytest.raises(TypeError, match=r"^base_model is"):
            save_adapter(adapter, tmp_path / "c", base_model=base_model)

    def test_the_card_tells_how_the_texts_are_embedded(self, checkpoint, tmp_path):
        encoder = TransformerEncoder(checkpoint, pooling="mean", layer=1)
        adapter = whitened(encoder)
        folder = save_adapter(adapter, tmp_path / "a", base_model=encoder)
        card = (folder / "README.md").read_text("utf-8")
        assert "- Vectors: pooling='mean', layer=1" in card
        code = card.split("```python\n")[1].split("```")[0]
        scope = {"texts": TEXTS}
        exec(code.replace("path/to/this/folder", str(folder)), scope)
        np.testing.assert_array_equal(scope["adapted"], adapter.transform(encoder.transform(TEXTS)))

    def test_a_damaged_identity_is_refused(self, checkpoint, tmp_path):
        encoder = TransformerEncoder(checkpoint)
        folder = self.save(encoder, tmp_path / "a", encoder)
        config = json.loads((folder / "config.json").read_text())
        config["vectors"]["more"] = "x"
        config["sha256"] = checksum(config)
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(AdapterFolderError, match="vectors"):
            load_adapter(folder)


def test_the_head_of_an_adapter_does_not_matter_to_the_vectors(checkpoint, tmp_path):
    encoder, head = load_checkpoint(checkpoint)
    adapter = LogitPreservingWhitening(head).fit(encoder.transform(TEXTS))
    merge_into_checkpoint(make_pipeline(encoder, adapter), checkpoint, tmp_path / "out")
