"""Isotropy of a transformer's token embeddings, layer by layer, in one pass over the texts."""

import math
import sys
import warnings
from collections.abc import Callable, Iterator
from numbers import Integral
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from isoadapt.encoders._backbone import Backbone
from isoadapt.encoders._batching import Tokens, embed_batches, to_device, tokenize
from isoadapt.encoders._forward import explained_failure, token_budget
from isoadapt.encoders._layer_report import LayerFigures, LayerReport
from isoadapt.encoders._padding import needs_equal_lengths
from isoadapt.encoders._pooling import Pooling
from isoadapt.encoders._texts import Texts, as_texts
from isoadapt.encoders._transformer import TransformerEncoder
from isoadapt.geometry import Moments
from isoadapt.metrics import spectral_figures, two_nn_or_nan

_BLOCK = 1024  # texts tokenised at a time
# In float32 the same token in two batches differs by no more, in units of the layer's spread.
_TOLERANCE = 1e-5
_ROUNDING = 1e-6  # a layer whose spread is a smaller share of its size is constant
_OF_SPREAD = (
    "isoscore",
    "isoscore_corrected",
    "ev1",
    "ev2",
    "ev3",
    "anisotropy1",
    "anisotropy1_centered",
    "two_nn",
)


def layer_report(
    model: Any,
    texts: Any,
    *,
    max_tokens: int = 250_000,
    two_nn_tokens: int = 5_000,
    random_state: int = 0,
) -> LayerReport:
    """Measure the isotropy of token embeddings, layer by layer.

    Every token counts, special ones too; padding does not. One pass in bounded memory: float64
    moments of each layer, and a uniform sample of its tokens for the TwoNN dimension.

    Parameters
    ----------
    model : str, path-like, tuple or TransformerEncoder
        What a :class:`TransformerEncoder` takes, or one, whose settings (length, batches,
        device, dtype, progress bar) are used; its pooling and backend do not matter.
    texts : sequence of str or of pairs of str
        As for :meth:`TransformerEncoder.transform`, read in the given order.
    max_tokens : int, default=250_000
        Reading stops before the text that would exceed so many tokens; texts are read whole.
    two_nn_tokens : int, default=5_000
        Tokens drawn for the TwoNN dimension, the same in every layer. Of tokens equal but for
        rounding, such as common beginnings in a decoder, it sees one. The sample holds
        4 (n_layers + 1) × two_nn_tokens × n_features bytes.
    random_state : int, default=0
        Seed of that sample.

    Returns
    -------
    LayerReport
        One entry for each hidden state, numbered as the model does: 0 is what enters the first
        layer. Print it, or take ``to_frame()`` or ``to_dict()``.

    Raises
    ------
    OSError
        If the checkpoint cannot be had.
    TypeError
        If `texts` holds anything but texts or pairs of texts.
    ValueError
        If `max_tokens` does not suffice for the first text, or a parameter is out of its range.

    Warns
    -----
    UserWarning
        If n_tokens < 3 n_features: the plain IsoScore can be far too low then.

    References
    ----------
    Rudman and Eickhoff, "Stable Anisotropic Regularization", figures 4 and 6: isotropy of token
    embeddings layer by layer.

    Examples
    --------
    >>> from isoadapt.encoders import layer_report
    >>> report = layer_report("path/to/model", ["One text.", "Another."])  # doctest: +SKIP
    >>> report[-1].isoscore  # doctest: +SKIP
    0.1...
    """
    _check_whole("max_tokens", max_tokens, 2)
    _check_whole("two_nn_tokens", two_nn_tokens, 4)
    _check_whole("random_state", random_state, 0)
    encoder = model if isinstance(model, TransformerEncoder) else TransformerEncoder(model)
    encoder._validate_params()
    reader = _Reader(encoder, as_texts(texts), max_tokens)
    sample = _Sample(two_nn_tokens, random_state)
    layers = _read(reader, sample)
    figures = [
        layer.figures(number, points)
        for number, (layer, points) in enumerate(zip(layers, sample.layers(), strict=True))
    ]
    report = LayerReport(figures, reader.n_texts, len(layers[0].moments))
    if report[0].n_tokens < 3 * report.n_features:
        warnings.warn(
            f"n_tokens={report[0].n_tokens} is less than 3 × n_features={3 * report.n_features}: "
            "the plain IsoScore can be far too low; read the bias-corrected one, or use more texts",
            stacklevel=2,
        )
    return report


def _read(reader: "_Reader", sample: "_Sample") -> "list[_LayerSums]":
    layers: list[_LayerSums] = []
    with reader.bar() as bar:
        for tokens in reader.blocks():
            slots = sample.reserve(int(tokens.lengths.sum()))
            for index, states in reader.states(tokens, bar.update):
                layers = layers or [_LayerSums() for _ in states]
                for layer, rows in zip(layers, states, strict=True):
                    layer.update(rows)
                sample.put(slots[index], states)
    return layers


class _Reader:
    """Hidden states of all tokens, block by block of texts."""

    def __init__(self, encoder: TransformerEncoder, texts: Texts, max_tokens: int) -> None:
        self.encoder = encoder
        self.texts = texts
        self.max_tokens = max_tokens
        self.n_texts = 0
        self.backbone: Backbone = encoder._backbone()
        pooling = encoder._pooling(self.backbone)
        self.lowercase = pooling.lowercase
        self.max_length = encoder._length(texts, self.backbone, pooling)

    def bar(self) -> Any:
        from tqdm.auto import tqdm

        hidden = not (self.encoder.verbose and sys.stderr.isatty())
        return tqdm(total=len(self.texts), unit=" texts", desc="Reading layers", disable=hidden)

    def blocks(self) -> Iterator[Tokens]:
        """Give the tokens of some texts at a time, whole texts until `max_tokens` is full."""
        left = self.max_tokens
        while self.n_texts < len(self.texts):
            tokens = self._tokenize(self.n_texts, self.n_texts + _BLOCK)
            ends = _in_text_order(tokens).cumsum()
            fitting = int(np.searchsorted(ends, left, side="right"))
            if self.n_texts == 0 and (fitting == 0 or ends[fitting - 1] < 2):
                raise ValueError(
                    f"max_tokens={self.max_tokens} holds {fitting} of the texts, the first of "
                    f"which has {ends[0]} token(s): at least 2 tokens of whole texts are needed; "
                    "raise max_tokens, lower the encoder's max_length, or pass more texts"
                )
            if fitting == 0:
                return
            if fitting < len(ends):
                tokens = self._tokenize(self.n_texts, self.n_texts + fitting)
            self.n_texts += fitting
            left -= int(ends[fitting - 1])
            yield tokens

    def states(
        self, tokens: Tokens, progress: Callable[[int], Any]
    ) -> Iterator[tuple[NDArray[np.int64], Tensor]]:
        """Give hidden states (n_layers + 1, n, d) batch by batch, and which tokens they are.

        Tokens are numbered from 0 in the order of the texts, padding left out.
        """
        lengths = _in_text_order(tokens)
        first = lengths.cumsum() - lengths
        for rows, states in embed_batches(
            [tokens],
            self._embed,
            batch_tokens=token_budget(self.encoder.batch_tokens, self.backbone.model.device),
            equal_lengths=needs_equal_lengths(self.backbone, Pooling(("mean",))),
        ):
            spans = zip(first[rows], lengths[rows], strict=True)
            yield np.concatenate([np.arange(at, at + n) for at, n in spans]), states
            progress(len(rows))

    @torch.inference_mode()
    def _embed(self, batch: dict[str, Tensor]) -> Tensor:
        backbone = self.backbone
        batch = to_device(batch, backbone.model.device)
        inputs = {name: values for name, values in batch.items() if name in backbone.inputs}
        with explained_failure(backbone, batch):
            hidden = backbone.base(**inputs, output_hidden_states=True).hidden_states
        mask = batch["attention_mask"].bool()
        return torch.stack([states[mask].float() for states in hidden])

    def _tokenize(self, start: int, stop: int) -> Tokens:
        second = self.texts.second
        part = Texts(self.texts.first[start:stop], None if second is None else second[start:stop])
        return tokenize(
            self.backbone.tokenizer,
            part.lower() if self.lowercase else part,
            max_length=self.max_length,
            names=self.backbone.inputs,
            counts_positions=self.backbone.limit is not None,
        )


class _LayerSums:
    """What the figures of a layer are made of, updated batch by batch."""

    def __init__(self) -> None:
        self.moments = Moments()
        self.direction: Tensor | float = 0.0  # sum of the unit vectors
        self.n_directions = 0.0  # rows that are not zero

    def update(self, rows: Tensor) -> None:
        rows = rows.double()
        self.moments.update(rows)
        unit = F.normalize(rows, dim=1)
        self.direction = self.direction + unit.sum(0)
        self.n_directions += float(unit.square().sum())

    def figures(self, layer: int, points: Tensor) -> LayerFigures:
        """Compute all figures; `points` are the sampled tokens."""
        n, d = int(self.moments.count), len(self.moments)
        raw = _eigenvalues(self.moments.second_moment() * n)
        centred = _eigenvalues(self.moments.scatter)
        spread = dict.fromkeys(_OF_SPREAD, math.nan)
        if centred.sum() > _ROUNDING**2 * raw.sum():
            fourth = torch.as_tensor(self.moments.fourth)
            spread = spectral_figures(raw, centred, fourth, n, d)
            spread["two_nn"] = two_nn_or_nan(points, _TOLERANCE)
        cosines = torch.as_tensor(self.direction).square().sum() - self.n_directions
        return LayerFigures(
            layer=layer,
            n_tokens=n,
            **spread,
            mean_cosine=float((cosines / (n * (n - 1))).clamp(-1, 1)),
        )


class _Sample:
    """A uniform sample of tokens: those with the smallest random keys so far.

    A token's key depends on its place among the texts alone, so batches do not matter.
    """

    def __init__(self, size: int, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.keys = torch.full((size,), torch.inf, dtype=torch.float64)
        self.states = torch.empty(0)
        self.device = torch.device("cpu")

    def reserve(self, n: int) -> Tensor:
        """Draw keys for n more tokens; give each the slot it will take, or -1."""
        size = len(self.keys)
        keys = torch.rand(n, generator=self.generator, dtype=torch.float64)
        best = torch.cat([self.keys, keys]).topk(size, largest=False).indices
        stays = torch.zeros(size, dtype=torch.bool)
        stays[best[best < size]] = True
        taken = best[best >= size] - size
        slots = torch.full((n,), -1)
        slots[taken] = (~stays).nonzero().flatten()
        self.keys[slots[taken]] = keys[taken]
        return slots

    def put(self, slots: Tensor, states: Tensor) -> None:
        """Keep those of the states (n_layers + 1, n, d) that have a slot."""
        if not len(self.states):
            self.device = states.device
            self.states = torch.empty(len(states), len(self.keys), states.shape[2])
        kept = slots >= 0
        self.states[:, slots[kept]] = states[:, kept.to(states.device)].cpu()

    def layers(self) -> Iterator[Tensor]:
        """Give the sampled tokens of each layer, in float64."""
        filled = self.keys.isfinite()
        for states in self.states:
            yield states[filled].to(self.device, torch.float64)


def _in_text_order(tokens: Tokens) -> NDArray[np.int64]:
    lengths = np.empty_like(tokens.lengths)
    lengths[tokens.order] = tokens.lengths
    return lengths


def _eigenvalues(matrix: Tensor) -> Tensor:
    return torch.linalg.eigvalsh(matrix).flip(0).clamp(min=0)


def _check_whole(name: str, value: Any, smallest: int) -> None:
    if not isinstance(value, Integral) or value < smallest:
        raise ValueError(f"{name}={value!r} must be a whole number, {smallest} or more")
