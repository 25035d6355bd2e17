"""Adapter that raises the persistent entropy of the adapted embeddings."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from isoadapt._utils.sklearn_private import StrOptions
from isoadapt.adapters._engine._network import Layer
from isoadapt.adapters._engine._task import Penalty, Problem
from isoadapt.adapters._penalised import WeightedPenaltyAdapter
from isoadapt.adapters._rows import n_batches
from isoadapt.losses import PersistentEntropyLoss
from isoadapt.losses._persistent_entropy import MIN_POINTS

_MAX_VALIDATION_ROWS = 3000  # in the penalty that is computed after an epoch


@dataclass(eq=False, repr=False, kw_only=True)
class TopologicalEntropyAdapter(WeightedPenaltyAdapter):
    """Adapter trained on the task loss minus lam times the persistent entropy of its outputs.

    Each class in a batch has bars, the lengths of the edges of its minimum spanning tree. Their
    entropy is large if they have similar lengths, so that raising it shrinks the longest ones. An
    epoch is validated on at most 3,000 of the validation rows, because the cost of the tree grows
    with the square of their number.

    Parameters
    ----------
    <linear head>
    lam : float, default=1.0
        Weight λ of the persistent entropy. A positive weight raises the entropy. 0 is the control
        without a penalty.
    bars : {"selected", "all"}, default="selected"
        "selected" uses the significant bars of each class, "all" uses all of them.

    <attributes and training>

    References
    ----------
    "Shrink the longest: improving latent space isotropy with simplicial geometry". The bars are
    selected as in Atienza, Gonzalez-Diaz and Rucco (2019), "Persistent entropy for separating
    topological features from noise in Vietoris-Rips complexes".

    Examples
    --------
    >>> from sklearn.datasets import make_classification
    >>> from isoadapt import TopologicalEntropyAdapter
    >>> X, y = make_classification(200, 10, random_state=0)
    >>> TopologicalEntropyAdapter(max_epochs=3).fit_transform(X, y).shape
    (200, 10)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "bars": [StrOptions({"selected", "all"})],
    }

    bars: str = "selected"
    coordinates: str = "raw"
    ridge: float | str = 0.0
    lr_schedule: str = "constant"

    def _make_penalty(self, problem: Problem, device: torch.device) -> Penalty:
        return _ClasswiseEntropy(PersistentEntropyLoss(self.bars), shared=True, shifts=False)


class _ClasswiseEntropy(Penalty):
    """Minus the persistent entropy of each class; in validation, of evenly spaced rows if many."""

    def batch_warnings(self, problem: Problem, batch_size: int) -> list[str]:
        """Return what to warn of if most rows are of classes with too few rows in a batch."""
        rows, targets = problem.fitting, problem.targets
        counts = np.array([len(rows)])
        if targets is not None and targets.ndim == 1:
            counts = np.unique_counts(targets[rows]).counts
        small = counts < MIN_POINTS * n_batches(len(rows), batch_size)
        if counts[small].sum() <= len(rows) / 2:
            return []
        return [
            f"{small.sum()} of the {len(counts)} classes have on average fewer than {MIN_POINTS} "
            "rows in a batch. A class is skipped in such a batch, so the penalty hardly acts: use "
            f"a batch_size larger than {batch_size}"
        ]

    def __call__(self, points: Tensor, targets: Tensor | None, layer: Layer) -> Tensor:
        labels = targets if targets is not None and targets.dtype == torch.int64 else None
        if not torch.is_grad_enabled():  # validation; the cost of the tree is quadratic in the rows
            step = -(-points.shape[1] // _MAX_VALIDATION_ROWS)
            points, labels = points[:, ::step], None if labels is None else labels[..., ::step]
        if labels is None or labels.ndim == 1:
            return self.loss(points, labels)
        return torch.stack([self.loss(*member) for member in zip(points, labels, strict=True)])
