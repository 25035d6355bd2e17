"""Backbone: a model with its tokenizer."""

import copy
import inspect
import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from isoadapt._utils.threads import settle_threads
from isoadapt.encoders._aligned import Aligned
from isoadapt.encoders._kinds import CLASSIFIES, check_unnamed_head
from isoadapt.encoders._pooling import (
    ALIGNED,
    EXPORTED,
    HEAD_INPUT,
    LIBRARY,
    OF_STATES,
    READOUT,
    Parts,
    Pooling,
    PoolingSetting,
    needs_head,
    several_layers,
)
from isoadapt.encoders._sentence import UNLIMITED, live_pooling, sentence_pooling

_MODULE_DICTS = [key for key, value in nn.Module().__dict__.items() if isinstance(value, dict)]
_POSITION_TABLE = re.compile(r"(^|_)(wpe|pos|position|positions)(_|$)")
_WRAPPERS = ("OptimizedModule", "DataParallel", "DistributedDataParallel")
_READOUT_COLUMNS = 4096  # of pooling="readout" at most
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
    def shown(self) -> str:
        """How messages name the model."""
        return "the live model" if self.folder is None else f"model={str(self.folder)!r}"

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
        """Whether a short batch changes the attention for good, as in BigBird: each gets a copy."""
        return getattr(self.model.config, "attention_type", None) == "block_sparse"

    @cached_property
    def _headless(self) -> Any:
        """The classifier with its head replaced by Identity, shared by all batches."""
        network = eval_copy(self.model, {find_last_linear(self.model): nn.Identity()})
        # Without one, a decoder refuses batches. With -1 it reads the last position, which is
        # right for rows of equal lengths.
        if network.config.pad_token_id is None:
            network.config = copy.copy(network.config)
            network.config.pad_token_id = -1
        return network

    @cached_property
    def _base(self) -> Any:
        """The model that computes hidden states, shared by all batches."""
        base = self.model.base_model
        return base.get_encoder() if self.model.config.is_encoder_decoder else base

    @cached_property
    def inputs(self) -> frozenset[str]:
        """Names of the inputs that both the tokenizer gives and the model accepts."""
        given = frozenset({"input_ids", *self.tokenizer.model_input_names})
        forwards = (cls.forward for cls in type(self.model).__mro__ if hasattr(cls, "forward"))
        taken = (given & set(inspect.signature(forward).parameters) for forward in forwards)
        # A forward(self, *args, **kwargs) passes them to another one.
        return next((names for names in taken if "input_ids" in names), given)

    def accepted(self, batch: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return the inputs of a batch that the model accepts, and the form of its outputs."""
        form = {} if self.model.config.return_dict else {"return_dict": True}
        return {name: values for name, values in batch.items() if name in self.inputs} | form

    @property
    def end_token(self) -> int | None:
        """The token whose last state is the vector in classifiers such as BART; None in others."""
        config = self.model.config
        return config.eos_token_id if self.head is not None and config.is_encoder_decoder else None

    @cached_property
    def limit(self) -> int | None:
        """Number of tokens that the model has learned positions for; None if it has no limit."""
        return position_limit(self.model)

    @property
    def default_length(self) -> int | None:
        """Number of tokens that tokenizer and model are made for; None if neither has a limit."""
        trained = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        lengths = (self.tokenizer.model_max_length, self.limit, trained)
        return min((int(n) for n in lengths if n and 0 < n < UNLIMITED), default=None)

    def sentence_pooling(self, head: bool) -> Pooling | None:
        """Return the pooling of sentence-transformers, or None if the model or head has none."""
        if self.sentence is not None and not head:
            return live_pooling(self.sentence)
        return None if self.folder is None else sentence_pooling(self.folder, head)

    @property
    def n_layers(self) -> int:
        """Number of layers. There is one more hidden state than layers."""
        return self.model.config.get_text_config().num_hidden_layers

    @property
    def hidden_size(self) -> int:
        """Number of columns of the hidden states."""
        return self.model.config.get_text_config().hidden_size

    def hidden_state(self, layer: int) -> int:
        """Return the index of a hidden state, -1 for the last, or raise ValueError."""
        n = self.n_layers
        if not -n - 1 <= layer <= n:
            raise ValueError(
                f"layer={layer}: the model has {n} layers; choose from 0 (the input of the "
                f"first layer) to {n}, or from -{n + 1} to -1"
            )
        return -1 if layer == n else layer

    def pooling(self, name: PoolingSetting, layer: int = -1) -> Pooling:
        """Return the pooling that parameters name; raise ValueError if the model cannot have it."""
        if needs_head(name) and self.head is None:
            raise ValueError(
                f"pooling={name!r}: {type(self.model).__name__} has no classifier head; choose "
                "'cls', 'mean' or 'max'"
            )
        if isinstance(name, Aligned):
            return self._aligned(name)
        parts = several_layers(name, layer)
        if parts is None:
            found = self._one_layer(name, layer)
            return replace(found, layers=(self.hidden_state(layer),) * len(found.modes))
        modes, layers = zip(*(self._readout() if parts == READOUT else parts), strict=True)
        states = [self.hidden_state(layer) % (self.n_layers + 1) for layer in layers]
        own = Pooling(())
        if modes[0] == HEAD_INPUT:
            states[0], own = -1, self.sentence_pooling(True) or own  # -1 as the parameter has it
        return Pooling(modes, (), own.max_length, tuple(states))

    def _aligned(self, aligned: Aligned) -> Pooling:
        """Return the pooling of vectors that another encoder's layers give, behind a head's."""
        if aligned.matrix.shape[1] != len(aligned.states) * self.hidden_size:
            raise ValueError(f"pooling={aligned} was fitted to hidden states of another model")
        if self.head is None:
            return Pooling((ALIGNED,), layers=(self.n_layers,), aligned=aligned)
        own, layers = self.sentence_pooling(True) or Pooling(()), (-1, self.n_layers)
        return Pooling((HEAD_INPUT, ALIGNED), (), own.max_length, layers, aligned)

    def _one_layer(self, name: PoolingSetting, layer: int) -> Pooling:
        """Return the pooling of one hidden state that is called `name`."""
        if name in OF_STATES:
            return Pooling((str(name),))
        head = self.head is not None and name != EXPORTED
        found = self.sentence_pooling(head)
        if name == EXPORTED and (found in (None, Pooling((LIBRARY,))) or layer != -1):
            raise ValueError(
                "pooling='exported' needs layer=-1 and a folder that isoadapt.interop."
                "to_sentence_transformer wrote: choose pooling='auto' for any other checkpoint"
            )
        if head and layer != -1:
            raise ValueError(
                f"layer={layer}: the input of the classifier head follows the last "
                "layer; choose layer=-1, or pooling='cls', 'mean' or 'max'"
            )
        if found is None and not head and self.folder is not None:
            check_unnamed_head(self.folder)
        return found or Pooling((HEAD_INPUT if head else "mean",))

    def _readout(self) -> Parts:
        """Return the poolings, with their hidden states, of pooling="readout"."""
        n = self.n_layers
        means = (("mean", layer) for layer in (n, round(2 * n / 3), 0))
        parts = list(dict.fromkeys((*means, ("cls", n), ("mean", round(n / 3)))))
        head: Parts = () if self.head is None else ((HEAD_INPUT, -1),)
        own = 0 if self.head is None else self.head.in_features
        return (*head, *parts[: max(1, (_READOUT_COLUMNS - own) // self.hidden_size)])


def live_backbone(model: Any, tokenizer: Any, sentence: Any = None) -> Backbone:
    """Wrap a shallow copy, in evaluation mode, of a model that the user holds."""
    settle_threads()
    copied = eval_copy(model)
    head = find_last_linear(copied) if is_classifier(copied) else None
    probes = _LIVE_PROBES.setdefault(model, {})
    return Backbone(copied, tokenizer, head, sentence=sentence, probes=probes)


def eval_copy(model: Any, replace: dict[nn.Module, nn.Module] | None = None) -> Any:
    """Copy a model in evaluation mode, with new modules, or those in `replace`, of its weights."""
    # Mode, hooks and buffers of the original stay, so that it can be trained meanwhile.
    copies: dict[nn.Module, nn.Module] = dict(replace or {})

    def copied(module: nn.Module) -> nn.Module:
        """Copy a module and its children, each once, without wrappers."""
        module = unwrapped(module)
        if module not in copies:
            new = module.__class__.__new__(module.__class__)
            new.__dict__.update(module.__dict__)
            new.__dict__.update({key: module.__dict__[key].copy() for key in _MODULE_DICTS})
            new.__dict__["training"] = False
            new.__dict__.pop("_compiled_call_impl", None)  # would call the original
            new.__dict__.pop("forward", None)  # set by a wrapper that was removed
            copies[module] = new
            for name, child in module._modules.items():
                new._modules[name] = None if child is None else copied(child)
        return copies[module]

    return copied(model)


def unwrapped(module: Any) -> Any:
    """Return the module inside torch.compile, DataParallel and DistributedDataParallel."""
    while type(module).__module__.startswith("torch.") and type(module).__name__ in _WRAPPERS:
        module = getattr(module, "_orig_mod", None) or module.module
    return module


def refuse_peft(model: Any) -> None:
    """Raise ValueError for a live PeftModel."""
    if hasattr(model, "merge_and_unload"):
        raise ValueError(
            f"{type(model).__name__} wraps a model in PEFT layers; pass the merged model, "
            "copy.deepcopy(model).merge_and_unload()"
        )


def find_last_linear(model: Any) -> nn.Linear:
    """Find the classifier head: the last Linear outside the base model with num_labels outputs."""
    refuse_peft(model)
    base = set() if model.base_model is model else set(model.base_model.modules())
    heads = [
        module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and ".lora_" not in name  # which ends beside a head that it adapts
        and module not in base
        and module.out_features == model.config.num_labels
    ]
    if not heads or not base:
        raise ValueError(
            f"{type(model).__name__} has no linear classifier head with {model.config.num_labels} "
            "outputs behind its base model; pass a model for sequence classification that ends in "
            "one, or the folder of model.base_model"
        )
    return heads[-1]


def is_classifier(model: Any) -> bool:
    """Return whether a model is for sequence classification, by its class."""
    return any(CLASSIFIES in cls.__name__ for cls in type(model).__mro__)


def position_limit(model: Any) -> int | None:
    """Return the number of tokens with learned positions, which RoBERTa counts from an offset."""
    limits = []
    for name, module in model.named_modules():
        if hasattr(module, "padding_idx") and _POSITION_TABLE.search(name.rpartition(".")[2]):
            offset = getattr(module, "offset", None)
            if not isinstance(offset, int):
                offset = 0 if module.padding_idx is None else module.padding_idx + 1
            limits.append(len(module.weight) - offset)
    return min(limits, default=None)
