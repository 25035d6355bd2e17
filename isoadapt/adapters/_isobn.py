"""IsoBN after training: one scale for each dimension, from the statistics of the whole set."""

from numbers import Real
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.utils._param_validation import Interval
from torch import Tensor

from isoadapt.adapters._closed_form import REFITTED, MomentsAdapter
from isoadapt.adapters._maps import Affine
from isoadapt.geometry import Moments
from isoadapt.heads import LinearHead


class IsoBN(MomentsAdapter):
    """Scale down dimensions of large variance and those correlated with many others.

    The map is h -> s·h, elementwise and without centring. With the standard deviations σ and
    the correlations ρ, γ_i = mean_j ρ_ij² and s_i is proportional to (γ_i σ_i + ε)^(-β), such
    that the total variance stays. But for ε, the map of c·X is that of X, whatever β.

    Parameters
    ----------
    beta : float, default=0.5
        The β in [0, 1]: 0 changes nothing, 1 gives every dimension a standard deviation of
        1/γ_i, up to one factor.
    eps : float, default=1e-3
        The ε, more than 0, added to γ_i σ_i and to the total variance after scaling. The
        correlations of a constant dimension count as 0, so that it gets a scale too.
    head : LinearHead, linear estimator, {"logistic", "ridge"} or None, default=None
        The head that predicts on the adapted embeddings, as in :class:`IsotropyLayer`; None
        makes a transformer only. "refit" fits the estimator or the named probe to the adapted
        embeddings, and in place of a frozen head a probe of its kind.
    head_training : {"refit", "frozen"}, default="refit"
        "refit" fits the head to the adapted embeddings (it needs y); a probe standardises them
        first, so that it predicts what it would without the adapter, up to the solver's tolerance.
        "frozen" keeps the head, though it was made for other scales.

    Attributes
    ----------
    scale_ : ndarray of shape (n_features,)
        The s.
    map_ : Affine
        The fitted map.
    head_ : LinearHead or None
        The head.
    moments_ : Moments
        Of all rows seen.

    References
    ----------
    W. Zhou, B. Y. Lin and X. Ren (2021), "IsoBN: Fine-tuning BERT with isotropic batch
    normalization".

    Examples
    --------
    >>> import numpy as np
    >>> from isoadapt import IsoBN
    >>> from isoadapt.metrics import isoscore
    >>> X = np.random.default_rng(0).normal(size=(500, 8)) * [50, 1, 1, 1, 1, 1, 1, 1] + 3
    >>> round(isoscore(X), 3), round(isoscore(IsoBN(beta=1.0).fit_transform(X)), 3)
    (0.001, 0.986)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **REFITTED,
        "beta": [Interval(Real, 0, 1, closed="both")],
        "eps": [Interval(Real, 0, None, closed="neither")],
    }

    def __init__(
        self,
        beta: float = 0.5,
        eps: float = 1e-3,
        *,
        head: Any = None,
        head_training: str = "refit",
    ) -> None:
        self.beta = beta
        self.eps = eps
        self.head = head
        self.head_training = head_training

    def _fit_moments(self, moments: Moments, head: LinearHead | None) -> dict[str, Any]:
        scale = isobn_scale(moments.covariance(ddof=0), self.beta, self.eps).numpy()
        return {"map_": Affine(np.diag(scale), np.zeros(len(scale))), "scale_": scale}


def isobn_scale(cov: Tensor, beta: float, eps: float) -> Tensor:
    """Compute the scale of each dimension.

    Parameters
    ----------
    cov : Tensor of shape (d, d)
        Covariance, with 1/n.
    beta : float
        How strongly to scale.
    eps : float
        Added to γσ, and to the total variance after scaling.

    Returns
    -------
    Tensor of shape (d,)
        Scales, positive unless there is no variance at all.
    """
    variance = cov.diagonal()
    std = variance.sqrt()
    divisor = std.where(std != 0, torch.ones_like(std))  # constant dimensions correlate with none
    correlation = (cov / divisor / divisor[:, None]).clamp(-1, 1)
    gamma = (correlation**2).mean(1)
    scale = (gamma * std + eps) ** -beta
    return scale * torch.sqrt(variance.sum() / ((variance * scale**2).sum() + eps))
