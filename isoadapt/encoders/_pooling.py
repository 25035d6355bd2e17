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
    aligned: Any = None  # what computes the vectors of the mode ALIGNED

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


def _state(hidden: Tensor, place: Tensor) -> Tensor:
    """Return the state (B, d) of the token at a place (B,) of each text."""
    return hidden[torch.arange(len(hidden), device=hidden.device), place]


def _mean(hidden: Tensor, mask: Tensor) -> Tensor:
    """Compute the mean over tokens (B, d)."""
    total = torch.einsum("btd,bt->bd", hidden, mask.to(hidden.dtype))
    return total / mask.sum(dim=1, keepdim=True)


# From states (B, T, d) and a mask (B, T) to vectors (B, d), wherever the padding is.
MODES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cls": lambda states, mask: _state(states, mask.argmax(dim=1)),
    "max": lambda states, mask: states.masked_fill(mask.unsqueeze(-1) == 0, -torch.inf).amax(dim=1),
    "mean": _mean,
    "mean_sqrt_len_tokens": lambda states, mask: _mean(states, mask) * mask.sum(1, True).sqrt(),
    "weightedmean": lambda states, mask: _mean(states, mask * mask.cumsum(dim=1)),
    "lasttoken": lambda states, mask: _state(states, mask.shape[1] - 1 - mask.flip(1).argmax(1)),
}


def needs_head(pooling: PoolingSetting) -> bool:
    """Return whether parameters ask for the input of a head."""
    parts = several_layers(pooling)
    return pooling == HEAD_INPUT or (isinstance(parts, tuple) and parts[0][0] == HEAD_INPUT)
