"""All-but-the-top: removal of the mean and of the directions of largest variance."""

from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar

import numpy as np

from isoadapt._utils.sklearn_private import Interval
from isoadapt.adapters._closed_form import MomentsAdapter, RefittedHead
from isoadapt.adapters._linalg import leading_components
from isoadapt.adapters._maps import Affine
from isoadapt.geometry import Moments
from isoadapt.heads import LinearHead


@dataclass(eq=False, repr=False)
class AllButTheTop(RefittedHead, MomentsAdapter):
    """Subtract the mean and remove the leading principal components.

    The map is h -> (I - VᵀV)(h - μ), where the rows of V are the directions of largest variance.
    The map is singular, so ``inverse_transform`` returns the preimages of smallest norm. The
    leading components of a fine-tuned encoder often separate the classes: check the score before
    removing them.

    Parameters
    ----------
    n_components : int, default=None
        Number of directions to remove, less than n_features. None is n_features // 100, at least
        1. Directions without variance are not removed.
    <head>

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        The directions V removed: orthonormal rows in order of decreasing variance. Rows beyond the
        rank of the embeddings are zero.
    <moments>

    References
    ----------
    J. Mu, S. Bhat and P. Viswanath (2017), "All-but-the-top: simple and effective postprocessing
    for word representations".

    Examples
    --------
    >>> import numpy as np
    >>> from isoadapt import AllButTheTop
    >>> from isoadapt.metrics import isoscore
    >>> X = np.random.default_rng(0).normal(size=(500, 8)) * [50, 1, 1, 1, 1, 1, 1, 1] + 3
    >>> adapter, other = AllButTheTop().fit(X[:250]), X[250:]
    >>> round(isoscore(other), 3), round(isoscore(adapter.transform(other)), 3)
    (0.001, 0.82)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_components": [Interval(Integral, 1, None, closed="left"), None],
    }

    _poor_score: ClassVar[bool] = True

    n_components: int | None = None

    def _fit_moments(self, moments: Moments, head: LinearHead | None) -> dict[str, Any]:
        mean, cov = moments.mean.numpy(), moments.covariance(ddof=0).numpy()
        n_removed = resolve_n_components(self.n_components, len(mean))
        components = leading_components(cov, n_removed, cov.trace())
        matrix = np.eye(len(mean)) - components.T @ components
        return {"map_": Affine(matrix, -matrix @ mean), "components_": components}


def resolve_n_components(n_components: int | None, n_features: int) -> int:
    """Return the number of directions to remove, from 1 to n_features - 1."""
    if n_components is None:
        return max(1, n_features // 100)
    if n_components >= n_features:
        raise ValueError(
            f"n_components={n_components} must be less than n_features={n_features}: choose 1 to "
            f"{n_features - 1}, or None for {max(1, n_features // 100)}"
        )
    return n_components
