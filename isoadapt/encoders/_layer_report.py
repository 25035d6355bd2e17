"""layer_report: isotropy of a transformer's token embeddings for every layer, in one pass."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from numbers import Integral
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_scalar
from torch import Tensor
from torch.nn import functional as F

from isoadapt._utils.messages import aligned_table, shows_progress, warn
from isoadapt._utils.state import own_state
from isoadapt.encoders._batching import (
    embed_batches,
    explained_failure,
    needs_equal_lengths,
    to_device,
    token_budget,
)
from isoadapt.encoders._pooling import Pooling
from isoadapt.encoders._texts import Texts, as_texts
from isoadapt.encoders._tokenization import Tokens
from isoadapt.encoders._transformer import TransformerEncoder
from isoadapt.geometry import Moments
from isoadapt.geometry._groups import GroupSums
from isoadapt.geometry._spread import eigenvalues
from isoadapt.metrics._points import spectral_figures, two_nn_or_nan

_BLOCK = 1024  # texts tokenised at a time
# Largest float32 difference of a token between two batches, relative to the spread of the layer.
_TOLERANCE = 1e-5
_ROUNDING = 1e-6  # a layer is constant if its spread relative to its norm is smaller
_COLUMNS = {
    "layer": ("layer", "d"),
    "isoscore": ("IsoScore", ".4g"),
    "isoscore_corrected": ("corrected", ".4g"),
    "ev1": ("EV1", ".4g"),
    "ev2": ("EV2", ".4g"),
    "ev3": ("EV3", ".4g"),
    "anisotropy1": ("anisotropy_1", ".4g"),
    "mean_cosine": ("mean cosine", ".4g"),
    "two_nn": ("TwoNN", ".4g"),
}


@dataclass(frozen=True)
class LayerFigures:
    """Geometry of the token embeddings of one layer; NaN if a figure is not defined."""

    layer: int  # index of the hidden state; 0 is the input of the first layer
    n_tokens: int
    isoscore: float
    isoscore_corrected: float  # bias corrected
    ev1: float  # fraction of the variance along the first principal direction
    ev2: float  # along the first two
    ev3: float  # along the first three
    anisotropy1: float  # fraction of the first squared singular value, without centring
    mean_cosine: float  # over all pairs of different tokens
    two_nn: float  # TwoNN intrinsic dimension of a sample of the tokens


class LayerReport(Sequence[LayerFigures]):
    """Geometry of the token embeddings of every layer of a transformer.

    A report is a sequence with one entry for each hidden state. Printing it shows a table.

    Parameters
    ----------
    layers : sequence of LayerFigures
        One entry for each hidden state, from the embedding layer, 0, to the last layer. An entry
        has the attributes ``layer``, ``n_tokens``, ``isoscore``, ``isoscore_corrected`` (bias
        corrected), ``ev1``, ``ev2`` and ``ev3`` (fraction of the variance along the first one, two
        and three principal directions), ``anisotropy1`` (fraction of the first squared singular
        value, without centring; with centring it is ``ev1``), ``mean_cosine`` (over all pairs of
        different tokens) and ``two_nn`` (TwoNN intrinsic dimension of a sample of the tokens). A
        figure that is not defined is NaN.
    n_texts : int
        Number of texts read.
    n_features : int
        Width of the hidden states.
    """

    def __init__(self, layers: Sequence[LayerFigures], n_texts: int, n_features: int) -> None:
        self.layers = tuple(layers)
        self.n_texts = n_texts
        self.n_features = n_features

    @overload
    def __getitem__(self, index: int) -> LayerFigures: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[LayerFigures, ...]: ...

    def __getitem__(self, index: int | slice) -> LayerFigures | tuple[LayerFigures, ...]:
        return self.layers[index]

    def __len__(self) -> int:
        return len(self.layers)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain numbers.

        Returns
        -------
        dict
            ``n_texts``, ``n_features`` and ``layers``, which is a list with one dict for each
            layer.
        """
        layers = [asdict(figures) for figures in self]
        return {"n_texts": self.n_texts, "n_features": self.n_features, "layers": layers}

    def to_frame(self) -> Any:
        """Return the report as a table.

        Returns
        -------
        pandas.DataFrame
            Table with one row for each layer and the number of the layer as index.
        """
        import pandas as pd

        return pd.DataFrame([asdict(figures) for figures in self]).set_index("layer")

    def __str__(self) -> str:
        cells = [[title for title, _ in _COLUMNS.values()]]
        cells += [
            [format(getattr(figures, name), form) for name, (_, form) in _COLUMNS.items()]
            for figures in self
        ]
        title = (
            f"LayerReport: {self[0].n_tokens} tokens × {self.n_features} from {self.n_texts} "
            "texts, token states without pooling (IsoScore: 1 = isotropic)"
        )
        return f"{title}\n{aligned_table(cells, left=())}"

    __repr__ = __str__


@own_state()
def layer_report(
    model: Any,
    texts: Any,
    *,
    max_tokens: int = 250_000,
    two_nn_tokens: int = 5_000,
    random_state: int = 0,
) -> LayerReport:
    """Measure the isotropy of token embeddings for every layer.

    Special tokens are included and padding is not. The texts are read once, in bounded memory: for
    each layer, float64 moments are accumulated and a uniform sample of the tokens is drawn for the
    TwoNN dimension.

    Parameters
    ----------
    model : str, path-like, tuple or TransformerEncoder
        A model as for :class:`TransformerEncoder`, or an encoder. Of an encoder, the length, the
        batch size, device, dtype and progress bar are used. Its pooling is ignored.
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
    LayerReport
        Report with one entry for each hidden state. Entry 0 is the input of the first layer, as in
        transformers. Print the report, or use ``to_frame()`` or ``to_dict()``.

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
    >>> report[-1].isoscore  # doctest: +SKIP
    0.1...
    """
    check_scalar(max_tokens, "max_tokens", Integral, min_val=2)
    check_scalar(two_nn_tokens, "two_nn_tokens", Integral, min_val=4)
    check_scalar(random_state, "random_state", Integral, min_val=0)
    encoder = model if isinstance(model, TransformerEncoder) else TransformerEncoder(model)
    reader = _Reader(encoder, as_texts(texts), max_tokens)
    sample = _Sample(two_nn_tokens, random_state)
    layers = _read(reader, sample)
    figures = [
        layer.figures(number, points)
        for number, (layer, points) in enumerate(zip(layers, sample.layers(), strict=True))
    ]
    report = LayerReport(figures, reader.n_texts, len(layers[0].moments))
    n_different = len(reader.seen)
    if n_different < (least := 3 * report.n_features):
        warn(
            f"{n_different} different texts are fewer than {least} = 3 × n_features: "
            "the plain IsoScore can be far too low; use the bias-corrected one, or more texts",
        )
    return report


def _read(reader: "_Reader", sample: "_Sample") -> "list[_LayerSums]":
    """Accumulate sums and sample of all layers in one pass over the texts."""
    layers: list[_LayerSums] = []
    with reader.bar() as bar:
        for tokens in reader.blocks():
            slots = sample.reserve(int(tokens.lengths.sum()))
            for index, sizes, states in reader.states(tokens, bar.update):
                layers = layers or [_LayerSums(rows) for rows in states]
                for layer, rows in zip(layers, states, strict=True):
                    layer.update(rows, sizes)
                sample.put(slots[index], states)
    return layers


class _Reader:
    """Reads the hidden states of all tokens, block by block of texts."""

    def __init__(self, encoder: TransformerEncoder, texts: Texts, max_tokens: int) -> None:
        self.encoder = encoder
        self.texts = texts
        self.max_tokens = max_tokens
        self.n_texts = 0
        self.seen: set[bytes] = set()  # tokens of the different texts
        self.opened = encoder.open()
        self.opened.length(texts.second is not None)  # raises if it does not fit
        self.backbone = self.opened.backbone

    def bar(self) -> Any:
        """Return a progress bar, hidden unless the encoder is verbose."""
        from tqdm.auto import tqdm

        hidden = not shows_progress(self.encoder.verbose)
        return tqdm(total=len(self.texts), unit=" texts", desc="Reading layers", disable=hidden)

    def blocks(self) -> Iterator[Tokens]:
        """Yield the tokens of blocks of whole texts, up to `max_tokens` tokens."""
        left = self.max_tokens
        while self.n_texts < len(self.texts):
            tokens = self._tokenize(self.n_texts, self.n_texts + _BLOCK)
            ends = _in_text_order(tokens).cumsum()
            fitting = int(np.searchsorted(ends, left, side="right"))
            if self.n_texts == 0 and (fitting == 0 or ends[fitting - 1] < 2):
                raise ValueError(
                    f"max_tokens={self.max_tokens} is enough for {fitting} of the texts, the first "
                    f"of which has {ends[0]} token(s); at least 2 tokens of whole texts are "
                    "needed; raise max_tokens, lower the encoder's max_length, or pass more texts"
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
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], Tensor]]:
        """Yield token numbers (n,), sizes and hidden states (n_layers + 1, n, d), batch by batch.

        Tokens are numbered from 0 in the order of the texts, without padding. The sizes (b,) are
        the numbers of tokens of texts, negative for a text that has the tokens of another one.
        """
        lengths = _in_text_order(tokens)
        first = lengths.cumsum() - lengths
        sizes = lengths * self._signs(tokens)
        for rows, states in embed_batches(
            [tokens],
            self._embed,
            batch_tokens=token_budget(self.encoder.batch_tokens, self.backbone.model.device),
            equal_lengths=needs_equal_lengths(self.backbone, Pooling(("mean",))),
        ):
            spans = zip(first[rows], lengths[rows], strict=True)
            numbers = np.concatenate([np.arange(at, at + n) for at, n in spans])
            yield numbers, sizes[rows], states
            progress(len(rows))

    def _signs(self, tokens: Tokens) -> NDArray[np.int64]:
        """Return 1 for each text (n,) whose tokens no other one had so far, else -1."""
        signs, ends = np.ones_like(tokens.order), tokens.lengths.cumsum()
        for row, start, end in zip(tokens.order, ends - tokens.lengths, ends, strict=True):
            key = b"".join(values[start:end].tobytes() for values in tokens.flat.values())
            signs[row] = -1 if key in self.seen else 1
            self.seen.add(key)
        return signs

    @torch.inference_mode()
    def _embed(self, batch: dict[str, Tensor]) -> Tensor:
        """Compute the hidden states (n_layers + 1, n, d) of the n tokens of a batch."""
        backbone = self.backbone
        batch = to_device(batch, backbone.model.device)
        inputs = backbone.accepted(batch)
        with explained_failure(backbone, batch):
            hidden = backbone.base(**inputs, output_hidden_states=True).hidden_states
        mask = batch["attention_mask"].bool()
        return torch.stack([states[mask].float() for states in hidden])

    def _tokenize(self, start: int, stop: int) -> Tokens:
        """Tokenise texts `start` to `stop`."""
        return self.opened.tokens(self.texts.take(range(start, min(stop, len(self.texts)))))


class _LayerSums:
    """Sums from which the figures of a layer are computed, updated batch by batch."""

    def __init__(self, first: Tensor) -> None:
        self.moments = Moments()
        self.texts = GroupSums(first.double().mean(0))
        self.direction: Tensor | float = 0.0  # sum of the unit vectors (d,)
        self.n_directions = 0.0  # number of rows that are not zero

    def update(self, rows: Tensor, sizes: NDArray[np.int64]) -> None:
        """Add tokens, rows (n, d), of texts of `sizes` (b,), as `_Reader.states` gives them."""
        rows = rows.double()
        self.moments.update(rows)
        kept = rows[torch.from_numpy(np.repeat(sizes > 0, abs(sizes))).to(rows.device)]
        self.texts.update(lambda start, stop: kept[start:stop], sizes[sizes > 0])
        unit = F.normalize(rows, dim=1)
        self.direction = self.direction + unit.sum(0)
        self.n_directions += float(unit.square().sum())

    def figures(self, layer: int, points: Tensor) -> LayerFigures:
        """Compute all figures of layer number `layer`; `points` are the sampled tokens."""
        n, d = int(self.moments.count), len(self.moments)
        raw = eigenvalues(self.moments.second_moment() * n)
        centred = eigenvalues(self.moments.scatter)
        spread: dict[str, Any] = dict.fromkeys(_COLUMNS, math.nan)
        if centred.sum() > _ROUNDING**2 * raw.sum():
            spread = spectral_figures(raw, centred, self.texts.score(d), d)
            spread["two_nn"] = two_nn_or_nan(points, _TOLERANCE)
        cosines = torch.as_tensor(self.direction).square().sum() - self.n_directions
        cosine = float((cosines / (n * (n - 1))).clamp(-1, 1))
        return LayerFigures(**spread | {"layer": layer, "n_tokens": n, "mean_cosine": cosine})


class _Sample:
    """A uniform sample of tokens: those with the smallest random keys, drawn in text order."""

    def __init__(self, size: int, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.keys = torch.full((size,), torch.inf, dtype=torch.float64)
        self.states = torch.empty(0)
        self.device = torch.device("cpu")

    def reserve(self, n: int) -> Tensor:
        """Draw keys for n more tokens; return the slot of each in the sample, or -1."""
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
        """Store those of the states (n_layers + 1, n, d) that have a slot."""
        if not len(self.states):
            self.device = states.device
            self.states = torch.empty(len(states), len(self.keys), states.shape[2])
        kept = slots >= 0
        self.states[:, slots[kept]] = states[:, kept.to(states.device)].cpu()

    def layers(self) -> Iterator[Tensor]:
        """Yield the sampled tokens of each layer in float64."""
        filled = self.keys.isfinite()
        for states in self.states:
            yield states[filled].to(self.device, torch.float64)


def _in_text_order(tokens: Tokens) -> NDArray[np.int64]:
    """Return the number of tokens of each text in the order of the texts."""
    lengths = np.empty_like(tokens.lengths)
    lengths[tokens.order] = tokens.lengths
    return lengths
