"""Backbone: a loaded model with its tokenizer, and the properties that encoding needs."""

import inspect
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from isoadapt.encoders._network import (
    eval_copy,
    find_last_linear,
    is_classifier,
    position_limit,
    without_head,
)
from isoadapt.encoders._pooling import Pooling, live_pooling, sentence_pooling

_UNLIMITED = 2**31  # maximum lengths of this size or more mean that there is no limit
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
    copied = eval_copy(model)
    head = find_last_linear(copied) if is_classifier(copied) else None
    probes = _LIVE_PROBES.setdefault(model, {})
    return Backbone(copied, tokenizer, head, sentence=sentence, probes=probes)
