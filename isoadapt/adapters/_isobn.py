"""IsoBN as a post-processing step, and its scale for each dimension."""

from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from isoadapt._utils.sklearn_private import Interval
from isoadapt.adapters._closed_form import MomentsAdapter, RefittedHead
from isoadapt.adapters._maps import Affine
from isoadapt.geometry import Moments
from isoadapt.geometry._spread import dead_dimensions
from isoadapt.heads import LinearHead


@dataclass(eq=False, repr=False)
class IsoBN(RefittedHead, MomentsAdapter):
    """Scale down dimensions that have a large variance or are correlated with many others.

    The map is the elementwise product h -> s·h, without centring. Let σ be the standard deviations
    and ρ the correlations of the dimensions, and γ_i = mean_j ρ_ij². Then s_i is proportional to
    (γ_i σ_i + ε)^(-β), with the factor that keeps the total variance. Except for the influence of
    ε, X and c·X have the same map, for any β.

    Parameters
    ----------
    beta : float, default=0.5
        Exponent β in [0, 1]. 0 leaves the embeddings unchanged. 1 gives every dimension a standard
        deviation proportional to 1/γ_i.
    eps : float, default=1e-3
        The ε > 0 that is added to γ_i σ_i, and to the total variance after scaling. The
        correlations of a constant dimension are taken as 0, so that its scale is finite.
    <head>

    Attributes
    ----------
    scale_ : ndarray of shape (n_features,)
        The scale s of each dimension.
    <moments>

    Notes
    -----
    The scaling has an effect on the predictions of a refitted head only through the penalty of the
    head, which shrinks weights of dimensions of small variance more.

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
    >>> adapter, other = IsoBN(beta=1.0).fit(X[:250]), X[250:]
    >>> round(isoscore(other), 3), round(isoscore(adapter.transform(other)), 3)
    (0.001, 0.952)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "beta": [Interval(Real, 0, 1, closed="both")],
        "eps": [Interval(Real, 0, None, closed="neither")],
    }

    beta: float = 0.5
    eps: float = 1e-3

    def _fit_moments(self, moments: Moments, head: LinearHead | None) -> dict[str, Any]:
        scale = isobn_scale(moments.covariance(ddof=0), self.beta, self.eps).numpy()
        return {"map_": Affine(np.diag(scale), np.zeros(len(scale))), "scale_": scale}


def isobn_scale(cov: Tensor, beta: float, eps: float) -> Tensor:
    """Compute the scales (d,) from the covariance (d, d) with 1/n."""
    variance = cov.diagonal()
    std = variance.sqrt()
    divisor = std.where(~dead_dimensions(variance), torch.inf)  # those have no correlations
    correlation = (cov / divisor / divisor[:, None]).clamp(-1, 1)
    gamma = (correlation**2).mean(1)
    scale = (gamma * std + eps) ** -beta
    return scale * torch.sqrt(variance.sum() / ((variance * scale**2).sum() + eps))
