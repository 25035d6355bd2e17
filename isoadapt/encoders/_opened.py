"""Opened: an encoder with its model loaded, which answers every question about its vectors."""

import threading
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from isoadapt.encoders._backbone import Backbone, eval_copy
from isoadapt.encoders._batching import (
    PAIR,
    Batch,
    Embed,
    embed_batch,
    embed_in_threads,
    explained_failure,
    fills_two_threads,
    to_device,
    token_budget,
    write_vectors,
)
from isoadapt.encoders._classifier_head import read_head
from isoadapt.encoders._pooling import ALIGNED, HEAD_INPUT, Pooling, width_after
from isoadapt.encoders._texts import Texts
from isoadapt.encoders._tokenization import Tokens, model_inputs, tokenize_blocks
from isoadapt.heads import LinearHead

_LOCK = threading.Lock()  # of the probes for the influence of padding
# Mean absolute differences, relative to the mean absolute value. In models of 6 to 24 layers,
# rounding alone causes 1e-6 to 3e-6 in float32 and 1.5 to 3.5 machine epsilons in half precision.
_TOLERANCE = 1e-5
_EPSILONS = 4


@dataclass(frozen=True)
class Opened:
    """A loaded model with the settings of an encoder, which are checked against it."""

    backbone: Backbone
    pooling: Pooling
    max_length: int | None  # parameter of the encoder
    batch_tokens: int

    def __post_init__(self) -> None:
        nn.ModuleList(self.pooling.steps).to(self.backbone.model.device)

    @property
    def width(self) -> int:
        """Number of columns of the vectors."""
        width = sum(map(self._n_columns, self.pooling.modes))
        return reduce(lambda columns, step: width_after(step, columns), self.pooling.steps, width)

    def _n_columns(self, mode: str) -> int:
        """Return the number of columns of one pooling."""
        if mode == ALIGNED:
            return self.pooling.aligned.width
        head = self.backbone.head if mode == HEAD_INPUT else None
        return self.backbone.hidden_size if head is None else head.in_features

    @property
    def names(self) -> list[str]:
        """Names of the columns of the poolings, such as "layer2_mean_17"."""
        names = list[str]()
        for mode, layer in self.pooling.parts:
            stem = mode if mode in (HEAD_INPUT, ALIGNED) else f"layer{layer}_{mode}"
            names += [f"{stem}_{column}" for column in range(self._n_columns(mode))]
        return names

    @property
    def equal_lengths(self) -> bool:
        """Whether the texts of a batch must have one length, because padding changes vectors."""
        backbone, pooling = self.backbone, self.pooling
        own, tokenizers = backbone.model.config.pad_token_id, backbone.tokenizer.pad_token_id
        unlike = pooling.begins_with_head_input if own is None else own != tokenizers
        if backbone.switches_attention or unlike:  # it would treat padding as text or text as such
            return True
        key = (pooling.parts, pooling.aligned, tokenizers, backbone.tokenizer.padding_side)
        with _LOCK:
            if key not in backbone.probes:
                backbone.probes[key] = self._padding_changes_vectors()
            return backbone.probes[key]

    def _padding_changes_vectors(self) -> bool:
        """Return whether the vector of a text differs between batches with and without padding."""
        tokens = model_inputs(self.backbone, PAIR, self.backbone.default_length)
        if tokens.lengths[0] == tokens.lengths[1]:
            return True  # the probe contains no padding, so it shows nothing
        alone = self._embed(tokens.batch(1, 2)).float()
        try:
            padded = self._embed(tokens.batch(0, 2))[1:]
        except ValueError:
            return True  # the model does not accept padding at all
        tolerance = max(_TOLERANCE, _EPSILONS * torch.finfo(self.backbone.model.dtype).eps)
        return not bool((padded - alone).abs().mean() <= tolerance * alone.abs().mean())

    def length(self, pairs: bool = False) -> int | None:
        """Return the number of tokens that inputs are truncated to; None if there is no limit."""
        limit, own = self.backbone.limit, self.pooling.max_length
        if self.max_length is None:
            return self.backbone.default_length if own is None else min(own, limit or own)
        if limit is not None and self.max_length > limit:
            raise ValueError(
                f"max_length={self.max_length}, but the model has positions for {limit} tokens; "
                f"choose at most {limit}, or None"
            )
        special = self.backbone.tokenizer.num_special_tokens_to_add(pair=pairs)
        if self.max_length <= special:
            raise ValueError(
                f"max_length={self.max_length} leaves no room for text besides {special} special "
                f"tokens; choose {special + 1} or more"
            )
        return self.max_length

    def tokens(self, texts: Texts, *, whole: bool = False) -> Tokens:
        """Tokenise texts into the inputs of the model, truncated unless they are wanted whole."""
        length = None if whole else self.length(texts.second is not None)
        return model_inputs(self.backbone, texts, length)

    def encode(
        self, texts: Texts, progress: Callable[[int], Any] = lambda n_texts: None
    ) -> NDArray[np.float32]:
        """Compute the vectors (n, d) of all texts, repeated or not."""
        vectors = np.empty((len(texts), self.width), dtype=np.float32)
        with closing(self.batches(texts, lambda own: own._embed)) as batches:
            write_vectors(batches, vectors, progress)
        return vectors

    def batches(
        self, texts: Texts, embed: Callable[["Opened"], Embed], equal_lengths: bool = False
    ) -> Generator[Batch, None, None]:
        """Yield the batches of texts, for which `embed` makes the function of each thread."""
        budget = token_budget(self.batch_tokens, self.backbone.model.device)
        # It may pass texts, which adds hooks to modules. They must not be copied meanwhile.
        equal_lengths = self.equal_lengths or equal_lengths
        embeds = [embed(self)]
        if fills_two_threads(texts, self.backbone.model.device, budget):
            # A pass may change buffers, as of dynamic rotary embeddings.
            model = eval_copy(self.backbone.model)
            embeds.append(embed(replace(self, backbone=replace(self.backbone, model=model))))
        with (
            closing(tokenize_blocks(texts, self.tokens)) as blocks,  # ends their thread
            closing(embed_in_threads(blocks, embeds, budget, equal_lengths)) as batches,
        ):
            yield from batches

    @torch.inference_mode()
    def _embed(self, batch: dict[str, Tensor]) -> Tensor:
        """Compute the vectors (B, d) of a batch on the device of the model."""
        with explained_failure(self.backbone, batch):
            batch = to_device(batch, self.backbone.model.device)
            vectors = embed_batch(self.backbone, self.pooling, batch)
            if vectors.shape[1] != self.width:
                raise ValueError(f"its vectors have {vectors.shape[1]} columns, not {self.width}")
            return vectors

    def head(self, y: ArrayLike | None = None) -> LinearHead | None:
        """Return the checkpoint's head if the first columns of the vectors are its input."""
        return read_head(self.backbone, y) if self.pooling.begins_with_head_input else None

    def describe(self) -> str:
        """Say in words how one vector is computed from a text."""
        if self.pooling.is_head_input:
            return "input of the classifier's last linear layer (pooling='head_input')"
        if (aligned := self.pooling.aligned) is not None:
            return f"{aligned.n_layers} layer(s) of another encoder on aligned states of tokens"
        layer, *others = dict.fromkeys(layer for _, layer in self.pooling.parts)
        if others:
            return f"poolings of several hidden states (pooling={self.pooling.parts})"
        n = self.backbone.n_layers
        modes = "+".join(self.pooling.modes)
        steps = "".join(f", then {step}" for step in self.pooling.steps)
        return f"token states of layer {layer % (n + 1)} of {n} (pooling={modes!r}){steps}"
