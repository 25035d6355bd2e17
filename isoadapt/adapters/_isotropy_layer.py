"""The Isotropy Layer."""

from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

import torch
from sklearn.utils._param_validation import Interval

from isoadapt.adapters._isoscore_adapter import IsoScoreAdapter, IsoScorePenalty
from isoadapt.adapters._training._penalty import Penalty
from isoadapt.adapters._training._problem import Problem
from isoadapt.losses import IsoScoreLoss


@dataclass(eq=False, repr=False, kw_only=True)
class IsotropyLayer(IsoScoreAdapter):
    """A layer between a frozen encoder and its frozen head, trained for isotropy and the task.

    The loss is ``alpha * task + (1 - alpha) * penalty`` with the penalty -log IsoScore of the
    layer's outputs, the two balanced by their moving means. The layer starts as the identity.

    Parameters
    ----------
    alpha : float, default=0.5
        Share of the task in the loss, in (0, 1]; 1 is the control without a penalty.
    bias_corrected : bool, default=True
        Correct most of the small-batch bias of the penalty.
    solver : {"minibatch", "exact"}, default="minibatch"
        "minibatch" is the paper's. "exact" computes the limit of that training directly: the
        head's outputs are fitted to the task as far as `ridge` allows, and all directions that
        the head does not read are whitened. It uses all rows, without validation rows, warnings
        about harm, or balance. There `alpha` matters only as far as the head's outputs have to
        change for more isotropy.

    Notes
    -----
    On a CPU, small steps of "minibatch" run in one thread, because several threads would make
    them much slower where other programs keep the cores busy; large steps run in all threads of
    torch. ``torch.get_num_threads()`` is the same before and after a fit. If `scoring` sets it to
    more than 1, that number stays.

    With "exact" the best attainable IsoScore under a head of rank r is
    (PR(Σ_U) + d - r - 1) / (d - 1). Σ_U is the covariance of the r coordinates that the head
    reads, and PR its participation ratio tr(Σ_U)² / tr(Σ_U²).

    References
    ----------
    "Optimizing the performance of text classification models by improving the isotropy of the
    embeddings using a joint loss function", section 3.

    Examples
    --------
    >>> from sklearn.datasets import make_classification
    >>> from isoadapt import IsotropyLayer
    >>> from isoadapt.metrics import isoscore
    >>> X, y = make_classification(500, 10, n_informative=6, random_state=0)
    >>> layer = IsotropyLayer(solver="exact").fit(X, y)
    >>> isoscore(layer.transform(X)) > isoscore(X)
    True
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **IsoScoreAdapter._parameter_constraints,
        "alpha": [Interval(Real, 0, 1, closed="right")],
    }
    _batchable_params: ClassVar[frozenset[str]] = IsoScoreAdapter._batchable_params | {"alpha"}
    _batches_folds: ClassVar[bool] = True

    alpha: float = 0.5
    balance: str | None = "ema"
    bias_corrected: bool = True

    def _make_penalty(self, problem: Problem, device: torch.device) -> Penalty:
        return IsoScorePenalty(IsoScoreLoss(form="log", bias_corrected=self.bias_corrected))

    def _penalty_weight(self) -> float:
        return (1 - self.alpha) / self.alpha
