"""All-but-the-top: without the mean and the directions of largest variance."""

from numbers import Integral
from typing import Any, ClassVar

import numpy as np
from sklearn.utils import Tags
from sklearn.utils._param_validation import Interval

from isoadapt.adapters._closed_form import REFITTED, MomentsAdapter
from isoadapt.adapters._linalg import leading_components
from isoadapt.adapters._maps import Affine
from isoadapt.geometry import Moments
from isoadapt.heads import LinearHead


class AllButTheTop(MomentsAdapter):
    """Subtract the mean and remove the leading principal components.

    The map is h -> (I - VᵀV)(h - μ), V the directions of largest variance. It is singular, so
    ``inverse_transform`` gives the shortest preimages. The leading components of a fine-tuned
    encoder often are those that tell the classes apart: look at the score before removing them.

    Parameters
    ----------
    n_components : int, default=None
        How many directions to remove, fewer than n_features; None is n_features // 100, at
        least 1. Directions without variance are not removed.
    head : LinearHead, linear estimator, {"logistic", "ridge"} or None, default=None
        The head that predicts on the adapted embeddings, as in :class:`IsotropyLayer`; None
        makes a transformer only. "refit" fits the estimator or the named probe to the adapted
        embeddings, and in place of a frozen head a probe of its kind.
    head_training : {"refit", "frozen"}, default="refit"
        "refit" fits the head to the adapted embeddings (it needs y); "frozen" keeps it, though
        it was made for other embeddings.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        The V: orthonormal rows, largest variance first; rows of zeros beyond the rank of the
        data.
    map_ : Affine
        The fitted map.
    head_ : LinearHead or None
        The head.
    moments_ : Moments
        Of all rows seen.

    References
    ----------
    J. Mu and P. Viswanath (2018), "All-but-the-top: Simple and effective postprocessing for word
    representations".

    Examples
    --------
    >>> import numpy as np
    >>> from isoadapt import AllButTheTop
    >>> from isoadapt.metrics import isoscore
    >>> X = np.random.default_rng(0).normal(size=(500, 8)) * [50, 1, 1, 1, 1, 1, 1, 1] + 3
    >>> round(isoscore(X), 3), round(isoscore(AllButTheTop().fit_transform(X)), 3)
    (0.001, 0.839)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **REFITTED,
        "n_components": [Interval(Integral, 1, None, closed="left"), None],
    }

    def __init__(
        self,
        n_components: int | None = None,
        *,
        head: Any = None,
        head_training: str = "refit",
    ) -> None:
        self.n_components = n_components
        self.head = head
        self.head_training = head_training

    def _fit_moments(self, moments: Moments, head: LinearHead | None) -> dict[str, Any]:
        mean, cov = moments.mean.numpy(), moments.covariance(ddof=0).numpy()
        n_removed = count_removed(self.n_components, len(mean))
        components = leading_components(cov, n_removed, scale=cov.trace())
        matrix = np.eye(len(mean)) - components.T @ components
        return {"map_": Affine(matrix, -matrix @ mean), "components_": components}

    def __sklearn_tags__(self) -> Tags:
        return expect_poor_score(super().__sklearn_tags__())


def expect_poor_score(tags: Tags) -> Tags:
    """Say that a head may score low, since what tells the classes apart may be removed.

    Parameters
    ----------
    tags : Tags
        Of the adapter; changed in place.

    Returns
    -------
    Tags
        The same.
    """
    for of_kind in (tags.classifier_tags, tags.regressor_tags):
        if of_kind is not None:
            of_kind.poor_score = True
    return tags


def count_removed(n_components: int | None, n_features: int) -> int:
    """Tell how many directions to remove.

    Parameters
    ----------
    n_components : int or None
        As given; None is n_features // 100, at least 1.
    n_features : int
        Width of the embeddings.

    Returns
    -------
    int
        Between 1 and n_features - 1.

    Raises
    ------
    ValueError
        If nothing would be left.
    """
    if n_components is None:
        return max(1, n_features // 100)
    if n_components >= n_features:
        raise ValueError(
            f"n_components={n_components} leaves nothing of n_features={n_features}: choose 1 to "
            f"{n_features - 1}, or None for {max(1, n_features // 100)}"
        )
    return n_components
