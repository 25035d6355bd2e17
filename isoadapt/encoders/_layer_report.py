"""layer_report: isotropy of a transformer's token embeddings for every layer, in one pass."""

from collections.abc import Callable
from dataclasses import replace
from numbers import Integral
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.utils import check_scalar
from torch import Tensor
from tqdm.auto import tqdm

from isoadapt._utils.messages import shows_progress, warn
from isoadapt._utils.state import own_state
from isoadapt.encoders._batching import embed_batches, explained_failure, to_device, token_budget
from isoadapt.encoders._opened import Opened
from isoadapt.encoders._pooling import Pooling
from isoadapt.encoders._texts import Texts, as_texts
from isoadapt.encoders._tokenization import Tokens
from isoadapt.encoders._transformer import TransformerEncoder
from isoadapt.geometry import Moments
from isoadapt.geometry._groups import GroupSums
from isoadapt.geometry._spread import eigenvalues, unit_sums
from isoadapt.metrics._points import spectral_figures, two_nn_or_nan

_BLOCK = 1024  # texts tokenised at a time
# Largest float32 difference of a token between two batches, relative to the spread of the layer.
_TOLERANCE = 1e-5
_ROUNDING = 1e-6  # a layer is constant if its spread relative to its norm is smaller
_COLUMNS = ["n_tokens", "isoscore", "isoscore_corrected", "ev1", "ev2", "ev3"]
_COLUMNS += ["anisotropy1", "mean_cosine", "two_nn"]


@own_state(models=True)
def layer_report(
    model: Any,
    texts: Any,
    *,
    max_tokens: int = 250_000,
    two_nn_tokens: int = 5_000,
    random_state: int = 0,
) -> pd.DataFrame:
    """Measure the isotropy of token embeddings for every layer.

    Special tokens are included and padding is not. The model reads the texts once, in memory that
    `max_tokens` bounds: for each layer, float64 moments are accumulated and a uniform sample of the
    tokens is drawn for the TwoNN dimension.

    Parameters
    ----------
    model : str, path-like, tuple or TransformerEncoder
        A model as for :class:`TransformerEncoder`, or an encoder, whose pooling is ignored.
    texts : sequence of str or of pairs of str
        Texts as for :meth:`TransformerEncoder.transform`, read in the given order.
    max_tokens : int, default=250_000
        Maximum number of tokens. Reading stops before the first text that would exceed it, because
        texts are only read whole.
    two_nn_tokens : int, default=5_000
        Number of tokens sampled for the TwoNN dimension, the same in every layer. Tokens that are
        equal up to rounding, such as common beginnings in a decoder, count once. The sample takes
        4 (n_layers + 1) × two_nn_tokens × n_features bytes.
    random_state : int, default=0
        Seed of the sample.

    Returns
    -------
    pandas.DataFrame
        Table with one row for each hidden state. Row 0 of the index "layer" is the input of the
        first layer, as in transformers. The columns are "n_tokens", the number of tokens, and
        "isoscore", "isoscore_corrected" (of tokens of different texts), "ev1", "ev2", "ev3",
        "anisotropy1", "mean_cosine" and "two_nn" (of the sample), as in
        :class:`~isoadapt.metrics.IsotropyReport`. A figure that is not defined is NaN. The
        attribute ``attrs`` has "n_texts", the number of texts read, and "n_features", the width of
        the hidden states.

    Raises
    ------
    OSError
        If the checkpoint is not found.
    TypeError
        If `texts` holds anything but texts or pairs of texts, or a parameter is not an integer.
    ValueError
        If `max_tokens` is too small for the first text, or if a parameter is out of its range.

    Warns
    -----
    UserWarning
        If there are fewer than 3 n_features different texts. The plain IsoScore can then be far too
        low.

    References
    ----------
    Rudman and Eickhoff, "Stable Anisotropic Regularization", figures 4 and 6: isotropy of token
    embeddings of each layer.

    Examples
    --------
    >>> from isoadapt.encoders import layer_report
    >>> report = layer_report("path/to/model", ["One text.", "Another."])  # doctest: +SKIP
    >>> report["isoscore"].iloc[-1]  # of the last layer  # doctest: +SKIP
    0.1...
    """
    check_scalar(max_tokens, "max_tokens", Integral, min_val=2)
    check_scalar(two_nn_tokens, "two_nn_tokens", Integral, min_val=4)
    check_scalar(random_state, "random_state", Integral, min_val=0)
    encoder = model if isinstance(model, TransformerEncoder) else TransformerEncoder(model)
    opened = encoder.open()
    tokens = _whole_texts(opened, as_texts(texts), max_tokens)
    distinct = _distinct(tokens)
    slots = _draw(int(tokens.lengths.sum()), two_nn_tokens, random_state)
    hidden = not shows_progress(encoder.verbose)
    with tqdm(total=len(distinct), unit=" texts", desc="Reading layers", disable=hidden) as bar:
        layers = _read(opened, tokens, distinct, slots, bar.update)
    report = pd.DataFrame([layer.figures() for layer in layers], columns=_COLUMNS)
    report.index.name = "layer"
    report.attrs = {"n_texts": len(distinct), "n_features": len(layers[0].moments)}
    if distinct.sum() < (least := 3 * report.attrs["n_features"]):
        warn(
            f"{distinct.sum()} different texts are fewer than {least} = 3 × n_features: "
            "the plain IsoScore can be far too low; use the bias-corrected one, or more texts"
        )
    return report


def _whole_texts(opened: Opened, texts: Texts, max_tokens: int) -> Tokens:
    """Return the tokens of as many texts, from the first on, as have at most `max_tokens`."""
    n_texts, n_tokens = 0, np.int64(0)
    for start in range(0, len(texts), _BLOCK):
        block = texts.take(range(start, min(start + _BLOCK, len(texts))))
        ends = n_tokens + _in_text_order(opened.tokens(block)).cumsum()
        n_texts, n_tokens = n_texts + int((ends <= max_tokens).sum()), ends[-1]
        if n_tokens > max_tokens:
            break
    if not n_texts:
        raise ValueError(
            f"max_tokens={max_tokens} is not enough for the first text, which has {ends[0]} "
            "tokens: raise it, or lower the encoder's max_length"
        )
    return opened.tokens(texts.take(range(n_texts)))


def _in_text_order(tokens: Tokens) -> NDArray[np.int64]:
    """Return the number of tokens of each text in the order of the texts."""
    lengths = np.empty_like(tokens.lengths)
    lengths[tokens.order] = tokens.lengths
    return lengths


def _distinct(tokens: Tokens) -> NDArray[np.bool_]:
    """Return a mask (n,) of as many texts as possible with different tokens."""
    ends = tokens.lengths.cumsum()
    keys = [
        b"".join(values[start:end].tobytes() for values in tokens.flat.values())
        for start, end in zip(ends - tokens.lengths, ends, strict=True)
    ]
    distinct = np.zeros(len(keys), bool)
    distinct[[*dict(zip(keys, tokens.order, strict=True)).values()]] = True
    return distinct


def _draw(n: int, size: int, seed: int) -> Tensor:
    """Draw a uniform sample of n tokens; return the place of each (n,) in the sample, or -1."""
    keys = torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    slots = torch.full((n,), -1)
    chosen = keys.topk(min(n, size), largest=False).indices
    slots[chosen] = torch.arange(len(chosen))
    return slots


def _read(
    opened: Opened,
    tokens: Tokens,
    distinct: NDArray[np.bool_],
    slots: Tensor,
    progress: Callable[[int], Any],
) -> "list[_Layer]":
    """Accumulate the sums and the sample of all layers, from the input of the first one on."""
    backbone, layers = opened.backbone, list[_Layer]()
    device = backbone.model.device
    lengths = _in_text_order(tokens)
    slots_of = slots.split(lengths.tolist())

    @torch.inference_mode()
    def embed(batch: dict[str, Tensor]) -> Tensor:
        """Compute the hidden states (n_layers + 1, n, d) of the n tokens of a batch."""
        batch = to_device(batch, device)
        with explained_failure(backbone, batch):
            output = backbone.base(**backbone.accepted(batch), output_hidden_states=True)
        mask = batch["attention_mask"].bool()
        return torch.stack([states[mask].float() for states in output.hidden_states])

    budget = token_budget(opened.batch_tokens, device)
    alone = replace(opened, pooling=Pooling(("mean",))).equal_lengths
    for rows, states in embed_batches([tokens], embed, budget, alone):
        own = torch.cat([slots_of[row] for row in rows])
        layers = layers or [_Layer(each, int(slots.max()) + 1) for each in states]
        for layer, each in zip(layers, states, strict=True):
            layer.update(each, own, lengths[rows], distinct[rows])
        progress(len(rows))
    return layers


class _Layer:
    """Sums from which the figures of a layer are computed, and its sample of tokens."""

    def __init__(self, first: Tensor, n_points: int) -> None:
        self.moments = Moments()
        self.texts = GroupSums(first.double().mean(0))
        self.direction = torch.zeros(first.shape[1], dtype=torch.float64, device=first.device)
        self.n_directions = 0.0  # number of rows that are not zero
        self.points = torch.empty(n_points, first.shape[1])

    def update(
        self, rows: Tensor, slots: Tensor, sizes: NDArray[np.int64], distinct: NDArray[np.bool_]
    ) -> None:
        """Add tokens, rows (n, d), of texts of `sizes` (b,), with their places in the sample."""
        sampled = slots >= 0
        self.points[slots[sampled]] = rows[sampled.to(rows.device)].cpu()
        rows = rows.double()
        self.moments.update(rows)
        kept = rows[torch.from_numpy(distinct.repeat(sizes)).to(rows.device)]
        self.texts.update(lambda start, stop: kept[start:stop], sizes[distinct])
        direction, n_directions = unit_sums(rows)
        self.direction += direction
        self.n_directions += float(n_directions)

    def figures(self) -> dict[str, float]:
        """Compute all figures that are defined."""
        n, d = int(self.moments.count), len(self.moments)
        raw = eigenvalues(self.moments.second_moment() * n)
        centred = eigenvalues(self.moments.scatter)
        cosine = (self.direction.square().sum() - self.n_directions) / (n * (n - 1))
        figures = {"n_tokens": n, "mean_cosine": float(cosine.clamp(-1, 1))}
        if centred.sum() > _ROUNDING**2 * raw.sum():
            figures |= spectral_figures(raw, centred, self.texts.score(d), d)
            figures["two_nn"] = two_nn_or_nan(self.points.to(self.direction), _TOLERANCE)
        return figures
