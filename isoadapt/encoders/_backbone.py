"""A model and its tokenizer, and what can be known of them."""

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

_UNLIMITED = 2**31
_LIVE_PROBES: "WeakKeyDictionary[Any, dict[Any, bool]]" = WeakKeyDictionary()


@dataclass(frozen=True)
class Backbone:
    """A model in evaluation mode with its tokenizer.

    Parameters
    ----------
    model : PreTrainedModel
        The whole model, its own head included.
    tokenizer : PreTrainedTokenizerBase
        Its tokenizer.
    head : nn.Linear or None
        The last Linear of its classifier.
    folder : Path or None
        Where it was loaded from; None for a live model.
    sentence : SentenceTransformer or None
        The live object that the model belongs to.
    probes : mapping of tuple to bool
        Results of the probes for the influence of padding, kept as long as the model.

    Attributes
    ----------
    headless : PreTrainedModel
        The classifier whose "logits" are the embedding.
    base : PreTrainedModel
        The model that gives hidden states.
    inputs : frozenset of str
        What the tokenizer names and the model takes.
    limit : int or None
        Tokens that the model has positions for; None if it needs no learned positions.
    default_length : int or None
        Tokens that both tokenizer and model are made for; None if neither says.
    n_layers : int
        Number of layers; there is one hidden state more.
    """

    model: Any
    tokenizer: Any
    head: nn.Linear | None
    folder: Path | None = None
    sentence: Any = None
    probes: MutableMapping[tuple[Any, ...], bool] = field(default_factory=dict, compare=False)

    @property
    def headless(self) -> Any:
        return eval_copy(self._headless) if self.switches_attention else self._headless

    @property
    def base(self) -> Any:
        return eval_copy(self._base) if self.switches_attention else self._base

    @cached_property
    def switches_attention(self) -> bool:
        """Whether the attention depends on the batch's width, as BigBird's sparse attention does.

        A short batch switches the model to full attention for good, so each batch gets a copy.
        """
        return getattr(self.model.config, "attention_type", None) == "block_sparse"

    @cached_property
    def _headless(self) -> Any:
        return without_head(self.model)

    @cached_property
    def _base(self) -> Any:
        base = self.model.base_model
        return base.get_encoder() if self.model.config.is_encoder_decoder else base

    @cached_property
    def inputs(self) -> frozenset[str]:
        taken = set(inspect.signature(self.model.forward).parameters)
        return frozenset(taken & {"input_ids", *self.tokenizer.model_input_names})

    @cached_property
    def limit(self) -> int | None:
        return position_limit(self.model)

    @property
    def default_length(self) -> int | None:
        trained = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        lengths = (self.tokenizer.model_max_length, self.limit, trained)
        return min((n for n in lengths if n is not None and 0 < n < _UNLIMITED), default=None)

    def sentence_pooling(self) -> Pooling | None:
        """Give the pooling of sentence-transformers; None if the model does not belong to it."""
        if self.sentence is not None:
            return live_pooling(self.sentence)
        return None if self.folder is None else sentence_pooling(self.folder)

    @property
    def n_layers(self) -> int:
        return self.model.config.get_text_config().num_hidden_layers


def live_backbone(model: Any, tokenizer: Any, sentence: Any = None) -> Backbone:
    """Wrap a model that the user holds; neither its mode nor its configuration changes.

    Parameters
    ----------
    model : PreTrainedModel
        The model.
    tokenizer : PreTrainedTokenizerBase
        Its tokenizer.
    sentence : SentenceTransformer, default=None
        The object that the model belongs to.

    Returns
    -------
    Backbone
        A shallow copy of the model in evaluation mode.
    """
    copied = eval_copy(model)
    head = find_last_linear(copied) if is_classifier(copied) else None
    probes = _LIVE_PROBES.setdefault(model, {})
    return Backbone(copied, tokenizer, head, sentence=sentence, probes=probes)
