"""Backbone: a model with its tokenizer, and the pooling of its hidden states."""

import copy
import inspect
import os
import re
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from isoadapt.encoders._folder import read_object, sentence_modules

_MODULE_DICTS = [key for key, value in nn.Module().__dict__.items() if isinstance(value, dict)]
_POSITION_TABLE = re.compile(r"(^|_)(wpe|pos|position|positions)(_|$)")
_UNLIMITED = 2**31  # maximum lengths of this size or more mean that there is no limit
_PROCESSES: set[int] = set()  # that have used models: this one and those it was forked from
_LIVE_PROBES: "WeakKeyDictionary[Any, dict[Any, bool]]" = WeakKeyDictionary()
HEAD_INPUT = "head_input"


@dataclass(frozen=True)
class Pooling:
    """Pooling of hidden states, with the preparation of texts that belongs to it."""

    modes: tuple[str, ...]  # names of poolings whose vectors are concatenated
    normalize: bool = False  # to unit length
    max_length: int | None = None  # of texts in tokens
    lowercase: bool = False  # whether texts are converted to lower case

    @property
    def is_head_input(self) -> bool:
        """Whether the vectors are the input of the checkpoint's head."""
        return self.modes == (HEAD_INPUT,)

    def __call__(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Pool hidden states (B, T, d) under a mask (B, T) of ones and zeros."""
        pooled = torch.cat([MODES[mode](hidden, mask) for mode in self.modes], dim=1)
        return torch.nn.functional.normalize(pooled, dim=1) if self.normalize else pooled


def _sum(hidden: Tensor, weights: Tensor) -> Tensor:
    """Sum hidden states (B, T, d) with weights (B, T)."""
    return torch.einsum("btd,bt->bd", hidden, weights.to(hidden.dtype))


def _cls(hidden: Tensor, mask: Tensor) -> Tensor:
    """Return the state of the first token (B, d), wherever the padding is."""
    return hidden[torch.arange(len(hidden), device=hidden.device), mask.argmax(dim=1)]


def _last(hidden: Tensor, mask: Tensor) -> Tensor:
    """Return the state of the last token (B, d), wherever the padding is."""
    last = mask.shape[1] - 1 - mask.flip(1).argmax(dim=1)
    return hidden[torch.arange(len(hidden), device=hidden.device), last]


def _max(hidden: Tensor, mask: Tensor) -> Tensor:
    """Compute the maximum over tokens (B, d)."""
    return hidden.masked_fill(mask.unsqueeze(-1) == 0, -torch.inf).amax(dim=1)


def _mean(hidden: Tensor, mask: Tensor) -> Tensor:
    """Compute the mean over tokens (B, d)."""
    return _sum(hidden, mask) / mask.sum(dim=1, keepdim=True)


def _mean_sqrt(hidden: Tensor, mask: Tensor) -> Tensor:
    """Compute the sum over tokens divided by the square root of their number (B, d)."""
    return _sum(hidden, mask) / mask.sum(dim=1, keepdim=True).sqrt()


def _weighted_mean(hidden: Tensor, mask: Tensor) -> Tensor:
    """Compute the mean over tokens with weights 1, 2, 3, … (B, d)."""
    weights = mask * mask.cumsum(dim=1)
    return _sum(hidden, weights) / weights.sum(dim=1, keepdim=True)


MODES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cls": _cls,
    "max": _max,
    "mean": _mean,
    "mean_sqrt_len_tokens": _mean_sqrt,
    "weightedmean": _weighted_mean,
    "lasttoken": _last,
}
MODE_OF_KEY = {  # in the configuration of sentence-transformers
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


def sentence_pooling(folder: Path) -> Pooling | None:
    """Read the pooling of a sentence-transformers folder; return None if `folder` is not one."""
    modules = sentence_modules(folder)
    if not modules:
        return None
    kinds = [kind for kind, _ in modules]
    _check_kinds(kinds, str(folder / "modules.json"))
    if read_object(folder / "config_sentence_transformers.json").get("default_prompt_name"):
        raise _prompt_error(str(folder))
    settings = read_object(modules[0][1] / "sentence_bert_config.json")
    return Pooling(
        modes=_modes(read_object(modules[1][1] / "config.json")),
        normalize=len(kinds) == 3,
        max_length=settings.get("max_seq_length"),
        lowercase=bool(settings.get("do_lower_case")),
    )


def live_pooling(model: Any) -> Pooling:
    """Return the pooling of a SentenceTransformer object; raise ValueError as for a folder."""
    modules = list(model)
    kinds = [type(module).__name__ for module in modules]
    _check_kinds(kinds, "model is a SentenceTransformer that")
    if model.default_prompt_name:
        raise _prompt_error("model is a SentenceTransformer that")
    if model.truncate_dim is not None:
        raise ValueError(
            f"model is a SentenceTransformer with truncate_dim={model.truncate_dim}, which "
            "pooling='auto' does not support; set it to None and select the columns afterwards"
        )
    return Pooling(
        modes=_modes(modules[1].get_config_dict()),
        normalize=len(kinds) == 3,
        max_length=model.max_seq_length,
        lowercase=bool(getattr(modules[0], "do_lower_case", False)),
    )


def _check_kinds(kinds: list[str], where: str) -> None:
    """Raise ValueError if the modules are not those that pooling='auto' supports."""
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise ValueError(
            f"{where} lists {', '.join(kinds)}; pooling='auto' only supports "
            "Transformer, Pooling and Normalize; choose pooling='cls', 'mean' or 'max'"
        )


def _prompt_error(where: str) -> ValueError:
    """Return the error for a model with a default prompt."""
    return ValueError(
        f"{where} puts a prompt before each text, which pooling='auto' does not support; "
        "choose pooling='cls', 'mean' or 'max' and pass texts that begin with the prompt"
    )


def _modes(config: dict[str, Any]) -> tuple[str, ...]:
    """Read the names of the pooling modes from the configuration of a Pooling module."""
    modes = config.get("pooling_mode") or [
        mode for key, mode in MODE_OF_KEY.items() if config.get(key)
    ]
    modes = (tuple(modes) or ("mean",)) if isinstance(modes, list | tuple) else (modes,)
    unknown = [mode for mode in modes if str(mode) not in MODES]
    if unknown:
        raise ValueError(
            f"the checkpoint's pooling mode {unknown[0]!r} is not supported (supported "
            f"are {', '.join(MODES)}); choose pooling='cls', 'mean' or 'max'"
        )
    return modes


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
    """Find the classifier head: the last Linear outside the base model with num_labels outputs."""
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
