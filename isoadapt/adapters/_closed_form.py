"""Adapters with a closed form: whitening, and whitening that no head can notice."""

from numbers import Integral, Real
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions

from isoadapt.adapters._base import PROBES
from isoadapt.adapters._linalg import (
    descending_eigh,
    inverse_root,
    ledoit_wolf_shrinkage,
    oas_shrinkage,
    shrink,
)
from isoadapt.adapters._maps import Affine, Floats
from isoadapt.adapters._one_pass import REFITTED, MomentsAdapter
from isoadapt.geometry import DEAD, Moments, dead_dimensions
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


class LogitPreservingWhitening(MomentsAdapter):
    """Whiten all that a linear head cannot see, and leave what it sees.

    A head of rank r reads r directions; the other d - r are free. With R a basis of the head's
    row space and N of its complement, the map keeps Rᵀh, takes from Nᵀh what Rᵀh predicts of
    it, whitens the rest and scales it to the variance that makes IsoScore largest. The logits
    of *every* row stay, so no prediction can change.

    Parameters
    ----------
    head : LinearHead, linear estimator or {"logistic", "ridge"}, default="logistic"
        The head to preserve, as in :class:`IsotropyLayer`; an unfitted estimator and a named
        probe are fitted to the embeddings first, which needs y.
    shrinkage : float or "oas", default="oas"
        In [0, 1], of the residual's covariance to a multiple of the identity. "oas" estimates it
        from the covariance of the embeddings, as in :class:`Whitening`.
    strength : float, default=1.0
        The p in [0, 1] of the whitening Σ^(-p/2).
    preserve : {"logits", "differences"}, default="logits"
        "differences" keeps only the differences of logits: same probabilities, one more free
        direction. For classifiers.

    Attributes
    ----------
    map_ : Affine
        The fitted map.
    head_ : LinearHead
        The head.
    moments_ : Moments
        Of all rows seen.
    shrinkage_ : float
        The shrinkage used.

    References
    ----------
    Y. Chen, A. Wiesel, Y. C. Eldar and A. O. Hero (2010), "Shrinkage algorithms for MMSE
    covariance estimation".

    Examples
    --------
    >>> import numpy as np
    >>> from isoadapt import LinearHead, LogitPreservingWhitening
    >>> X = np.random.default_rng(0).normal(size=(500, 8)) * [50, 1, 1, 1, 1, 1, 1, 1]
    >>> head = LinearHead(np.eye(2, 8), [0.0, 0.0], classes=[0, 1])
    >>> adapter = LogitPreservingWhitening(head=head).fit(X)
    >>> bool(np.abs(head.outputs(adapter.transform(X)) - head.outputs(X)).max() < 1e-9)
    True
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "head": [StrOptions(set(PROBES)), HasMethods(["fit", "predict"])],
        "shrinkage": [Interval(Real, 0, 1, closed="both"), StrOptions({"oas"})],
        "strength": [Interval(Real, 0, 1, closed="both")],
        "preserve": [StrOptions({"logits", "differences"})],
    }

    def __init__(
        self,
        head: Any = "logistic",
        *,
        shrinkage: float | str = "oas",
        strength: float = 1.0,
        preserve: str = "logits",
    ) -> None:
        self.head = head
        self.shrinkage = shrinkage
        self.strength = strength
        self.preserve = preserve

    def _fit_moments(self, moments: Moments, head: LinearHead | None) -> dict[str, Any]:
        seen, unseen = row_space(self._head_coef(cast(LinearHead, head)))
        keep = Affine(seen.T, np.zeros(seen.shape[1]))
        given = self.shrinkage
        shrinkage = oas_shrinkage(moments) if given == "oas" else cast(float, given)
        map_ = whiten_unseen(moments, keep, seen, unseen, shrinkage, self.strength)
        return {"map_": map_, "shrinkage_": float(shrinkage)}

    def _head_coef(self, head: LinearHead) -> Floats:
        if self.preserve == "logits":
            return head.coef_
        if head.classes_ is None:
            raise ValueError(
                "preserve='differences' needs a classifier, but the head is a regressor: use "
                "preserve='logits'"
            )
        return head.coef_ - head.coef_.mean(axis=0)


def row_space(coef: Floats) -> tuple[Floats, Floats]:
    """Split the embedding space by what a head sees.

    Parameters
    ----------
    coef : ndarray of shape (n_outputs, n_features)
        W.

    Returns
    -------
    seen : ndarray of shape (n_features, rank)
        Orthonormal basis R of the row space.
    unseen : ndarray of shape (n_features, n_features - rank)
        Orthonormal basis N of its complement: WN = 0.
    """
    norms = np.linalg.norm(coef, axis=1, keepdims=True)  # rows of any scale count alike
    _, values, rows = np.linalg.svd(coef / np.where(norms > 0, norms, 1.0))
    tolerance = values.max() * max(coef.shape) * np.finfo(np.float64).eps
    rank = int((values > tolerance).sum())
    return rows[:rank].T, rows[rank:].T


def whiten_unseen(
    moments: Moments,
    seen_map: Affine,
    seen: Floats,
    unseen: Floats,
    shrinkage: float,
    strength: float = 1.0,
) -> Affine:
    """Complete a map of the seen coordinates by the most isotropic one of the unseen.

    Parameters
    ----------
    moments : Moments
        Of the embeddings.
    seen_map : Affine
        From embeddings to the r seen coordinates of the output.
    seen, unseen : ndarray of shape (n_features, r) and (n_features, n_features - r)
        Orthonormal bases of the output space.
    shrinkage, strength : float
        Of the whitening of what the seen coordinates do not predict.

    Returns
    -------
    Affine
        With seen coordinates ``seen_map(h)`` and the unseen ones uncorrelated with them, around
        their old mean, with the variance that maximises IsoScore.
    """
    mean, cov = moments.mean.numpy(), moments.covariance().numpy()
    crossed = seen_map.matrix @ cov
    seen_cov = crossed @ seen_map.matrix.T
    regression = np.linalg.pinv(seen_cov, hermitian=True) @ (crossed @ unseen)
    residual = unseen.T - regression.T @ seen_map.matrix
    residual[:, dead_dimensions(cov.diagonal())] = 0  # shrinkage would stretch them
    eigenvalues, vectors = descending_eigh(residual @ cov @ residual.T)
    eigenvalues = np.where(eigenvalues > DEAD * cov.trace(), eigenvalues, 0.0)
    if not len(eigenvalues):
        return Affine(seen @ seen_map.matrix, seen @ seen_map.offset)
    scales = inverse_root(shrink(eigenvalues, shrinkage), strength)
    scales *= np.sqrt(_best_variance(seen_cov, eigenvalues * scales**2))
    spread = (unseen @ (vectors * scales)) @ (vectors.T @ residual)
    matrix = seen @ seen_map.matrix + spread
    return Affine(matrix, seen @ seen_map.offset + unseen @ (unseen.T @ mean) - spread @ mean)


def _best_variance(seen_cov: Floats, variances: Floats) -> float:
    """Factor on the unseen variances that makes the participation ratio largest."""
    if not seen_cov.trace() > 0 or not variances.any():
        return 1.0
    trace, total = seen_cov.trace(), variances.sum()  # squares of the shares do not overflow
    balance = ((seen_cov / trace) ** 2).sum() / ((variances / total) ** 2).sum()
    return float(balance * (trace / total))
