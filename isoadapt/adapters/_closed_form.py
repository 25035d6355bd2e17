"""Base classes of adapters with a closed form: a fit without epochs, in one pass over the rows."""

from abc import abstractmethod
from typing import Any, Self, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import _fit_context
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import _check_sample_weight

from isoadapt.adapters._base import BaseAdapter, whole_or_nothing
from isoadapt.adapters._maps import map_rows
from isoadapt.adapters._spread import check_spread
from isoadapt.geometry import Moments
from isoadapt.heads import LinearHead, needs_fit
from isoadapt.metrics import (
    Chunked,
    describe,
    gather,
    in_chunks,
    is_dask,
    is_memmap,
    refuse_chunks,
)

REFITTED: dict[str, list[Any]] = {
    **BaseAdapter._parameter_constraints,
    "head_training": [StrOptions({"refit", "frozen"})],
}


class OnePassAdapter(BaseAdapter):
    """Base class of adapters that are computed outright, without a training loop.

    A subclass computes its fitted attributes, ``map_`` among them, in ``_fit_rows``.
    """

    @_fit_context(prefer_skip_nested_validation=True)
    @whole_or_nothing
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
            If X is not finite or all its rows are equal.
        """
        rows, targets = self._check_fit_input(X, y)
        weights = check_frequencies(sample_weight, rows)
        check_spread(rows if weights is None else rows[weights > 0])
        refit = self._refits_head()
        fitted_later = refit and needs_fit(self.head)
        head = None if fitted_later else self._resolve_head(rows, targets, weights)
        fitted = self._fit_rows(rows, weights, head)
        if refit:
            head = self._fit_head(map_rows(fitted["map_"], rows), targets, weights)
        return self._adopt(fitted, head)

    @abstractmethod
    def _fit_rows(
        self, X: NDArray[Any], weights: NDArray[Any] | None, head: LinearHead | None
    ) -> dict[str, Any]:
        """Compute the fitted attributes by name, ``map_`` among them, and set none."""

    def _adopt(self, fitted: dict[str, Any], head: LinearHead | None) -> Self:
        self.__dict__.update(fitted)
        return self._set_fitted(fitted["map_"], head)

    def _refits_head(self) -> bool:
        return self.head is not None and getattr(self, "head_training", "frozen") == "refit"

    def _needs_y(self) -> bool:
        return needs_fit(self.head) or self._refits_head()


def _streams(adapter: "MomentsAdapter") -> bool:
    reason = adapter._why_no_partial_fit()
    if reason is not None:
        raise AttributeError(reason)
    return True


class MomentsAdapter(OnePassAdapter):
    """Base class of adapters that need nothing of the data but its first two moments.

    A subclass computes its fitted attributes in ``_fit_moments``.

    Attributes
    ----------
    moments_ : Moments
        Of all rows seen, from which ``partial_fit`` goes on.
    """

    moments_: Moments

    @_fit_context(prefer_skip_nested_validation=True)
    @whole_or_nothing
    def fit(
        self, X: Chunked, y: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Fit to embeddings, in memory or chunk by chunk.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or chunks of it
            Embeddings: as one matrix; as an iterable of matrices, a memory map or a dask array,
            read once and never held as a whole; or only their
            :class:`~isoadapt.geometry.Moments`, of which one pass serves many adapters.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs), default=None
            Labels or values; needed only where a head is fitted, which takes one matrix.
        sample_weight : array-like of shape (n_samples,), default=None
            Frequency weights: weight 2 counts a row twice. Word frequencies make whitening
            Zipfian. They go with one matrix; ``partial_fit`` takes those of a chunk.

        Returns
        -------
        Self
            The fitted adapter.

        Raises
        ------
        TypeError
            If X comes in chunks, but all rows are needed at once.
        ValueError
            If X is not finite or all its rows are equal; if chunks differ in width or an
            iterator is used up.
        """
        reason = self._why_no_partial_fit()
        if not in_chunks(X) and (reason or sample_weight is not None or not is_memmap(X)):
            return super().fit(cast(ArrayLike, X), y, sample_weight)
        if reason is not None:
            refuse_chunks(X, reason)
        if sample_weight is not None:
            raise ValueError(
                f"sample_weight goes with one matrix, but X is {describe(X)}: pass the weights "
                "of each chunk to partial_fit(chunk, sample_weight=...) or to "
                "Moments().update(chunk, weights), and fit to the moments"
            )
        moments = gather(X, self._check_chunk)
        if isinstance(X, Moments) or is_dask(X):
            self._check_chunk(moments.mean.numpy()[None], first=True)
        return self._fit_gathered(moments)

    def _check_chunk(self, chunk: Any, first: bool) -> NDArray[Any]:
        rows, _ = self._check_fit_input(chunk, None, reset=first, min_samples=0)
        if first:  # a head of another width is refused before all is read
            self._resolve_head(rows, None)
        return rows

    def _fit_gathered(self, moments: Moments) -> Self:
        check_spread(moments)
        head = self._resolve_head(moments.mean.numpy()[None], None)
        return self._adopt({"moments_": moments, **self._fit_moments(moments, head)}, head)

    @available_if(_streams)
    @_fit_context(prefer_skip_nested_validation=True)
    @whole_or_nothing
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
        refuse_chunks(X, "partial_fit takes one chunk at a time")
        first = not hasattr(self, "moments_")
        rows, _ = self._check_fit_input(X, None, reset=first, min_samples=2 if first else 1)
        seen = 0.0 if first else self.moments_.count
        weights = check_frequencies(sample_weight, rows, seen)
        head = self._resolve_head(rows, None)
        moments = Moments().update(rows, weights)
        if not first:
            moments.merge(self.moments_)
        check_spread(moments)
        return self._adopt({"moments_": moments, **self._fit_moments(moments, head)}, head)

    @abstractmethod
    def _fit_moments(self, moments: Moments, head: LinearHead | None) -> dict[str, Any]:
        """Compute the fitted attributes by name, ``map_`` among them, and set none."""

    def _fit_rows(
        self, X: NDArray[Any], weights: NDArray[Any] | None, head: LinearHead | None
    ) -> dict[str, Any]:
        moments = Moments().update(X, weights)
        return {"moments_": moments, **self._fit_moments(moments, head)}

    def _why_no_partial_fit(self) -> str | None:
        if not self._needs_y():
            return None
        return (
            f"with head={self.head!r} a head is fitted, which takes all rows at once; "
            "chunk by chunk it takes a frozen LinearHead or head=None"
        )


def check_frequencies(
    sample_weight: ArrayLike | None, X: NDArray[Any], before: float = 0.0
) -> NDArray[Any] | None:
    """Validate frequency weights.

    Parameters
    ----------
    sample_weight : array-like of shape (n_samples,) or None
        How often each row counts.
    X : ndarray of shape (n_samples, n_features)
        The rows.
    before : float, default=0.0
        How many rows have been counted already.

    Returns
    -------
    ndarray of shape (n_samples,) or None
        The weights in float64.

    Raises
    ------
    ValueError
        If they do not fit X, one is negative, or all rows together count for no more than 1.
    """
    if sample_weight is None:
        return None
    weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    if before + weights.sum() <= 1:
        raise ValueError(
            f"sample_weight sums to {weights.sum():g}, but weights count rows and must sum to more "
            "than 1: multiply them by the number of rows, or pass counts"
        )
    return weights
