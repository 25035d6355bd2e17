"""A PEFT adapter is merged into its base model and is part of the checkpoint's identity."""

import shutil
import sys

import numpy as np
import pytest
import torch

from isoadapt import TransformerEncoder, load_checkpoint
from isoadapt.encoders import release
from isoadapt.finetune import finetune_text_classifier
from tests.encoders.changes import change_weights, edit
from tests.tiny_models import TEXTS, logits_of, make_tokenizer, save_model

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

pytestmark = [
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning"),
    pytest.mark.filterwarnings("ignore:fan_in_fan_out:UserWarning"),
]

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def save_adapter(base, folder, num_labels=3, initial=None, **settings):
    """Save a LoRA adapter with random weights; return the PEFT model, not merged.

    The folder `initial` has the adapter before it was changed, by which PEFT converts it.
    """
    task = settings.setdefault("task_type", "SEQ_CLS")
    auto = transformers.AutoModelForSequenceClassification
    auto = transformers.AutoModel if task == "FEATURE_EXTRACTION" else auto
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = auto.from_pretrained(base, num_labels=num_labels, ignore_mismatched_sizes=True)
        config = peft.LoraConfig(**{"r": 2} | settings)
        model = peft.get_peft_model(model, config).eval()
        if initial is not None:
            model.save_pretrained(initial)
            edit(initial, CONFIG, init_lora_weights=True)
        for weights in model.parameters():
            if weights.requires_grad:
                weights.data.add_(0.2 * torch.randn_like(weights))
    given = {} if initial is None else {"path_initial_model_for_weight_conversion": str(initial)}
    model.save_pretrained(folder, **given)
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
    base, folder = (shutil.copytree(lora[i], tmp_path / name) for i, name in enumerate("ba"))
    return base, edit(folder, CONFIG, base_model_name_or_path=str(base))


def of_weights(change):
    return lambda folder: change_weights(folder, change, WEIGHTS)


def increased(part):
    """Add 0.1 to every weight whose name contains `part`."""
    return lambda weights: {name: x + 0.1 * (part in name) for name, x in weights.items()}


INITS = (True, False, "gaussian", "orthogonal", "eva", "pissa", "olora")
CLASSIFIER = "AutoModelForSequenceClassification"  # with a head of 3 labels
SWEEP = [("bert", "AutoModel", {}), ("gpt2", "AutoModelForCausalLM", {})]
SWEEP += [("roberta", CLASSIFIER, {"num_labels": 5})]
SWEEP += [("bert", CLASSIFIER, {"init_lora_weights": init}) for init in INITS]
SWEEP += [("albert", CLASSIFIER, {"target_modules": ["query", "value"]})]  # one layer, used twice
SWEEP += [("albert", CLASSIFIER, {"target_modules": ["query"], "init_lora_weights": "pissa"})]
SWEEP += [("t5", CLASSIFIER, {"target_modules": ["q", "wo"]})]  # beside embeddings that are shared
SWEEP += [("t5", CLASSIFIER, {"modules_to_save": ["classification_head", "shared"]})]
SWEEP += [("bert", CLASSIFIER, {"target_modules": ["query"], "trainable_token_indices": [6, 7]})]


@pytest.mark.parametrize(("architecture", "kind", "settings"), SWEEP)
def test_the_logits_are_those_of_the_peft_model(architecture, kind, settings, tmp_path):
    base = save_model(tmp_path / "base", architecture, kind=kind)
    model = save_adapter(base, tmp_path / "adapter", **settings)
    encoder, head = load_checkpoint(tmp_path / "adapter")
    texts = [text for text in TEXTS if text]
    expected = logits_of(model, texts, architecture)
    np.testing.assert_allclose(head.outputs(encoder.transform(texts)), expected, atol=1e-4)
    assert head.classes_.tolist() == [*range(settings.get("num_labels", 3))]
    with model.disable_adapter():  # the adapter changes the logits
        assert np.abs(logits_of(model, texts, architecture) - expected).max() > 0.1


@pytest.mark.parametrize(
    ("architecture", "head", "settings"),
    [
        ("bert", True, {"target_modules": ["query"]}),
        ("distilbert", True, {"target_modules": ["q_lin", "classifier"]}),
        ("roberta", True, {"target_modules": ["value"], "modules_to_save": ["classifier"]}),
        ("albert", False, {"target_modules": ["value"], "modules_to_save": ["classifier"]}),
    ],
)
def test_adapters_that_transformers_wrote(architecture, head, settings, tmp_path):
    """Which saves the head of the base model only on request, unlike PEFT for this task."""
    auto = transformers.AutoModelForSequenceClassification
    base = save_model(tmp_path / "base", architecture, kind=CLASSIFIER if head else "AutoModel")
    model = auto.from_pretrained(base, num_labels=3 if head else 4)
    model.add_adapter(peft.LoraConfig(task_type="SEQ_CLS", r=2, **settings))
    for name, weights in model.eval().named_parameters():
        weights.data.add_(0.2 * torch.randn_like(weights) * ("lora_" in name or "saved" in name))
    model.save_pretrained(tmp_path / "adapter")
    encoder, read = load_checkpoint(tmp_path / "adapter")
    logits = logits_of(model, TEXTS, architecture)
    np.testing.assert_allclose(read.outputs(encoder.transform(TEXTS)), logits, atol=1e-4)
    model.disable_adapters()
    assert np.abs(logits_of(model, TEXTS, architecture) - logits).max() > 1e-2


@pytest.mark.parametrize("name", ["b", "../b"])
def test_a_relative_base_is_looked_up_beside_the_adapter(name, copied, monkeypatch):
    expected = TransformerEncoder(copied[1]).transform(TEXTS)
    monkeypatch.chdir("/")
    edit(copied[1], CONFIG, base_model_name_or_path=name)
    np.testing.assert_array_equal(TransformerEncoder(copied[1]).transform(TEXTS), expected)


def test_the_head_of_the_base_model_is_used_if_the_adapter_has_none(tmp_path):
    base = save_model(tmp_path / "base")
    model = save_adapter(base, tmp_path / "adapter", task_type=None, target_modules=["query"])
    encoder, head = load_checkpoint(tmp_path / "adapter")
    assert TransformerEncoder(tmp_path / "adapter").identity()  # does not load the model
    found = head.outputs(encoder.transform(TEXTS[:2]))
    np.testing.assert_allclose(found, logits_of(model, TEXTS[:2]), atol=1e-4)


def test_without_a_task_the_saved_head_decides(lora, tmp_path):
    save_adapter(lora[0], tmp_path, task_type=None, modules_to_save=["classifier"])
    expected = load_checkpoint(tmp_path)[0].transform(TEXTS)
    np.testing.assert_array_equal(TransformerEncoder(tmp_path).transform(TEXTS), expected)
    mean = TransformerEncoder(tmp_path, pooling="mean").transform(TEXTS)
    assert np.abs(mean - TransformerEncoder(lora[0]).transform(TEXTS)).max() > 1e-2
    edit(tmp_path, CONFIG, task_type="TOKEN_CLS")
    with pytest.raises(ValueError, match="adapter for TOKEN_CLS, which does not classify texts"):
        load_checkpoint(tmp_path)


def test_code_of_a_base_on_the_hub_is_downloaded_if_trusted(copied, monkeypatch):
    asked = []

    def download(name, *, allow_patterns, **_):
        asked.append("*.py" in allow_patterns)
        return copied[0]

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    edit(copied[1], CONFIG, base_model_name_or_path="some/base")
    for trusted in (False, True):
        release()
        TransformerEncoder(copied[1], trust_remote_code=trusted).transform(TEXTS)
        assert (True in asked) == trusted


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("changed", ["adapter", "base"])
def test_new_weights_of_either_give_new_vectors(changed, cached, copied, tmp_path):
    base, folder = copied
    encoder = TransformerEncoder(folder, cache=tmp_path / "cache" if cached else None)
    before, bias = encoder.transform(TEXTS), load_checkpoint(folder)[1].intercept_
    if changed == "base":
        change_weights(base, increased("query"))
    else:
        for part in ("lora_B", "classifier"):
            change_weights(folder, increased(part), WEIGHTS)
        assert (load_checkpoint(folder)[1].intercept_ != bias).all()
    assert np.abs(encoder.transform(TEXTS) - before).max() > 1e-3


def test_the_tokenizer_of_the_adapter_is_preferred_to_that_of_the_base(copied):
    base, folder = copied
    make_tokenizer(model_max_length=7).save_pretrained(folder)
    assert TransformerEncoder(folder).open().backbone.default_length == 7
    for file in base.glob("tokenizer*"):
        file.unlink()
    assert TransformerEncoder(folder).transform(TEXTS[:1]).shape == (1, 16)


def test_fine_tuning_refuses_an_adapter_even_beside_a_whole_checkpoint(copied, tmp_path):
    """Because transformers would load its base model unchecked."""
    base, folder = copied
    for name in (CONFIG, WEIGHTS):
        (base / name).write_bytes((folder / name).read_bytes())
    for place in (folder, base):
        with pytest.raises(ValueError, match="merge_and_unload"):
            finetune_text_classifier(place, TEXTS, [0, 1] * 4, tmp_path / "out", device="cpu")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda folder: edit(folder, CONFIG, base_model_name_or_path="nobody/base"), "nobody/base"),
        (lambda folder: (folder / WEIGHTS).rename(folder / "adapter_model.bin"), WEIGHTS),
        (of_weights(lambda x: {n.replace("r.1.", "r.7."): x[n] for n in x}), "do not fit"),
        (of_weights(lambda x: {n: x[n] for n in x if "lora" in n}), "no weights for classifier.b"),
        (
            lambda folder: (
                edit(folder, CONFIG, task_type=None),
                (folder / WEIGHTS).write_text("version https://git-lfs.github.com/spec/v1"),
            ),
            f"{WEIGHTS} is a pointer of Git LFS",
        ),
        *(
            (
                lambda folder, init=init: edit(folder, CONFIG, init_lora_weights=init),
                f"{init}'.*merge_and_unload.*weight_conversion",
            )
            for init in ("pissa_niter_4", "corda", "lora_ga")  # which a load cannot repeat
        ),
    ],
)
def test_adapters_that_cannot_be_used_are_refused(change, says, copied, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    change(copied[1])
    with pytest.raises((OSError, ValueError), match=says):
        TransformerEncoder(copied[1]).transform(TEXTS)


SHARED = [
    ("bert", {"layer_replication": [[0, 2], [1, 2]]}),
    ("llama", {"layer_replication": [[0, 2], [0, 2]]}),
    ("t5", {"target_modules": ["shared"]}),
    ("t5", {"target_modules": ["embed_tokens"]}),
    ("bart", {"target_modules": ["q_proj"], "trainable_token_indices": [6, 7]}),
    ("t5", {"target_modules": ["q"], "trainable_token_indices": {"embed_tokens": [6, 7]}}),
    ("bart", {"target_modules": ["embed_tokens", "q_proj"], "init_lora_weights": "olora"}),
    ("bert", {"layer_replication": [[0, 2], [1, 2]], "task_type": "FEATURE_EXTRACTION"}),
]


@pytest.mark.parametrize(("architecture", "settings"), SHARED)
def test_an_adapter_of_one_module_of_a_shared_weight_is_refused(architecture, settings, tmp_path):
    """PEFT would merge it into the weight of all; without a classifier, states are compared."""
    kind = "AutoModel" if "task_type" in settings else CLASSIFIER
    base = save_model(tmp_path / "base", architecture, kind=kind)
    save_adapter(base, tmp_path / "adapter", **settings)
    with pytest.raises(ValueError, match=r"cannot be merged.*several modules share"):
        TransformerEncoder(tmp_path / "adapter").transform(TEXTS)


def test_peft_converts_a_random_decomposition_to_plain_lora(lora, tmp_path):
    """The trained model and its conversion, which the refusal of the former names."""
    options = {"task_type": "FEATURE_EXTRACTION", "init_lora_weights": "pissa_niter_4"}
    model = save_adapter(lora[0], tmp_path / "a", initial=tmp_path / "initial", **options)
    found = TransformerEncoder(tmp_path / "a").transform(TEXTS)
    live = (model.merge_and_unload(), make_tokenizer())
    np.testing.assert_allclose(found, TransformerEncoder(live).transform(TEXTS), atol=1e-4)


@pytest.mark.parametrize("kind", ["PromptTuning", "PrefixTuning", "PromptEncoder"])
def test_prompts_are_refused(kind, lora, tmp_path):
    model = transformers.AutoModelForSequenceClassification.from_pretrained(lora[0], num_labels=4)
    config = getattr(peft, f"{kind}Config")(task_type="SEQ_CLS", num_virtual_tokens=2)
    peft.get_peft_model(model, config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=f"{config.peft_type.value} adapter, which learns prompts"):
        TransformerEncoder(tmp_path).transform(TEXTS)


def test_the_folder_above_named_adapters_names_one(lora, tmp_path):
    for name in ("second", "first"):
        shutil.copytree(lora[1], tmp_path / name)
    with pytest.raises(FileNotFoundError, match=f"adapters in it, such as '{tmp_path / 'first'}'"):
        TransformerEncoder(tmp_path).transform(TEXTS)


def test_live_adapters_and_a_missing_package_are_named(lora, monkeypatch, empty_store):
    with pytest.raises(ValueError, match="merge_and_unload"):
        TransformerEncoder((lora[2], make_tokenizer())).transform(TEXTS)
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ImportError, match="peft"):
        TransformerEncoder(lora[1]).transform(TEXTS)
