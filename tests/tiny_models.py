"""Tiny models with random weights and a real tokenizer, for tests of everything with texts."""

import json

import numpy as np
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

_SMALL = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "pad_token_id": 1,
    "num_labels": 3,
}
# type, changes to the configuration, inputs that its tokenizers name
_IDS, _MASK, _TYPES = "input_ids", "attention_mask", "token_type_ids"
ARCHITECTURES = {
    "bert": ({}, [_IDS, _TYPES, _MASK]),
    "roberta": ({"max_position_embeddings": 66}, [_IDS, _MASK]),
    "distilbert": ({"hidden_dim": 24}, [_IDS, _MASK]),
    "albert": ({"embedding_size": 8}, [_IDS, _TYPES, _MASK]),
    "electra": ({"embedding_size": 8}, [_IDS, _TYPES, _MASK]),
    "deberta-v2": (
        {
            "type_vocab_size": 0,
            "relative_attention": True,
            "position_buckets": 8,
            "pos_att_type": ["p2c", "c2p"],
            "position_biased_input": False,
        },
        [_IDS, _TYPES, _MASK],
    ),
    "mpnet": ({"max_position_embeddings": 66}, [_IDS, _MASK]),
    "modernbert": (
        dict.fromkeys(("cls_token_id", "sep_token_id", "bos_token_id", "eos_token_id"), 2),
        [_IDS, _MASK],
    ),
    "xlnet": (
        {"d_model": 16, "n_layer": 2, "n_head": 2, "d_head": 8, "d_inner": 24}
        | {"summary_type": "last"},
        [_IDS, _TYPES, _MASK],
    ),
    "gpt2": ({"pad_token_id": None, "bos_token_id": 2, "eos_token_id": 2}, [_IDS, _MASK]),
}

# Further types for the sweep over architectures; their tokenizers are RoBERTa's.
_OFFSET = {"max_position_embeddings": 66}
_GPT = {"n_positions": 64, "n_embd": 16, "n_layer": 2, "n_head": 2}
_BART = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "decoder_start_token_id": 2,
}
_T5 = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
_T5 |= {"eos_token_id": 2, "decoder_start_token_id": 1}
_XLM = {"emb_dim": 16, "n_layers": 2, "n_heads": 2, "n_words": 40}
_KV = {"num_key_value_heads": 1, "bos_token_id": 2, "eos_token_id": 2}
_NARROW = {"embedding_size": 8}
LEAKING = {  # padding changes their vectors
    "fnet": {},
    "convbert": _NARROW | {"conv_kernel_size": 3},
    "mobilebert": {
        "embedding_size": 16,
        "true_hidden_size": 16,
        "use_bottleneck": False,
        "num_feedforward_networks": 1,
    },
    "yoso": {},
    "big_bird": {"attention_type": "block_sparse", "block_size": 2, "num_random_blocks": 1},
}
REFUSED = {  # cannot embed each short text alone
    "nystromformer": {"num_landmarks": 4, "segment_means_seq_len": 64, "conv_kernel_size": 3},
    "canine": {"num_hash_functions": 2, "num_hash_buckets": 64, "local_transformer_stride": 8},
    "funnel": {"block_sizes": [1, 1], "d_head": 8, "d_inner": 24, "num_decoder_layers": 1},
    "reformer": {
        "axial_pos_embds": False,
        "is_decoder": False,
        "attention_head_size": 8,
        "feed_forward_size": 24,
        "attn_layers": ["local", "lsh"],
        "num_buckets": 4,
    },
    "perceiver": {
        "d_latents": 16,
        "d_model": 16,
        "num_latents": 4,
        "num_self_attends_per_block": 1,
        "num_self_attention_heads": 2,
        "num_cross_attention_heads": 2,
    },
}
MORE_ARCHITECTURES = LEAKING | {
    "bart": _BART,
    "bloom": _GPT,
    "camembert": _OFFSET,
    "ctrl": _GPT | {"dff": 24},
    "data2vec-text": _OFFSET,
    "deberta": {"type_vocab_size": 0, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "ernie": {},
    "esm": _OFFSET | {"position_embedding_type": "rotary"},
    "falcon": {},
    "flaubert": _XLM,
    "gemma": _KV | {"head_dim": 8},
    "gpt_neo": {"num_layers": 2, "num_heads": 2, "attention_types": [[["global", "local"], 1]]},
    "gpt_neox": _KV,
    "gptj": _GPT | {"rotary_dim": 4},
    "ibert": _OFFSET,
    "jamba": _KV
    | {
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "num_experts": 2,
        "mamba_d_state": 4,
        "mamba_dt_rank": 2,
        "use_mamba_kernels": False,
    },
    "layoutlm": {"max_2d_position_embeddings": 64},
    "llama": _KV,
    "lilt": _OFFSET | {"hidden_size": 24},
    "longformer": _OFFSET | {"attention_window": 4},
    "megatron-bert": {},
    "mistral": _KV,
    "mpt": {"d_model": 16, "n_heads": 2, "n_layers": 2, "max_seq_len": 64},
    "nomic_bert": {},
    "openai-gpt": _GPT,
    "opt": {"ffn_dim": 24, "word_embed_proj_dim": 16},
    "phi": _KV,
    "qwen2": _KV,
    "rembert": {"input_embedding_size": 8, "output_embedding_size": 8},
    "roformer": {"embedding_size": 16},
    "squeezebert": {"embedding_size": 16}
    | dict.fromkeys(("q_groups", "k_groups", "v_groups", "post_attention_groups"), 1)
    | dict.fromkeys(("intermediate_groups", "output_groups"), 1),
    "t5": _T5,
    "xlm": _XLM,
    "xlm-roberta": _OFFSET,
}


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
    inputs = ARCHITECTURES.get(architecture, ARCHITECTURES["roberta"])[1]
    side = "left" if architecture == "xlnet" else "right"
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, model_input_names=inputs, padding_side=side, **names
    )


def make_model(architecture="bert", kind="AutoModelForSequenceClassification", **changes):
    import transformers

    own = (MORE_ARCHITECTURES | REFUSED).get(architecture)
    settings = _SMALL | (ARCHITECTURES[architecture][0] if own is None else own) | changes
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
