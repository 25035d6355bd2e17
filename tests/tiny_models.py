"""Tiny models with random weights and a real tokenizer, for tests of everything with texts."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

WORDS = ["the", "a", "cat", "dog", "bird", "sat", "ran", "flew", "on", "under", "over", "mat"]
WORDS += ["tree", "road", "and", "then", "it", "was", "very", "far"]
TEXTS = [
    "the cat sat on the mat",
    "a dog",
    "",
    "the bird flew over the tree and then it ran very far under the road",
    "cat",
    "the dog ran and the cat sat and the bird flew and it was very very far",
    "the cat sat on the mat",
    "something unknown sat on it",
]
PAIRS = [(TEXTS[i], TEXTS[(3 * i + 1) % len(TEXTS)]) for i in range(len(TEXTS))]

_SMALL = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
_SMALL |= {"intermediate_size": 24, "max_position_embeddings": 64, "pad_token_id": 1}
_SMALL |= {"num_labels": 3}
# Changes to the configuration by type. Those of the first group have tokenizers of their own, the
# other ones RoBERTa's. Padding changes the vectors of those that leak, and those that are refused
# cannot embed each short text alone.
ARCHITECTURES, LEAKING, REFUSED, _OTHERS = json.loads(
    Path(__file__).with_name("architectures.json").read_text()
).values()
MORE_ARCHITECTURES = LEAKING | _OTHERS
_WITH_TYPES = {"bert", "albert", "electra", "deberta-v2", "xlnet"}  # token types are inputs


def mostly_slow(names, quick):
    """Names that a test is parametrised with, of which all but the quick ones are slow."""
    return [pytest.param(name, marks=[pytest.mark.slow] * (name not in quick)) for name in names]


def make_tokenizer(architecture="bert", model_max_length=None):
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    specials = ["[CLS]", "[PAD]", "[SEP]", "[UNK]"]
    vocabulary = {word: i for i, word in enumerate(specials + WORDS)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {"unk_token": "[UNK]", "eos_token": "[SEP]", "bos_token": "[SEP]"}
    if architecture != "gpt2":
        names = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]"}
        names["sep_token"] = "[SEP]"
        backend.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", 0), ("[SEP]", 2)],
        )
    if model_max_length is not None:
        names["model_max_length"] = model_max_length
    inputs = ["input_ids", *["token_type_ids"] * (architecture in _WITH_TYPES), "attention_mask"]
    side = "left" if architecture == "xlnet" else "right"
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, model_input_names=inputs, padding_side=side, **names
    )


def make_model(architecture="bert", kind="AutoModelForSequenceClassification", **changes):
    import transformers

    settings = _SMALL | (ARCHITECTURES | MORE_ARCHITECTURES | REFUSED)[architecture] | changes
    if architecture == "gpt2":
        settings["n_positions"] = settings.pop("max_position_embeddings")
    if architecture == "xlnet":  # has no limit; transformers 5.2 checks d_head by its own names
        for name in ("max_position_embeddings", "hidden_size", "num_attention_heads"):
            del settings[name]
    if architecture == "funnel":  # counts its layers by block_sizes alone
        del settings["num_hidden_layers"]
    config = transformers.AutoConfig.for_model(architecture, **settings)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = getattr(transformers, kind).from_config(config)
        for weights in model.parameters():  # far from the tiny usual start, so that texts differ
            weights.data.add_(0.2 * torch.randn_like(weights))
    return model.eval()


def save_model(folder, architecture="bert", model_max_length=None, **options):
    model = make_model(architecture, **options)
    return save_pair(model, make_tokenizer(architecture, model_max_length), folder)


def save_pair(model, tokenizer, folder):
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def logits_of(model, texts, architecture="bert"):
    """Logits (n, n_labels) of a live model of transformers, each text or pair alone."""
    tokenizer, rows = make_tokenizer(architecture), []
    for item in texts:
        # Lists are needed because a call with strings drops an empty second text.
        args = [[text] for text in (item if isinstance(item, tuple) else (item,))]
        tokens = tokenizer(*args, return_tensors="pt")
        if tokens["input_ids"].shape[1] == 0:
            tokens = tokenizer("[SEP]", return_tensors="pt")
        with torch.inference_mode():
            rows.append(model(**tokens).logits[0].numpy())
    return np.array(rows)


OWN_CODE = {
    "configuration_own.py": """
from transformers import BertConfig

class OwnConfig(BertConfig):
    model_type = "own"
""",
    "modeling_own.py": """
from transformers import BertForSequenceClassification, BertModel

from .configuration_own import OwnConfig
from .layers_own import scaled

class OwnModel(BertModel):
    config_class = OwnConfig

    def forward(self, *args, **options):
        output = super().forward(*args, **options)
        output.last_hidden_state = scaled(output.last_hidden_state)
        if self.pooler is not None:
            output.pooler_output = self.pooler(output.last_hidden_state)
        return output

class OwnForSequenceClassification(BertForSequenceClassification):
    config_class = OwnConfig

    def __init__(self, config):
        super().__init__(config)
        self.bert = OwnModel(config)
        self.post_init()
""",
    "masked_own.py": """
from transformers import BertForMaskedLM

from .configuration_own import OwnConfig

class OwnForMaskedLM(BertForMaskedLM):
    config_class = OwnConfig
""",
    "layers_own.py": """
def scaled(states):
    return 2.0 * states
""",
}


def save_own_code(folder, kind="AutoModelForSequenceClassification"):
    """A checkpoint that only its own Python code can load: a BERT whose states are scaled."""
    save_model(folder, kind=kind)
    config = json.loads((folder / "config.json").read_text()) | {"model_type": "own"}
    classes = {"AutoModel": "OwnModel"}
    classes["AutoModelForSequenceClassification"] = "OwnForSequenceClassification"
    config["architectures"] = [classes[kind]]
    config["auto_map"] = {auto: f"modeling_own.{name}" for auto, name in classes.items()}
    config["auto_map"]["AutoConfig"] = "configuration_own.OwnConfig"
    config["auto_map"]["AutoModelForMaskedLM"] = "masked_own.OwnForMaskedLM"
    (folder / "config.json").write_text(json.dumps(config))
    for name, code in OWN_CODE.items():
        (folder / name).write_text(code)
    return folder
