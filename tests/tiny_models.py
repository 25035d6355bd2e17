"""Tiny models with random weights and a real tokenizer, for tests of everything with texts."""

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
    "xlnet": ({"d_inner": 24, "d_head": 8, "summary_type": "last"}, [_IDS, _TYPES, _MASK]),
    "gpt2": ({"pad_token_id": None, "bos_token_id": 2, "eos_token_id": 2}, [_IDS, _MASK]),
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
    inputs = ARCHITECTURES[architecture][1]
    side = "left" if architecture == "xlnet" else "right"
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, model_input_names=inputs, padding_side=side, **names
    )


def make_model(architecture="bert", kind="AutoModelForSequenceClassification", **changes):
    import transformers

    settings = _SMALL | ARCHITECTURES[architecture][0] | changes
    if architecture == "gpt2":
        settings["n_positions"] = settings.pop("max_position_embeddings")
    if architecture == "xlnet":  # has no limit, and says so when told of one
        del settings["max_position_embeddings"]
    config = transformers.AutoConfig.for_model(architecture, **settings)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = getattr(transformers, kind).from_config(config)
        for weights in model.parameters():  # far from the tiny usual start, so that texts differ
            weights.data.add_(0.2 * torch.randn_like(weights))
    return model.eval()


def save_model(folder, architecture="bert", model_max_length=None, **options):
    make_model(architecture, **options).save_pretrained(folder)
    make_tokenizer(architecture, model_max_length).save_pretrained(folder)
    return folder
