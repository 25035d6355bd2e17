"""Adapter with cosine regularisation, the mean cosine of the adapted embeddings."""

from dataclasses import dataclass

import torch

from isoadapt.adapters._engine._task import Penalty, Problem
from isoadapt.adapters._penalised import WeightedPenaltyAdapter
from isoadapt.losses import CosRegLoss


@dataclass(eq=False, repr=False, kw_only=True)
class CosRegAdapter(WeightedPenaltyAdapter):
    """Adapter trained on the task loss plus lam times the mean cosine of the adapted embeddings.

    The mean cosine of a batch of n rows is the sum over all pairs of different rows divided by n²,
    as in :class:`~isoadapt.losses.CosRegLoss`. The penalty moves the mean of the embeddings towards
    the origin. In "raw" coordinates it hardly changes their covariance, and so their IsoScore,
    compared with a layer that is trained without a penalty.

    Parameters
    ----------
    <linear head>
    lam : float, default=1.0
        Weight λ of the penalty. A positive weight lowers the cosines. 0 is the control without a
        penalty.

    <attributes and training>

    References
    ----------
    Gao et al. (2019), "Representation Degeneration Problem in Training Natural Language
    Generation Models". Rudman and Eickhoff, "Stable Anisotropic Regularization", section 5, compare
    I-STAR with it.

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

    coordinates: str = "raw"
    ridge: float | str = 0.0
    lr_schedule: str = "constant"

    def _make_penalty(self, problem: Problem, device: torch.device) -> Penalty:
        return Penalty(CosRegLoss(), shared=True)
