"""Isotropy penalty built on persistent entropy."""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from isoadapt.geometry import (
    Floats,
    Indices,
    edge_lengths,
    on_host,
    selected,
    spanning_parents,
    times_own_log,
)

_MIN_POINTS = 5  # of a class


class PersistentEntropyLoss(nn.Module):
    """Penalty that falls as the persistent entropy of each class rises.

    Minus the sum, over the classes, of the persistent entropy of the class' points. It is lowest
    where the bars of dimension 0 of each class have equal lengths.

    Parameters
    ----------
    bars : {"selected", "all"}, default="selected"
        Whether persistent entropy is that of the bars that count as features, or of all bars.

    Attributes
    ----------
    n_degenerate : Tensor of shape ()
        How many classes so far had fewer than 5 points or no two that differ: those cost 0, with
        zero gradient.

    Raises
    ------
    ValueError
        If `bars` is neither.

    References
    ----------
    Kudrjashov, Karpik and Klyshinsky, "Shrink the Longest: Improving Latent Space Isotropy with
    Simplicial Geometry".

    Examples
    --------
    >>> import math, torch
    >>> from isoadapt.losses import PersistentEntropyLoss
    >>> Z = torch.tensor([[0.0], [1.0], [2.0], [3.0], [4.0]])
    >>> loss = PersistentEntropyLoss()(Z)
    >>> bool(torch.isclose(loss, torch.tensor(-math.log(4))))
    True
    """

    n_degenerate: Tensor

    def __init__(self, bars: str = "selected") -> None:
        super().__init__()
        if bars not in ("selected", "all"):
            raise ValueError(f"bars={bars!r} must be 'selected' or 'all'")
        self.bars = bars
        self.register_buffer("n_degenerate", torch.zeros((), dtype=torch.long))

    def extra_repr(self) -> str:
        """Name the parameter.

        Returns
        -------
        str
        """
        return f"bars={self.bars!r}"

    def forward(self, Z: Tensor, labels: Tensor | NDArray[Any] | None = None) -> Tensor:
        """Compute the penalty.

        Parameters
        ----------
        Z : Tensor of shape (..., n, d)
            Points; half precision is computed in float32.
        labels : Tensor or ndarray of shape (n,), default=None
            Classes as integers, the same for all members; None is one class. Targets of a
            regression are no classes: pass None for them.

        Returns
        -------
        Tensor of shape (...)
            One penalty for each member; NaN where its points are not finite.

        Raises
        ------
        ValueError
            If labels are not n integers.
        """
        *members, n, d = Z.shape
        if Z.dtype not in (torch.float32, torch.float64):
            Z = Z.to(torch.float32)
        classes = _classes(labels, n)
        clouds = on_host(Z).reshape(math.prod(members), n, d)
        edges = [self._edges(cloud, rows) for cloud in clouds for rows in classes]
        sizes = [len(found) for found in edges]
        self.n_degenerate += sizes.count(0)
        if not any(sizes):
            return Z[..., :0, :].sum((-2, -1))
        group = np.repeat(np.arange(len(edges)), sizes)
        member = group // len(classes)
        ends = np.concatenate(edges) + n * member[:, None]
        with torch.autocast(Z.device.type, enabled=False):
            points, (first, second) = Z.reshape(-1, d), _index(ends, Z).unbind(1)
            steps = points.index_select(0, first) - points.index_select(0, second)
            lengths = torch.linalg.vector_norm(steps, dim=1)
            terms = times_own_log(_shares(lengths, _index(group, Z), len(edges)))
            losses = terms.new_zeros(len(clouds)).index_add(0, _index(member, Z), terms)
        return losses.reshape(members)

    def _edges(self, cloud: Floats, rows: Indices) -> Indices:
        """Pairs of rows between which the bars of a class lie; none if it costs nothing."""
        if len(rows) < _MIN_POINTS:
            return np.empty((0, 2), dtype=np.intp)
        points = cloud[rows]
        parents = spanning_parents(points)
        lengths = edge_lengths(points, parents)
        if self.bars == "all" or not np.isfinite(lengths).all():
            places = np.flatnonzero(lengths)
        else:
            places = selected(lengths)
        return np.stack([rows[places + 1], rows[parents[places]]], 1)


def _classes(labels: Tensor | NDArray[Any] | None, n: int) -> list[Indices]:
    """Rows of each class."""
    if labels is None:
        return [np.arange(n)]
    values = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if values.shape != (n,) or values.dtype.kind not in "biu":
        raise ValueError(
            f"labels has dtype {values.dtype} and shape {values.shape}: one integer for each of "
            f"the {n} rows, its class, is needed; for the targets of a regression pass None"
        )
    return [np.flatnonzero(values == label) for label in np.unique(values)]


def _index(places: Indices, like: Tensor) -> Tensor:
    return torch.from_numpy(places).to(like.device)


def _shares(lengths: Tensor, group: Tensor, n_groups: int) -> Tensor:
    """Divide each length by the sum of its group."""
    totals = lengths.new_zeros(n_groups).index_add(0, group, lengths)
    return lengths / totals.index_select(0, group)
