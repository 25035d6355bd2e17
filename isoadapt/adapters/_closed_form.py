"""Adapters with a closed form: whitening, and whitening that no head can notice."""

from abc import abstractmethod
from numbers import Integral, Real
from typing import Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import _fit_context
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import _check_sample_weight

from isoadapt.adapters._base import PROBES, BaseAdapter, check_spread
from isoadapt.adapters._linalg import descending_eigh, inverse_root, shrink
from isoadapt.adapters._maps import Affine, Floats, map_rows
from isoadapt.geometry import Moments
from isoadapt.heads import LinearHead, fit_head


def _head_is_given(adapter: "MomentsAdapter") -> bool:
    if adapter._needs_y():
        raise AttributeError(
            f"with head={adapter.head!r} a head is fitted, which takes all rows at once: "
            "partial_fit needs a frozen LinearHead or head=None"
        )
    return True


class MomentsAdapter(BaseAdapter):
    """Base class of adapters that need nothing of the data but its first two moments.

    Attributes
    ----------
    moments_ : Moments
        Of all rows seen, from which ``partial_fit`` goes on.
    """

    moments_: Moments

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self, X: ArrayLike, y: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Fit to embeddings.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Embeddings.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs), default=None
            Labels or values; needed only where a head is fitted.
        sample_weight : array-like of shape (n_samples,), default=None
            Frequency weights: weight 2 counts a row twice. Word frequencies make whitening
            Zipfian.

        Returns
        -------
        Self
            The fitted adapter.

        Raises
        ------
        ValueError
            If X is constant, has a constant column or is not finite.
        """
        rows, targets = self._check_fit_input(X, y)
        weights = _check_frequencies(sample_weight, rows)
        check_spread(rows if weights is None else rows[weights > 0])
        refit = self._refits_head()
        probed = isinstance(self.head, str) and refit
        head = None if probed else self._resolve_head(rows, targets, weights)
        moments = Moments().update(rows, weights)
        map_ = self._fit_map(moments, head)
        if refit:
            probe = "logistic" if self._head_kind() == "classifier" else "ridge"
            head = fit_head(probe, map_rows(map_, rows), cast(NDArray[Any], targets), weights)
        self.moments_ = moments
        return self._set_fitted(map_, head)

    @available_if(_head_is_given)
    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(
        self, X: ArrayLike, y: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Take in more rows; the result is that of one ``fit`` on all rows so far.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Embeddings.
        y : array-like of shape (n_samples,), default=None
            Ignored.
        sample_weight : array-like of shape (n_samples,), default=None
            Frequency weights.

        Returns
        -------
        Self
            The adapter, fitted to all rows so far.
        """
        first = not hasattr(self, "moments_")
        rows, _ = self._check_fit_input(X, None, reset=first, min_samples=2 if first else 1)
        weights = _check_frequencies(sample_weight, rows)
        head = self._resolve_head(rows, None)
        moments = Moments().update(rows, weights)
        if not first:
            moments.merge(self.moments_)
        map_ = self._fit_map(moments, head)
        self.moments_ = moments
        return self._set_fitted(map_, head)

    @abstractmethod
    def _fit_map(self, moments: Moments, head: LinearHead | None) -> Affine:
        """Compute the map from the moments."""

    def _refits_head(self) -> bool:
        return self.head is not None and getattr(self, "head_training", "frozen") == "refit"

    def _needs_y(self) -> bool:
        return isinstance(self.head, str) or self._refits_head()


class Whitening(MomentsAdapter):
    """Make the covariance of embeddings a multiple of the identity, or nearly so.

    The map is h -> Σ^(-p/2) (h - μ) with the shrunk covariance Σ = (1 - s) S + s tr(S)/d I.
    Directions without variance are cut, so that unseen rows cannot explode.

    Parameters
    ----------
    method : {"zca", "pca"}, default="zca"
        "zca" stays as close as possible to the embeddings; "pca" gives the principal
        components, largest first.
    head : LinearHead, fitted linear estimator, {"logistic", "ridge"} or None, default=None
        What predicts on the adapted embeddings; None makes a transformer only.
    head_training : {"refit", "frozen"}, default="refit"
        "refit" fits the head to the adapted embeddings (it needs y); "frozen" keeps it, though
        it was made for other coordinates.
    shrinkage : float, default=0.0
        The s in [0, 1]; more than 0 where rows are not many times the features.
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
        **BaseAdapter._parameter_constraints,
        "method": [StrOptions({"zca", "pca"})],
        "head_training": [StrOptions({"refit", "frozen"})],
        "shrinkage": [Interval(Real, 0, 1, closed="both")],
        "strength": [Interval(Real, 0, 1, closed="both")],
        "n_components": [Interval(Integral, 1, None, closed="left"), None],
    }

    def __init__(
        self,
        method: str = "zca",
        *,
        head: Any = None,
        head_training: str = "refit",
        shrinkage: float = 0.0,
        strength: float = 1.0,
        n_components: int | None = None,
    ) -> None:
        self.method = method
        self.head = head
        self.head_training = head_training
        self.shrinkage = shrinkage
        self.strength = strength
        self.n_components = n_components

    def _fit_map(self, moments: Moments, head: LinearHead | None) -> Affine:
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
        shrunk = shrink(eigenvalues, self.shrinkage)[:k]
        matrix = inverse_root(shrunk, self.strength)[:, None] * vectors[:, :k].T
        if self.method == "zca":
            matrix = vectors[:, :k] @ matrix
        return Affine(matrix, -matrix @ mean)


class LogitPreservingWhitening(MomentsAdapter):
    """Whiten all that a linear head cannot see, and leave what it sees.

    A head of rank r reads r directions; the other d - r are free. With R a basis of the head's
    row space and N of its complement, the map keeps Rᵀh, takes from Nᵀh what Rᵀh predicts of
    it, whitens the rest and scales it to the variance that makes IsoScore largest. The logits
    of *every* row stay, so no prediction can change.

    Parameters
    ----------
    head : LinearHead, fitted linear estimator or {"logistic", "ridge"}, default="logistic"
        The head to preserve; a name fits it to the embeddings first (needs y).
    shrinkage : float, default=1e-3
        In [0, 1], of the residual's covariance to a multiple of the identity.
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
        "head": [StrOptions(set(PROBES)), HasMethods(["predict"])],
        "shrinkage": [Interval(Real, 0, 1, closed="both")],
        "strength": [Interval(Real, 0, 1, closed="both")],
        "preserve": [StrOptions({"logits", "differences"})],
    }

    def __init__(
        self,
        head: Any = "logistic",
        *,
        shrinkage: float = 1e-3,
        strength: float = 1.0,
        preserve: str = "logits",
    ) -> None:
        self.head = head
        self.shrinkage = shrinkage
        self.strength = strength
        self.preserve = preserve

    def _fit_map(self, moments: Moments, head: LinearHead | None) -> Affine:
        seen, unseen = row_space(self._head_coef(cast(LinearHead, head)))
        keep = Affine(seen.T, np.zeros(seen.shape[1]))
        return whiten_unseen(moments, keep, seen, unseen, self.shrinkage, self.strength)

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
    shrinkage: float = 1e-3,
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
    eigenvalues, vectors = descending_eigh(residual @ cov @ residual.T)
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
    balance = (seen_cov**2).sum() / seen_cov.trace()
    return float(balance * variances.sum() / (variances**2).sum())


def _check_frequencies(sample_weight: ArrayLike | None, X: NDArray[Any]) -> NDArray[Any] | None:
    if sample_weight is None:
        return None
    weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    if weights.sum() <= 1:
        raise ValueError(
            f"sample_weight sums to {weights.sum():g}, but it counts rows and must sum to more "
            "than 1: pass counts instead of shares (multiply by the number of tokens)"
        )
    return weights
