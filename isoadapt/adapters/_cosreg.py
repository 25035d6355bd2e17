"""Cosine regularisation on frozen embeddings."""

from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

import torch
from sklearn.utils._param_validation import Interval

from isoadapt.adapters._penalised import PenalisedAdapter
from isoadapt.adapters._training._penalty import Penalty
from isoadapt.adapters._training._problem import Problem
from isoadapt.losses import CosRegLoss


@dataclass(eq=False, repr=False, kw_only=True)
class CosRegAdapter(PenalisedAdapter):
    """An adapter trained on the task's loss plus lam times the mean cosine of its outputs.

    The mean is the sum over all pairs of different rows of a batch over n², as in
    :class:`~isoadapt.losses.CosRegLoss`.
    It moves the mean towards the origin. In "raw" coordinates the covariance, and so IsoScore,
    stays about where a layer without a penalty leaves it.

    Parameters
    ----------
    lam : float, default=1.0
        Weight λ of the penalty: above zero it lowers cosines, 0 is the control.

    References
    ----------
    Gao et al. (2019), "Representation Degeneration Problem in Training Natural Language
    Generation Models"; compared with in Rudman and Eickhoff, "Stable Anisotropic
    Regularization", section 5.

    Examples
    --------
    >>> from sklearn.datasets import make_classification
    >>> from isoadapt import CosRegAdapter
    >>> from isoadapt.metrics import mean_cosine_similarity
    >>> X, y = make_classification(500, 10, shift=1.0, random_state=0)
    >>> adapter = CosRegAdapter(random_state=0).fit(X, y)
    >>> mean_cosine_similarity(adapter.transform(X)) < mean_cosine_similarity(X)
    True
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **PenalisedAdapter._parameter_constraints,
        "lam": [Interval(Real, None, None, closed="neither")],
    }
    _batchable_params: ClassVar[frozenset[str]] = PenalisedAdapter._batchable_params | {"lam"}
    _batches_folds: ClassVar[bool] = True

    lam: float = 1.0

    def _make_penalty(self, problem: Problem, device: torch.device) -> Penalty:
        return Penalty(CosRegLoss())

    def _penalty_weight(self) -> float:
        return self.lam
