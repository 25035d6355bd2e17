"""Pooling: how one vector is computed from the hidden states of a text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn

HEAD_INPUT: Final = "head_input"
READOUT: Final = "readout"
OF_STATES: Final = ("cls", "mean", "max")  # poolings of one hidden state that a user can name
EXPORTED: Final = "exported"
ALIGNED: Final = "aligned"  # the mode of vectors of another encoder
LIBRARY: Final = "sentence-transformers"  # the mode of vectors that this library computes


class Normalize(nn.Module):
    """Scaling of vectors (B, d) to unit length."""

    def forward(self, vectors: Tensor) -> Tensor:
        return nn.functional.normalize(vectors, dim=1)


class Columns(nn.Module):
    """Selection of the first `n` columns of vectors (B, d)."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n

    def forward(self, vectors: Tensor) -> Tensor:
        return vectors[:, : self.n]

    def extra_repr(self) -> str:
        return str(self.n)


def width_after(step: nn.Module, width: int) -> int:
    """Return the number of columns after a step."""
    return int(getattr(step, "out_features", min(width, getattr(step, "n", width))))


# The parameter of an encoder; AdaptedEncoder sets an `Aligned` too.
PoolingSetting = Any
Parts = tuple[tuple[str, int], ...]  # poolings, each with the number of a hidden state


@dataclass(frozen=True)
class Pooling:
    """Poolings of hidden states side by side, with the length of texts that belongs to them."""

    modes: tuple[str, ...]  # names of poolings whose vectors are concatenated
    steps: tuple[nn.Module, ...] = ()  # that follow, of vectors (B, d)
    max_length: int | None = None  # of texts in tokens
    layers: tuple[int, ...] = ()  # the hidden state of each; empty stands for the last one
    aligned: Any = None  # what computes those of the mode ALIGNED

    @property
    def parts(self) -> Parts:
        """Each mode with its hidden state; -1 is the last one, or stands for the head's input."""
        layers = self.layers or (-1,) * len(self.modes)
        return tuple(zip(self.modes, layers, strict=True))

    @property
    def is_head_input(self) -> bool:
        """Whether the vectors are the input of the checkpoint's head."""
        return self.modes == (HEAD_INPUT,)

    @property
    def begins_with_head_input(self) -> bool:
        """Whether the first columns are the input of the checkpoint's head."""
        return self.modes[0] == HEAD_INPUT


def several_layers(pooling: PoolingSetting, layer: int = -1) -> Literal["readout"] | Parts | None:
    """Return READOUT, or the pairs (pooling, layer) after checking them; None for one pooling."""
    if not isinstance(pooling, Sequence) or (isinstance(pooling, str) and pooling != READOUT):
        return None
    if layer != -1:
        raise ValueError(
            f"layer={layer} was given, but pooling={pooling!r} chooses the layers itself: leave "
            "layer out"
        )
    if isinstance(pooling, str):
        return READOUT
    try:
        parts = tuple((str(mode), index(layer)) for mode, layer in pooling)
    except (TypeError, ValueError):  # not pairs, or layers that are not integers
        parts = ()
    later = {mode for mode, _ in (parts[1:] if parts[:1] == ((HEAD_INPUT, -1),) else parts)}
    if not parts or later - {*OF_STATES}:
        raise ValueError(
            f"pooling={pooling!r}: a list must hold pairs of 'cls', 'mean' or 'max' and a layer, "
            "such as ('mean', 2); the first may be ('head_input', -1)"
        )
    return parts


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
    total = torch.einsum("btd,bt->bd", hidden, mask.to(hidden.dtype))
    return total / mask.sum(dim=1, keepdim=True)


def _mean_sqrt(hidden: Tensor, mask: Tensor) -> Tensor:
    """Compute the sum over tokens divided by the square root of their number (B, d)."""
    return _mean(hidden, mask) * mask.sum(dim=1, keepdim=True).sqrt()


def _weighted_mean(hidden: Tensor, mask: Tensor) -> Tensor:
    """Compute the mean over tokens with weights 1, 2, 3, … (B, d)."""
    return _mean(hidden, mask * mask.cumsum(dim=1))


MODES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cls": _cls,
    "max": _max,
    "mean": _mean,
    "mean_sqrt_len_tokens": _mean_sqrt,
    "weightedmean": _weighted_mean,
    "lasttoken": _last,
}


def needs_head(pooling: PoolingSetting) -> bool:
    """Return whether parameters ask for the input of a head."""
    parts = several_layers(pooling)
    return pooling == HEAD_INPUT or (isinstance(parts, tuple) and parts[0][0] == HEAD_INPUT)
