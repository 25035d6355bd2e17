"""Backbone: a loaded or live model with its tokenizer, and the properties that encoding needs."""

import copy
import inspect
import os
import re
import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from isoadapt._utils.devices import resolve_device
from isoadapt.encoders._pooling import Pooling, live_pooling, sentence_pooling

DTYPES = {
    "auto": torch.float32,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.float32,  # data type of the parts that torch computes
}
_MODULE_DICTS = [key for key, value in nn.Module().__dict__.items() if isinstance(value, dict)]
_POSITION_TABLE = re.compile(r"(^|_)(wpe|pos|position|positions)(_|$)")
_UNLIMITED = 2**31  # maximum lengths of this size or more mean that there is no limit
_PROCESSES: set[int] = set()  # that have used models: this one and those it was forked from
_LIVE_PROBES: "WeakKeyDictionary[Any, dict[Any, bool]]" = WeakKeyDictionary()


@dataclass(frozen=True)
class Backbone:
    """A model in evaluation mode with its tokenizer."""

    model: Any  # PreTrainedModel, with its own head
    tokenizer: Any  # PreTrainedTokenizerBase
    head: nn.Linear | None  # the last Linear of the classifier
    folder: Path | None = None  # where it was loaded from; None for a live model
    sentence: Any = None  # the live SentenceTransformer that the model belongs to
    # Results of the probes for the influence of padding, kept as long as the model.
    probes: MutableMapping[tuple[Any, ...], bool] = field(default_factory=dict, compare=False)

    @property
    def headless(self) -> Any:
        """The classifier without its head: its "logits" are the embedding, of shape (B, d)."""
        return eval_copy(self._headless) if self.switches_attention else self._headless

    @property
    def base(self) -> Any:
        """The model that computes hidden states, without its head and without its decoder."""
        return eval_copy(self._base) if self.switches_attention else self._base

    @cached_property
    def switches_attention(self) -> bool:
        """Whether the attention depends on the batch width, as in BigBird's sparse attention.

        A short batch switches such a model to full attention permanently. Each batch therefore uses
        a new copy of the model.
        """
        return getattr(self.model.config, "attention_type", None) == "block_sparse"

    @cached_property
    def _headless(self) -> Any:
        """The classifier without its head, shared by all batches."""
        return without_head(self.model)

    @cached_property
    def _base(self) -> Any:
        """The model that computes hidden states, shared by all batches."""
        base = self.model.base_model
        return base.get_encoder() if self.model.config.is_encoder_decoder else base

    @cached_property
    def inputs(self) -> frozenset[str]:
        """Names of the inputs that both the tokenizer gives and the model accepts."""
        taken = set(inspect.signature(self.model.forward).parameters)
        return frozenset(taken & {"input_ids", *self.tokenizer.model_input_names})

    def accepted(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the inputs of a batch that the model accepts."""
        return {name: values for name, values in batch.items() if name in self.inputs}

    @cached_property
    def limit(self) -> int | None:
        """Number of tokens that the model has learned positions for; None if it has no limit."""
        return position_limit(self.model)

    @property
    def default_length(self) -> int | None:
        """Number of tokens that tokenizer and model are made for; None if neither has a limit."""
        trained = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        lengths = (self.tokenizer.model_max_length, self.limit, trained)
        return min((n for n in lengths if n is not None and 0 < n < _UNLIMITED), default=None)

    def sentence_pooling(self) -> Pooling | None:
        """Return the pooling of sentence-transformers, or None if the model has none."""
        if self.sentence is not None:
            return live_pooling(self.sentence)
        return None if self.folder is None else sentence_pooling(self.folder)

    @property
    def n_layers(self) -> int:
        """Number of layers. There is one more hidden state than layers."""
        return self.model.config.get_text_config().num_hidden_layers


def live_backbone(model: Any, tokenizer: Any, sentence: Any = None) -> Backbone:
    """Wrap a shallow copy, in evaluation mode, of a model that the user holds.

    The mode and the configuration of the user's model do not change. `sentence` is the
    SentenceTransformer that the model belongs to, if any.
    """
    keep_to_one_thread_after_fork()
    copied = eval_copy(model)
    head = find_last_linear(copied) if is_classifier(copied) else None
    probes = _LIVE_PROBES.setdefault(model, {})
    return Backbone(copied, tokenizer, head, sentence=sentence, probes=probes)


def keep_to_one_thread_after_fork() -> None:
    """Let torch use one thread if this process was forked from one that has used models.

    The threads of OpenMP do not survive a fork. The first parallel computation would wait for them.
    """
    if _PROCESSES and os.getpid() not in _PROCESSES:
        torch.set_num_threads(1)
    _PROCESSES.add(os.getpid())


def check_cache(cache: Any, model: Any) -> None:
    """Raise ValueError if vectors of a live model are to be cached."""
    if cache is not None and not isinstance(model, str | os.PathLike):
        raise ValueError(
            "cache needs the files of a checkpoint, by which it finds vectors again, but model is "
            "a live model; save it and its tokenizer to a folder with save_pretrained and pass "
            "model=folder, or choose cache=None"
        )


def check_backend(backend: str, model: Any, device: str | torch.device, dtype: str) -> None:
    """Raise ValueError if the backend does not support the model, the device or the dtype."""
    if backend == "torch":
        if dtype == "int8":
            raise ValueError(
                "dtype='int8' needs backend='onnx'; choose this backend, or dtype='float32' or "
                "'bfloat16'"
            )
        return
    if not isinstance(model, str | os.PathLike):
        raise ValueError(
            "backend='onnx' exports a checkpoint, but model is a live model; save it and its "
            "tokenizer to a folder with save_pretrained and pass model=folder, or choose "
            "backend='torch'"
        )
    if device != "auto" and resolve_device(device).type != "cpu":
        raise ValueError(
            f"device={str(device)!r}, but backend='onnx' runs on the CPU; choose device='auto' or "
            "'cpu', or backend='torch'"
        )
    if dtype not in ("auto", "float32", "int8"):
        raise ValueError(
            f"dtype={dtype!r}, but backend='onnx' computes in 'float32' or 'int8'; choose one of "
            "them, or backend='torch'"
        )


def is_sentence_transformer(model: Any) -> bool:
    """Return whether a model is a SentenceTransformer, without importing the library."""
    library = sys.modules.get("sentence_transformers")
    return library is not None and isinstance(model, library.SentenceTransformer)


def live_parts(model: Any) -> tuple[Any, Any]:
    """Return the transformer and the tokenizer of a live model; raise TypeError if it has none."""
    if is_sentence_transformer(model):
        first: Any = next(iter(model), None)
        if type(first).__name__ == "Transformer" and first.tokenizer is not None:
            return first.auto_model, first.tokenizer
        raise TypeError(
            f"model is a SentenceTransformer that begins with {type(first).__name__}; pass one "
            "that begins with a Transformer module"
        )
    if isinstance(model, tuple) and len(model) == 2 and isinstance(model[0], torch.nn.Module):
        if not is_sentence_transformer(model[0]):
            return model
        raise TypeError(
            "model is a tuple with a SentenceTransformer, which has its own tokenizer; pass the "
            "SentenceTransformer alone"
        )
    hint = "; a live model needs its tokenizer" if isinstance(model, torch.nn.Module) else ""
    raise TypeError(
        f"model is a {type(model).__name__}{hint}; pass a folder, a name on the Hugging Face Hub, "
        "a SentenceTransformer, or a tuple (model, tokenizer)"
    )


def checked_live(model: Any, device: str | torch.device, dtype: str) -> Backbone:
    """Wrap a live model after checking its device and dtype.

    Another device or dtype than asked for raises ValueError, and an object of another kind
    TypeError.
    """
    backbone = live_backbone(*live_parts(model), model if is_sentence_transformer(model) else None)
    if device != "auto" and resolve_device(device).type != backbone.model.device.type:
        raise ValueError(
            f"device={str(device)!r}, but the live model is on {backbone.model.device}; move it, "
            "or choose device='auto'"
        )
    if dtype != "auto" and DTYPES[dtype] != backbone.model.dtype:
        raise ValueError(
            f"dtype={dtype!r}, but the live model is in {backbone.model.dtype}; convert it, or "
            "choose dtype='auto'"
        )
    return backbone


def eval_copy(model: Any, replace: dict[nn.Module, nn.Module] | None = None) -> Any:
    """Copy a model shallowly in evaluation mode: new modules with the same weights.

    The copy does not change mode, hooks or buffers of the original. Any number of threads may use
    copies while the original is being trained. `replace` maps modules to their replacements.
    """
    copies: dict[nn.Module, nn.Module] = dict(replace or {})

    def copied(module: nn.Module) -> nn.Module:
        """Copy a module and its children, each once."""
        if module not in copies:
            new = module.__class__.__new__(module.__class__)
            new.__dict__.update(module.__dict__)
            new.__dict__.update({key: module.__dict__[key].copy() for key in _MODULE_DICTS})
            new.__dict__["training"] = False
            copies[module] = new
            for name, child in module._modules.items():
                new._modules[name] = None if child is None else copied(child)
        return copies[module]

    return copied(model)


def find_last_linear(model: Any) -> nn.Linear:
    """Find the classifier head: the last Linear outside the base model with num_labels outputs.

    ValueError is raised if there is none, or if the model is wrapped by PEFT.
    """
    if hasattr(model, "merge_and_unload"):
        raise ValueError(
            f"{type(model).__name__} wraps a model in PEFT layers; pass the merged model, "
            "copy.deepcopy(model).merge_and_unload()"
        )
    base = set() if model.base_model is model else set(model.base_model.modules())
    heads = [
        module
        for module in model.modules()
        if isinstance(module, nn.Linear)
        and module not in base
        and module.out_features == model.config.num_labels
    ]
    if not heads or not base:
        raise ValueError(
            f"{type(model).__name__} has no linear classifier head with {model.config.num_labels} "
            "outputs; pass a checkpoint saved from an AutoModelForSequenceClassification"
        )
    return heads[-1]


def is_classifier(model: Any) -> bool:
    """Return whether the class of a model, or one of its bases, is for sequence classification."""
    return any("ForSequenceClassification" in cls.__name__ for cls in type(model).__mro__)


def without_head(model: Any) -> Any:
    """Copy a classifier in evaluation mode with its head replaced by Identity.

    The "logits" of the copy are the input of the head. A decoder without a padding token refuses
    batches, because it cannot distinguish padding from text. The copy therefore has the padding
    token -1 and reads the last position of each row, which is correct if all rows have the same
    length.
    """
    network = eval_copy(model, {find_last_linear(model): nn.Identity()})
    if network.config.pad_token_id is None:
        network.config = copy.copy(network.config)
        network.config.pad_token_id = -1
    return network


def position_limit(model: Any) -> int | None:
    """Return the number of tokens that the model has learned positions for, or None.

    Some models, such as RoBERTa, count from the padding index, so 514 rows are enough for 512
    tokens.
    """
    limits = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and _POSITION_TABLE.search(name.rpartition(".")[2]):
            offset = 0 if module.padding_idx is None else module.padding_idx + 1
            own_offset = getattr(module, "offset", None)
            limits.append(
                module.num_embeddings - (own_offset if isinstance(own_offset, int) else offset)
            )
    return min(limits, default=None)
