"""Only adapters of a checkpoint's own head input are folded into it or applied to its vectors."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import sklearn
import torch
from sklearn.pipeline import make_pipeline

from isoadapt import TransformerEncoder, Whitening
from isoadapt.interop import load_adapter, merge_into_checkpoint, save_adapter
from isoadapt.interop._exact import Exact
from isoadapt.interop._reference import read_reference
from isoadapt.interop._served import Served
from tests.cli.command_line import run, succeed
from tests.encoders.changes import edit
from tests.interop.examples import ROWS
from tests.tiny_models import make_model, make_tokenizer, save_model, save_pair


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A checkpoint of the same widths as that of `source`, with one other weight."""
    model = make_model(num_hidden_layers=1)
    with torch.no_grad():
        model.bert.pooler.dense.bias[0] += 1e-3
    return save_pair(model, make_tokenizer(), tmp_path_factory.mktemp("other"))


def pipeline(encoder):
    return make_pipeline(encoder, Whitening(shrinkage=0.1).fit(encoder.transform(ROWS)))


def check(model, folder):
    """Ask for the reference at another length, as merge_into_checkpoint does before it writes."""
    served = Served.of(model, folder, "head_input")
    assert replace(served, exact=served.exact.truncated(None)).reference().texts


def refuse(model, folder, named="another checkpoint"):
    with pytest.raises(ValueError, match=named) as refusal:
        check(model, folder)
    return str(refusal.value)


class TestPipelines:
    """The encoder that a pipeline begins with must give this checkpoint's head input."""

    def test_other_vectors_are_refused(self, source):
        encoder = TransformerEncoder(source.folder, pooling="max", layer=0)
        model = make_pipeline(encoder, source.adapter)
        assert "pooling='head_input'" in refuse(model, source.folder, "pooling='max', layer=0")

    def test_only_entries_that_decide_vectors_count(self, source, tmp_path):
        copy = shutil.copytree(source.folder, tmp_path / "copy")
        entries = {"id2label": {"0": "x", "1": "y", "2": "z"}, "_name_or_path": "elsewhere"}
        entries |= {"hidden_dropout_prob": 0.3, "classifier_dropout": 0.2, "use_cache": False}
        entries |= {"problem_type": "single_label_classification", "dtype": "float16"}
        check(pipeline(TransformerEncoder(edit(copy, **entries))), source.folder)
        refuse(pipeline(TransformerEncoder(edit(copy, hidden_act="relu"))), source.folder)

    @pytest.mark.parametrize("architecture", ["bert", "deberta-v2"])
    def test_a_live_model_in_half_precision_is_the_same_checkpoint(self, architecture, tmp_path):
        folder = save_model(tmp_path / "full", architecture)
        for dtype in (torch.float16, torch.bfloat16):
            model, tokenizer = make_model(architecture).to(dtype), make_tokenizer(architecture)
            saved = save_pair(model, tokenizer, tmp_path / str(dtype))
            live = Exact.of(TransformerEncoder((model, tokenizer))).reference
            assert live.settings["dtype"] == str(dtype).removeprefix("torch.")
            for copy in (folder, saved):
                Exact.of(TransformerEncoder(copy)).check(live, "the live model")
                stored = Exact.of(TransformerEncoder(copy)).reference
                Exact.of(TransformerEncoder((model, tokenizer))).check(stored, "its record")

    def test_a_folder_that_was_renamed_is_the_same_checkpoint(self, source, tmp_path):
        folder = shutil.copytree(source.folder, tmp_path / "before")
        model = pipeline(TransformerEncoder(folder))
        saved = save_adapter(model, tmp_path / "saved")
        after = folder.rename(tmp_path / "after")
        with pytest.raises(OSError, match=r"before.*set_params\(model=.*adapter alone"):
            check(model, after)
        check(load_adapter(saved), after)  # what its vectors were is recorded
        check(make_pipeline(model[0].set_params(model=after), model[1]), after)

    def test_settings_that_are_no_other_vectors(self, source, merged):
        adapter = pipeline(TransformerEncoder(source.folder))[1]
        settings = {"pooling": "head_input", "max_length": 4, "dtype": "bfloat16"}
        for name, value in (settings | {"batch_tokens": 8}).items():
            encoder = TransformerEncoder(source.folder, **{name: value})
            check(make_pipeline(encoder, adapter), source.folder)
            check(make_pipeline(encoder, adapter), merged)  # which has the same head input


class TestSavedAdapters:
    """An adapter folder carries what its vectors were."""

    def saved(self, encoder, folder):
        return load_adapter(save_adapter(pipeline(encoder)[1], folder, base_model=encoder))

    def test_other_vectors_are_refused(self, source, tmp_path):
        adapter = self.saved(TransformerEncoder(source.folder, pooling="mean", layer=0), tmp_path)
        named = r"pooling='mean', layer=0.*pooling='head_input'"
        refuse(adapter, source.folder, named)
        assert "- Vectors: pooling='mean', layer=0" in (tmp_path / "README.md").read_text("utf-8")

    def test_another_checkpoint_is_refused(self, source, other, tmp_path):
        adapter = self.saved(TransformerEncoder(other), tmp_path / "a")
        refuse(adapter, source.folder)
        check(adapter, shutil.copytree(other, tmp_path / "elsewhere"))
        adapter.fit(source.rows)  # the record goes
        check(adapter, source.folder)

    def test_the_identity_stays_when_it_is_saved_again(self, source, other, tmp_path):
        first = self.saved(TransformerEncoder(source.folder), tmp_path / "a")
        save_adapter(first, tmp_path / "b", base_model="org/name")
        assert len({(tmp_path / each / "reference.json").read_text() for each in "ab"}) == 1
        assert read_reference(tmp_path / "b").settings["pooling"] == "head_input"
        refuse(load_adapter(tmp_path / "b"), other)

    @pytest.mark.parametrize("pooling", ["auto", "readout", [("mean", -1)]])
    def test_the_encoder_is_rebuilt_by_its_settings(self, pooling, source):
        encoder = TransformerEncoder(source.folder, pooling=pooling, max_length=np.int64(5))
        reference = Exact.of(encoder).reference
        settings = {name: reference.settings[name] for name in ("pooling", "layer", "max_length")}
        again = TransformerEncoder(source.folder, **json.loads(json.dumps(settings)))
        np.testing.assert_array_equal(again.transform(ROWS), encoder.transform(ROWS))
        assert Exact.of(again).reference.version == reference.version

    @pytest.mark.parametrize("library", ["pandas", "polars"])
    def test_the_output_configuration_does_not_matter(self, library, source, tmp_path):
        adapter = pipeline(TransformerEncoder(source.folder))[1]
        with sklearn.config_context(transform_output=library):
            encoder = TransformerEncoder(source.folder).set_output(transform=library)
            loaded = load_adapter(save_adapter(adapter, tmp_path / "a", base_model=encoder))
            check(make_pipeline(encoder, loaded), source.folder)
            merge_into_checkpoint(loaded, source.folder, tmp_path / "out")

    def test_the_encoder_is_checked_where_the_adapter_is(self, source, other, tmp_path):
        folder = shutil.copytree(source.folder, tmp_path / "model")
        self.saved(TransformerEncoder(folder, pooling="mean", max_length=5), tmp_path / "a")
        assert "TransformerEncoder: " in succeed("check", tmp_path / "a").stdout
        shutil.copyfile(other / "model.safetensors", folder / "model.safetensors")
        succeed("check", tmp_path / "a")  # that weight is not one of the mean
        (folder / "model.safetensors").unlink()
        assert "cannot be used" in run("check", tmp_path / "a").stdout
