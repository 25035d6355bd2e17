"""Isotropy penalty based on persistent entropy."""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from isoadapt._utils.containers import as_array
from isoadapt.geometry._persistence import (
    Floats,
    Indices,
    p_log_p,
    selected_indices,
    spanning_parents,
)
from isoadapt.losses._isoscore import check_points

MIN_POINTS = 5  # smaller classes are skipped


class PersistentEntropyLoss(nn.Module):
    """Penalty that decreases as the persistent entropy of each class increases.

    It is minus the sum, over the classes, of the persistent entropy of the points of the class. It
    is smallest if, within each class, the bars of dimension 0 have equal lengths.

    Parameters
    ----------
    bars : {"selected", "all"}, default="selected"
        Bars whose persistent entropy is taken: those that
        :func:`~isoadapt.geometry.select_bars` keeps, or all.

    Attributes
    ----------
    n_degenerate : Tensor of shape ()
        Number of classes so far with fewer than 5 points or with equal points only. Their penalty
        is 0, with zero gradient.

    Raises
    ------
    ValueError
        If `bars` is neither "selected" nor "all".

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
        return f"bars={self.bars!r}"

    def forward(self, Z: Tensor, labels: Tensor | NDArray[Any] | None = None) -> Tensor:
        """Compute one penalty (...) of points Z (..., n, d); NaN where they are not finite.

        `labels` (n,) are the class of each point as an integer, the same for all members. With
        None, and for regression targets, which are not classes, all points form one class. Half
        precision is computed in float32. ValueError is raised for other labels, or fewer than two
        dimensions.
        """
        check_points(Z)
        *members, n, d = Z.shape
        if Z.dtype not in (torch.float32, torch.float64):
            Z = Z.to(torch.float32)
        classes = _classes(labels, n)
        clouds = Z.numpy(force=True).reshape(math.prod(members), n, d)
        edges = [self._edges(cloud, rows) for cloud in clouds for rows in classes]
        sizes = [len(found) for found in edges]
        self.n_degenerate += sizes.count(0)
        if not any(sizes):
            return Z[..., :0, :].sum((-2, -1))
        groups = np.repeat(np.arange(len(edges)), sizes)
        members_of = groups // len(classes)
        ends = np.concatenate(edges).T + n * members_of
        indices = torch.from_numpy(np.stack([*ends, groups, members_of]))
        first, second, group, member = indices.to(Z.device)  # one copy for all
        with torch.autocast(Z.device.type, enabled=False):
            points = Z.reshape(-1, d)
            differences = points.index_select(0, first) - points.index_select(0, second)
            lengths = torch.linalg.vector_norm(differences, dim=1)
            totals = lengths.new_zeros(len(edges)).index_add(0, group, lengths)
            terms = p_log_p(lengths / totals.index_select(0, group))
            losses = terms.new_zeros(len(clouds)).index_add(0, member, terms)
        return losses.reshape(members)

    def _edges(self, cloud: Floats, rows: Indices) -> Indices:
        """Pairs of rows (n_bars, 2) whose distances are the bars of a class; none if skipped."""
        if len(rows) < MIN_POINTS:
            return np.empty((0, 2), dtype=np.intp)
        points = cloud[rows]
        parents = spanning_parents(points)
        with np.errstate(over="ignore", invalid="ignore"):
            lengths = np.linalg.norm(points[1:] - points[parents], axis=1)
        if self.bars == "all" or not np.isfinite(lengths).all():
            indices = np.flatnonzero(lengths)
        else:
            indices = selected_indices(lengths)
        return np.stack([rows[indices + 1], rows[parents[indices]]], 1)


def _classes(labels: Tensor | NDArray[Any] | None, n: int) -> list[Indices]:
    """Row numbers of each class; without labels, all rows form one class."""
    if labels is None:
        return [np.arange(n)]
    values = np.asarray(as_array(labels))
    if values.shape != (n,) or values.dtype.kind not in "biu":
        raise ValueError(
            f"labels has dtype {values.dtype} and shape {values.shape}: one integer, the class, "
            f"for each of the {n} rows is needed; for regression targets pass None"
        )
    return [np.flatnonzero(values == label) for label in np.unique(values)]
