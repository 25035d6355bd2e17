"""Whitening with shrinkage and a choice of the number of components."""

from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import Any, ClassVar

from isoadapt._utils.sklearn_private import Interval, StrOptions
from isoadapt.adapters._closed_form import MomentsAdapter, RefittedHead
from isoadapt.adapters._linalg import (
    descending_eigh,
    estimate_shrinkage,
    inverse_root,
    ledoit_wolf_shrinkage,
    shrink,
)
from isoadapt.adapters._maps import Affine
from isoadapt.geometry import Moments
from isoadapt.geometry._spread import dead_dimensions
from isoadapt.heads import LinearHead


@dataclass(eq=False, repr=False)
class Whitening(RefittedHead, MomentsAdapter):
    """Whiten embeddings, fully or in part.

    The map is h -> Σ^(-p/2) (h - μ) with the mean μ and the shrunk covariance
    Σ = (1 - s) S + s tr(S)/d I. Without shrinkage and with p = 1, all directions that have a
    variance get unit variance and are uncorrelated. Columns without variance are mapped to zero,
    and so are, without shrinkage, all directions without variance. Otherwise, new rows that deviate
    in these directions would be scaled up without bound.

    Parameters
    ----------
    method : {"zca", "pca"}, default="zca"
        "zca" stays as close as possible to the original embeddings. "pca" returns the principal
        components in order of decreasing variance; among directions of equal variance, they are
        arbitrary.
    <head>
    shrinkage : float or {"auto", "oas", "ledoit-wolf"}, default="auto"
        Shrinkage s in [0, 1]. 0 whitens the rows that the adapter is fitted to exactly, and new
        rows badly unless there are many times as many rows as features. "auto" chooses s so that
        new rows are expected to have the highest IsoScore, but at least a fiftieth of the s of
        "oas". If many directions vary in few rows only, "oas" can be better, see
        :doc:`/guide/choosing`. "oas" (Chen et al., 2010) and "ledoit-wolf" (Ledoit and Wolf, 2004)
        estimate the s whose covariance has the smallest error. "auto" and "oas" (best for Gaussian
        rows) use the eigenvalues of S only; "ledoit-wolf" uses the fourth moment of the rows too.
    strength : float, default=1.0
        Strength p in [0, 1]. 1 whitens, 0 only centres.
    n_components : int, default=None
        Number of leading directions to keep. With "pca" they are the columns of the output; with
        "zca" the output has n_features columns of this rank. None keeps all directions.

    Attributes
    ----------
    shrinkage_ : float
        The shrinkage s used.
    <moments>

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
    >>> adapter, other = Whitening().fit(X[:250]), X[250:]
    >>> round(isoscore(other), 3), round(isoscore(adapter.transform(other)), 3)
    (0.001, 0.921)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "method": [StrOptions({"zca", "pca"})],
        "shrinkage": [
            Interval(Real, 0, 1, closed="both"),
            StrOptions({"auto", "oas", "ledoit-wolf"}),
        ],
        "strength": [Interval(Real, 0, 1, closed="both")],
        "n_components": [Interval(Integral, 1, None, closed="left"), None],
    }

    method: str = "zca"
    _: KW_ONLY
    shrinkage: float | str = "auto"
    strength: float = 1.0
    n_components: int | None = None

    def _fit_moments(self, moments: Moments, head: LinearHead | None) -> dict[str, Any]:
        shrinkage = self.shrinkage
        if shrinkage == "ledoit-wolf":
            shrinkage = ledoit_wolf_shrinkage(moments)
        mean, cov = moments.mean.numpy(), moments.covariance().numpy()
        k = len(mean) if self.n_components is None else self.n_components
        if k > len(mean):
            raise ValueError(
                f"n_components={k} is more than n_features={len(mean)}: choose "
                f"1 to {len(mean)}, or None for all"
            )
        if head is not None and self.method == "pca" and not self._refits_head():
            head._check_width(k)
        eigenvalues, vectors = descending_eigh(cov)
        used = estimate_shrinkage(shrinkage, eigenvalues, moments.count - 1)
        shrunk = shrink(eigenvalues, used)[:k]
        matrix = inverse_root(shrunk, self.strength)[:, None] * vectors[:, :k].T
        matrix[:, dead_dimensions(cov.diagonal())] = 0  # shrinkage would scale them up
        if self.method == "zca":
            matrix = vectors[:, :k] @ matrix
        return {"map_": Affine(matrix, -matrix @ mean), "shrinkage_": used}
