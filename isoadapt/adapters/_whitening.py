"""Whitening, with shrinkage and a choice of components."""

from numbers import Integral, Real
from typing import Any, ClassVar, cast

from numpy.typing import NDArray
from sklearn.utils._param_validation import Interval, StrOptions

from isoadapt.adapters._closed_form import REFITTED, MomentsAdapter
from isoadapt.adapters._linalg import (
    descending_eigh,
    inverse_root,
    ledoit_wolf_shrinkage,
    oas_shrinkage,
    shrink,
)
from isoadapt.adapters._maps import Affine
from isoadapt.geometry import Moments, dead_dimensions
from isoadapt.heads import LinearHead


class Whitening(MomentsAdapter):
    """Make the covariance of embeddings a multiple of the identity, or nearly so.

    The map is h -> Σ^(-p/2) (h - μ) with the shrunk covariance Σ = (1 - s) S + s tr(S)/d I.
    Columns without variance are cut, and without shrinkage all directions without variance, so
    that unseen rows cannot explode.

    Parameters
    ----------
    method : {"zca", "pca"}, default="zca"
        "zca" stays as close as possible to the embeddings; "pca" gives the principal
        components, largest first, arbitrary among directions of equal variance.
    head : LinearHead, linear estimator, {"logistic", "ridge"} or None, default=None
        The head that predicts on the adapted embeddings, as in :class:`IsotropyLayer`; None
        makes a transformer only. "refit" fits the estimator or the named probe to the adapted
        embeddings, and in place of a frozen head a probe of its kind.
    head_training : {"refit", "frozen"}, default="refit"
        "refit" fits the head to the adapted embeddings (it needs y); "frozen" keeps it, though
        it was made for other coordinates.
    shrinkage : float or {"oas", "ledoit-wolf"}, default=0.0
        The s in [0, 1]; more than 0 where rows are not many times the features. A name
        estimates it: "oas" (Chen et al., 2010; best for Gaussian rows) from the covariance,
        "ledoit-wolf" (Ledoit and Wolf, 2004) from all rows at once, never chunk by chunk.
    strength : float, default=1.0
        The p in [0, 1]; 1 whitens, 0 only centres.
    n_components : int, default=None
        Keep that many leading directions: as columns with "pca", within the n_features
        columns with "zca". None keeps all.

    Attributes
    ----------
    map_ : Affine
        The fitted map.
    head_ : LinearHead or None
        The head.
    moments_ : Moments
        Of all rows seen.
    shrinkage_ : float
        The s used.

    References
    ----------
    O. Ledoit and M. Wolf (2004), "A well-conditioned estimator for large-dimensional covariance
    matrices". Y. Chen, A. Wiesel, Y. C. Eldar and A. O. Hero (2010), "Shrinkage algorithms for
    MMSE covariance estimation". S. Yokoi, H. Bao, H. Kurita and H. Shimodaira (2024), "Zipfian
    whitening".

    Examples
    --------
    >>> import numpy as np
    >>> from isoadapt import Whitening
    >>> from isoadapt.metrics import isoscore
    >>> X = np.random.default_rng(0).normal(size=(500, 8)) * [50, 1, 1, 1, 1, 1, 1, 1] + 3
    >>> round(isoscore(X), 3), round(isoscore(Whitening().fit_transform(X)), 3)
    (0.001, 1.0)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **REFITTED,
        "method": [StrOptions({"zca", "pca"})],
        "shrinkage": [Interval(Real, 0, 1, closed="both"), StrOptions({"oas", "ledoit-wolf"})],
        "strength": [Interval(Real, 0, 1, closed="both")],
        "n_components": [Interval(Integral, 1, None, closed="left"), None],
    }

    def __init__(
        self,
        method: str = "zca",
        *,
        head: Any = None,
        head_training: str = "refit",
        shrinkage: float | str = 0.0,
        strength: float = 1.0,
        n_components: int | None = None,
    ) -> None:
        self.method = method
        self.head = head
        self.head_training = head_training
        self.shrinkage = shrinkage
        self.strength = strength
        self.n_components = n_components

    def _fit_rows(
        self, X: NDArray[Any], weights: NDArray[Any] | None, head: LinearHead | None
    ) -> dict[str, Any]:
        if self.shrinkage != "ledoit-wolf":
            return super()._fit_rows(X, weights, head)
        moments = Moments().update(X, weights)
        shrinkage = ledoit_wolf_shrinkage(X, weights, moments)
        return {"moments_": moments, **self._whiten(moments, head, shrinkage)}

    def _fit_moments(self, moments: Moments, head: LinearHead | None) -> dict[str, Any]:
        given = self.shrinkage
        shrinkage = oas_shrinkage(moments) if given == "oas" else cast(float, given)
        return self._whiten(moments, head, shrinkage)

    def _whiten(
        self, moments: Moments, head: LinearHead | None, shrinkage: float
    ) -> dict[str, Any]:
        mean, cov = moments.mean.numpy(), moments.covariance().numpy()
        k = len(mean) if self.n_components is None else self.n_components
        if k > len(mean):
            raise ValueError(
                f"n_components={k} is more than n_features={len(mean)}: choose "
                f"1 to {len(mean)}, or None for all"
            )
        if head is not None and self.method == "pca" and not self._refits_head():
            head.check_width(k)
        eigenvalues, vectors = descending_eigh(cov)
        shrunk = shrink(eigenvalues, shrinkage)[:k]
        matrix = inverse_root(shrunk, self.strength)[:, None] * vectors[:, :k].T
        matrix[:, dead_dimensions(cov.diagonal())] = 0  # shrinkage would stretch them
        if self.method == "zca":
            matrix = vectors[:, :k] @ matrix
        return {"map_": Affine(matrix, -matrix @ mean), "shrinkage_": float(shrinkage)}

    def _why_no_partial_fit(self) -> str | None:
        if self.shrinkage == "ledoit-wolf":
            return (
                "shrinkage='ledoit-wolf' is estimated from all rows at once; chunk by chunk it "
                "takes shrinkage='oas' or a number"
            )
        return super()._why_no_partial_fit()
