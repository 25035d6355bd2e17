"""Opened: an encoder with its model loaded, which answers every question about its vectors."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from isoadapt.encoders._backbone import Backbone
from isoadapt.encoders._batching import (
    column_names,
    embed_batch,
    explained_failure,
    needs_equal_lengths,
    run_batches,
    to_device,
    token_budget,
    vector_width,
)
from isoadapt.encoders._classifier_head import read_head
from isoadapt.encoders._pooling import LayersPooling, Pooling
from isoadapt.encoders._texts import Texts
from isoadapt.encoders._tokenization import Tokens, model_inputs, tokenize_blocks, truncation
from isoadapt.heads import LinearHead


@dataclass(frozen=True)
class Opened:
    """A loaded model with the settings of an encoder, which are checked against it."""

    backbone: Backbone
    pooling: Pooling
    layer: int  # hidden state that is pooled; -1 is the last one
    max_length: int | None  # parameter of the encoder
    batch_tokens: int

    @property
    def width(self) -> int:
        """Number of columns of the vectors."""
        return vector_width(self.backbone, self.pooling)

    @property
    def names(self) -> NDArray[Any] | None:
        """Names of the columns, if they are of several hidden states."""
        if not isinstance(self.pooling, LayersPooling):
            return None
        return np.asarray(column_names(self.backbone, self.pooling), dtype=object)

    @property
    def equal_lengths(self) -> bool:
        """Whether the texts of a batch must have one length."""
        return needs_equal_lengths(self.backbone, self.pooling)

    def length(self, pairs: bool = False) -> int | None:
        """Return the number of tokens that inputs are truncated to; None if there is no limit."""
        return truncation(self.backbone, self.max_length, self.pooling.max_length, pairs)

    def tokens(self, texts: Texts, *, whole: bool = False) -> Tokens:
        """Tokenise texts into the inputs of the model, truncated unless they are wanted whole."""
        length = None if whole else self.length(texts.second is not None)
        return model_inputs(self.backbone, texts, length)

    def encode(
        self, texts: Texts, progress: Callable[[int], Any] = lambda n_texts: None
    ) -> NDArray[np.float32]:
        """Compute the vectors (n, d) of texts, each of which is encoded, repeated or not."""
        self.length(texts.second is not None)  # raises before the first batch
        device = self.backbone.model.device
        nn.ModuleList(self.pooling.steps).to(device)
        vectors = np.empty((len(texts), self.width), dtype=np.float32)
        run_batches(
            tokenize_blocks(texts, self.tokens),
            self._embed,
            vectors,
            batch_tokens=token_budget(self.batch_tokens, device),
            equal_lengths=self.equal_lengths,
            progress=progress,
        )
        return vectors

    @torch.inference_mode()
    def _embed(self, batch: dict[str, Tensor]) -> Tensor:
        """Compute the vectors (B, d) of a batch on the device of the model."""
        with explained_failure(self.backbone, batch):
            batch = to_device(batch, self.backbone.model.device)
            return embed_batch(self.backbone, self.pooling, self.layer, batch)

    def head(self, y: ArrayLike | None = None) -> LinearHead | None:
        """Return the checkpoint's head if the first columns of the vectors are its input."""
        return read_head(self.backbone, y) if self.pooling.begins_with_head_input else None

    def describe(self) -> str:
        """Say in words how one vector is computed from a text."""
        if isinstance(self.pooling, LayersPooling):
            return f"poolings of several hidden states (pooling={self.pooling.parts})"
        if self.pooling.is_head_input:
            return "input of the classifier's last linear layer (pooling='head_input')"
        n = self.backbone.n_layers
        modes = "+".join(self.pooling.modes)
        steps = "".join(f", then {step}" for step in self.pooling.steps)
        return f"token states of layer {self.layer % (n + 1)} of {n} (pooling={modes!r}){steps}"
