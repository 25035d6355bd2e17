"""A PEFT adapter is merged into its base model and is part of the checkpoint's identity."""

import json
import shutil
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.pipeline import make_pipeline

from isoadapt import LogitPreservingWhitening, TransformerEncoder, load_checkpoint
from isoadapt.encoders._identity import encoder_identity
from isoadapt.finetune import finetune_text_classifier
from isoadapt.interop import merge_into_checkpoint
from tests.tiny_models import TEXTS, logits_of, make_tokenizer, save_model

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

pytestmark = [
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning"),
    pytest.mark.filterwarnings("ignore:fan_in_fan_out:UserWarning"),
]

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def save_adapter(base, folder, num_labels=3, **settings):
    """Save a LoRA adapter with random weights; return the PEFT model, not merged."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = transformers.AutoModelForSequenceClassification.from_pretrained(
            base, num_labels=num_labels
        )
        config = peft.LoraConfig(**{"task_type": "SEQ_CLS", "r": 2} | settings)
        model = peft.get_peft_model(model, config).eval()
        for weights in model.parameters():
            if weights.requires_grad:
                weights.data.add_(0.2 * torch.randn_like(weights))
    model.save_pretrained(folder)
    return model


@pytest.fixture(scope="module")
def lora(tmp_path_factory):
    """A base model without a classifier, the folder of an adapter with one, and the PEFT model."""
    root = tmp_path_factory.mktemp("lora")
    base = save_model(root / "base", kind="AutoModel")
    return base, root / "adapter", save_adapter(base, root / "adapter", num_labels=4)


@pytest.fixture
def copied(lora, tmp_path):
    """Copies of a base model and of its adapter that may be changed."""
    base, folder, _ = lora
    shutil.copytree(base, tmp_path / "base")
    shutil.copytree(folder, tmp_path / "adapter")
    edit(tmp_path / "adapter", base_model_name_or_path=str(tmp_path / "base"))
    return tmp_path / "base", tmp_path / "adapter"


def edit(folder, **changes):
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(config | changes))


def change_weights(file, part):
    """Add 0.1 to every weight whose name contains `part`."""
    weights = load_file(file)
    assert any(part in name for name in weights)
    changed = {name: x + 0.1 if part in name else x for name, x in weights.items()}
    save_file(changed, file, metadata={"format": "pt"})


@pytest.mark.parametrize("architecture", ["bert", "roberta", "gpt2"])
def test_the_logits_are_those_of_the_peft_model(architecture, tmp_path):
    kind = "AutoModelForCausalLM" if architecture == "gpt2" else "AutoModel"
    base = save_model(tmp_path / "base", architecture, kind=kind)
    model = save_adapter(base, tmp_path / "adapter", num_labels=5)
    encoder, head = load_checkpoint(tmp_path / "adapter")
    texts = [text for text in TEXTS if text]
    expected = logits_of(model, texts, architecture)
    np.testing.assert_allclose(head.outputs(encoder.transform(texts)), expected, atol=1e-4)
    assert head.classes_.tolist() == [0, 1, 2, 3, 4]
    with model.disable_adapter():  # the adapter changes the logits
        assert np.abs(logits_of(model, texts, architecture) - expected).max() > 0.1


def test_the_head_of_the_base_model_is_used_if_the_adapter_has_none(tmp_path):
    base = save_model(tmp_path / "base")
    model = save_adapter(base, tmp_path / "adapter", task_type=None, target_modules=["query"])
    assert not any("classifier" in name for name in load_file(tmp_path / "adapter" / WEIGHTS))
    encoder, head = load_checkpoint(tmp_path / "adapter")
    assert encoder_identity(TransformerEncoder(tmp_path / "adapter"))  # does not load the model
    found = head.outputs(encoder.transform(TEXTS[:2]))
    np.testing.assert_allclose(found, logits_of(model, TEXTS[:2]), atol=1e-4)


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize(
    ("changed", "part"), [("adapter", "lora_B"), ("adapter", "classifier"), ("base", "query")]
)
def test_new_weights_of_either_give_new_vectors(changed, part, cached, copied, tmp_path):
    base, folder = copied
    encoder = TransformerEncoder(folder, cache=tmp_path / "cache" if cached else None)
    before, logits = encoder.transform(TEXTS), load_checkpoint(folder)[1].intercept_
    file = folder / WEIGHTS if changed == "adapter" else base / "model.safetensors"
    change_weights(file, part)
    after = encoder.transform(TEXTS)
    if part == "classifier":
        assert (load_checkpoint(folder)[1].intercept_ != logits).all()
    else:
        assert np.abs(after - before).max() > 1e-3


def test_it_is_merged_into_a_plain_checkpoint(lora, tmp_path):
    _, folder, model = lora
    encoder, head = load_checkpoint(folder)
    adapter = LogitPreservingWhitening(head).fit(encoder.transform(TEXTS))
    out = merge_into_checkpoint(make_pipeline(encoder, adapter), folder, tmp_path / "out")
    assert not (out / CONFIG).exists()
    plain = transformers.AutoModelForSequenceClassification.from_pretrained(out).eval()
    assert not any("lora" in name for name in plain.state_dict())
    np.testing.assert_allclose(logits_of(plain, TEXTS[:2]), logits_of(model, TEXTS[:2]), atol=1e-4)
    transformers.AutoTokenizer.from_pretrained(out)
    merge_into_checkpoint(make_pipeline(encoder, adapter), out, tmp_path / "again")


def test_the_tokenizer_of_the_adapter_is_preferred_to_that_of_the_base(copied):
    base, folder = copied
    tokenizer = make_tokenizer()
    tokenizer.model_max_length = 7
    tokenizer.save_pretrained(folder)
    assert TransformerEncoder(folder)._backbone().default_length == 7
    for file in base.glob("tokenizer*"):
        file.unlink()
    assert TransformerEncoder(folder).transform(TEXTS[:1]).shape == (1, 16)


@pytest.mark.slow
def test_the_onnx_backend(copied, tmp_path):
    found = TransformerEncoder(copied[1], backend="onnx", cache=tmp_path / "c").transform(TEXTS)
    np.testing.assert_allclose(found, TransformerEncoder(copied[1]).transform(TEXTS), atol=1e-3)


class TestFineTuning:
    """A PEFT adapter is refused, because transformers would load its base model unchecked."""

    def refuse(self, folder, at, tmp_path):
        with pytest.raises(ValueError, match="merge_and_unload") as refusal:
            finetune_text_classifier(
                folder, TEXTS, [0, 1] * 4, tmp_path / "out", epochs=1, device="cpu"
            )
        assert str(at) in str(refusal.value)
        assert not (tmp_path / "out").exists()

    def test_an_adapter(self, copied, tmp_path):
        self.refuse(copied[1], copied[1], tmp_path)

    def test_beside_a_whole_checkpoint_and_in_a_folder_of_sentence_transformers(
        self, copied, tmp_path
    ):
        base, folder = copied
        for name in (CONFIG, WEIGHTS):
            shutil.copy(folder / name, base / name)
        self.refuse(base, base, tmp_path)
        outer = tmp_path / "outer"
        shutil.copytree(base, outer / "0_Transformer")
        (outer / "modules.json").write_text(
            json.dumps([{"type": "models.Transformer", "path": "0_Transformer"}])
        )
        self.refuse(outer, outer / "0_Transformer", tmp_path)
        with pytest.raises(ValueError, match=r"holds a PEFT adapter .*merge_and_unload"):
            TransformerEncoder(outer, pooling="mean").transform(TEXTS)


class TestRefusals:
    def refuse(self, folder, error, message):
        with pytest.raises(error, match=message) as refusal:
            TransformerEncoder(folder).transform(TEXTS)
        return str(refusal.value)

    def test_peft_is_not_installed(self, copied, monkeypatch):
        monkeypatch.setitem(sys.modules, "peft", None)
        message = self.refuse(copied[1], ImportError, "pip install")
        assert "peft" in message
        assert "merge_and_unload" in message
        assert str(copied[1]) in message

    def test_the_base_model_is_on_the_hub_and_out_of_reach(self, copied, monkeypatch):
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        edit(copied[1], base_model_name_or_path="nobody/absent-base")
        message = self.refuse(copied[1], OSError, "base model 'nobody/absent-base'")
        assert str(copied[1]) in message
        assert "base_model_name_or_path" in message

    @pytest.mark.parametrize("value", [None, "", 3])
    def test_no_base_model_is_named(self, value, copied):
        edit(copied[1], base_model_name_or_path=value)
        self.refuse(copied[1], ValueError, "base_model_name_or_path")

    def test_a_configuration_that_is_none(self, copied):
        (copied[1] / CONFIG).write_text("[1, 2]")
        self.refuse(copied[1], ValueError, "adapter_config.json")

    def test_an_adapter_of_an_adapter(self, copied):
        base, folder = copied
        shutil.copytree(folder, base.parent / "second")
        edit(base.parent / "second", base_model_name_or_path=str(folder))
        self.refuse(base.parent / "second", ValueError, "merge_and_unload")

    def test_pickled_weights_are_not_read(self, copied):
        (copied[1] / WEIGHTS).rename(copied[1] / "adapter_model.bin")
        self.refuse(copied[1], OSError, "adapter_model.safetensors")

    def test_damaged_weights(self, copied):
        (copied[1] / WEIGHTS).write_bytes(b"nonsense")
        self.refuse(copied[1], OSError, "adapter_model.safetensors is damaged")

    @pytest.mark.parametrize("rename", [("layer.1.", "layer.7."), ("query", "inquiry")])
    def test_weights_that_do_not_fit_the_base(self, rename, copied):
        weights = load_file(copied[1] / WEIGHTS)
        renamed = {name.replace(*rename): x for name, x in weights.items()}
        save_file(renamed, copied[1] / WEIGHTS, metadata={"format": "pt"})
        self.refuse(copied[1], ValueError, "do not fit.*merge_and_unload")

    def test_missing_weights_of_the_base(self, tmp_path):
        base = save_model(tmp_path / "base", kind="AutoModelForMaskedLM")  # without a pooler
        save_adapter(base, tmp_path / "adapter")
        self.refuse(tmp_path / "adapter", ValueError, r"no weights for bert\.pooler")

    def test_a_prompt_cannot_be_merged(self, lora, tmp_path):
        model = transformers.AutoModelForSequenceClassification.from_pretrained(lora[0])
        config = peft.PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=2)
        peft.get_peft_model(model, config).save_pretrained(tmp_path / "prompt")
        self.refuse(tmp_path / "prompt", ValueError, "PROMPT_TUNING.*cannot be merged")

    def test_a_live_model(self, lora):
        with pytest.raises(ValueError, match="merge_and_unload"):
            TransformerEncoder((lora[2], make_tokenizer())).transform(TEXTS)
