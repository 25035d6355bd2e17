"""Persistent entropy on frozen embeddings."""

from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

import torch
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor

from isoadapt.adapters._penalised import PenalisedAdapter
from isoadapt.adapters._training._networks import LinearNetwork
from isoadapt.adapters._training._penalty import Penalty
from isoadapt.adapters._training._problem import Problem
from isoadapt.losses import PersistentEntropyLoss

_JUDGED = 3000  # rows at most on which an epoch is judged


@dataclass(eq=False, repr=False, kw_only=True)
class TopologicalEntropyAdapter(PenalisedAdapter):
    """An adapter trained on the task's loss minus lam times the persistent entropy of its outputs.

    Persistent entropy is that of the bars of each class in a batch: the lifetimes of the class'
    components, which are the lengths of the edges of its minimum spanning tree. It is large where
    bars have similar lengths, so raising it shrinks the longest. An epoch is judged on at most
    3,000 validation rows, because the cost of the tree grows with the square of their number.

    Parameters
    ----------
    bars : {"selected", "all"}, default="selected"
        Take the significant bars of each class, or all of them.
    lam : float, default=1.0
        Weight λ of persistent entropy: above zero it is raised, 0 is the control.

    References
    ----------
    "Shrink the longest: improving latent space isotropy with simplicial geometry"; the bars are
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
        **PenalisedAdapter._parameter_constraints,
        "bars": [StrOptions({"selected", "all"})],
        "lam": [Interval(Real, None, None, closed="neither")],
    }
    _batchable_params: ClassVar[frozenset[str]] = PenalisedAdapter._batchable_params | {"lam"}

    bars: str = "selected"
    lam: float = 1.0

    def _make_penalty(self, problem: Problem, device: torch.device) -> Penalty:
        loss = PersistentEntropyLoss(self.bars).to(device)
        return _Bars(loss, by_class=self._head_kind() == "classifier")

    def _penalty_weight(self) -> float:
        return self.lam


class _Bars(Penalty):
    """Persistent entropy of each class; of many validation rows, it takes some spread evenly."""

    depends_on_shifts = False

    def __init__(self, loss: PersistentEntropyLoss, by_class: bool) -> None:
        super().__init__(loss)
        self.by_class = by_class

    def __call__(self, points: Tensor, targets: Tensor | None, network: LinearNetwork) -> Tensor:
        labels = targets if self.by_class else None
        if not torch.is_grad_enabled():  # the tree costs the square of the rows
            step = -(-points.shape[1] // _JUDGED)
            points, labels = points[:, ::step], None if labels is None else labels[..., ::step]
        if labels is None or labels.ndim == 1:
            return self.loss(points, labels)
        return torch.stack([self.loss(*member) for member in zip(points, labels, strict=True)])
