"""Base classes of adapters that are computed in closed form, in one pass over the rows."""

from abc import abstractmethod
from typing import Any, Self, cast

from numpy.typing import ArrayLike, NDArray
from sklearn.base import _fit_context
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.metaestimators import available_if

from isoadapt.adapters._base import BaseAdapter
from isoadapt.adapters._heads import needs_fit
from isoadapt.adapters._rows import check_frequencies, check_spread, restore_on_failure
from isoadapt.geometry import Moments
from isoadapt.geometry._chunks import (
    Chunked,
    describe_chunks,
    gather,
    in_chunks,
    is_dask,
    is_memmap,
    refuse_chunks,
)
from isoadapt.heads import LinearHead

# In signatures of public methods, ArrayLike is quoted: help() would otherwise show the whole union.

REFIT_CONSTRAINTS: dict[str, list[Any]] = {
    **BaseAdapter._parameter_constraints,
    "head_training": [StrOptions({"refit", "frozen"})],
}


class OnePassAdapter(BaseAdapter):
    """Base class of adapters without a training loop, which implement ``_fit_rows``."""

    @_fit_context(prefer_skip_nested_validation=True)
    @restore_on_failure
    def fit(
        self, X: "ArrayLike", y: "ArrayLike | None" = None, sample_weight: "ArrayLike | None" = None
    ) -> Self:
        """Fit to embeddings.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Embeddings.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs), default=None
            Labels or values; required only if a head is fitted.
        sample_weight : array-like of shape (n_samples,), default=None
            Frequency weights: a row of weight 2 counts as two equal rows.

        Returns
        -------
        Self
            The fitted adapter.

        Raises
        ------
        ValueError
            If X is not finite or all its rows are equal, or if weights are negative or sum to 1 or
            less.
        """
        rows, targets = self._check_fit_input(X, y)
        weights = check_frequencies(sample_weight, rows)
        check_spread(rows if weights is None else rows[weights > 0])
        refit = self._refits_head()
        fitted_later = refit and needs_fit(self.head)
        head = None if fitted_later else self._resolve_head(rows, targets, weights)
        fitted = self._fit_rows(rows, weights, head)
        if refit:
            head = self._fit_head(rows, targets, weights, map_=fitted["map_"])
        return self._set_fitted(head=head, **fitted)

    @abstractmethod
    def _fit_rows(
        self, X: NDArray[Any], weights: NDArray[Any] | None, head: LinearHead | None
    ) -> dict[str, Any]:
        """Return the fitted attributes by name, including ``map_``, without setting them."""

    def _needs_y(self) -> bool:
        return needs_fit(self.head) or self._refits_head()


def _supports_chunks(adapter: "MomentsAdapter") -> bool:
    if adapter._needs_y():
        raise AttributeError(_why_all_rows(adapter))
    return True


def _why_all_rows(adapter: BaseAdapter) -> str:
    return (
        f"with head={adapter.head!r} a head is fitted, which requires all rows at once; to fit "
        "chunk by chunk, use head=None or a frozen LinearHead that is not refitted"
    )


class MomentsAdapter(OnePassAdapter):
    """Base class of adapters computed from the first two moments, kept as ``moments_``."""

    moments_: Moments

    @_fit_context(prefer_skip_nested_validation=True)
    @restore_on_failure
    def fit(
        self, X: "Chunked", y: "ArrayLike | None" = None, sample_weight: "ArrayLike | None" = None
    ) -> Self:
        """Fit to embeddings, in memory or chunk by chunk.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or chunks of it
            Embeddings in one of three forms: one matrix; an iterable of matrices, a memory map or
            a dask array, which is read once and never loaded as a whole; or their
            :class:`~isoadapt.geometry.Moments`, which can be computed once for several adapters.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs), default=None
            Labels or values; required only if a head is fitted, and then X must be one matrix.
        sample_weight : array-like of shape (n_samples,), default=None
            Frequency weights: a row of weight 2 counts as two equal rows. With the frequencies of
            words as weights, whitening is Zipfian whitening. Weights require X to be one matrix;
            for chunks, pass them to ``partial_fit``.

        Returns
        -------
        Self
            The fitted adapter.

        Raises
        ------
        TypeError
            If X is given in chunks, but the parameters require all rows at once.
        ValueError
            If X is not finite or all its rows are equal, if weights are negative or sum to 1 or
            less, if chunks have different widths, or if an iterator is exhausted.
        """
        if not in_chunks(X) and (self._needs_y() or sample_weight is not None or not is_memmap(X)):
            return super().fit(cast(ArrayLike, X), y, sample_weight)
        if self._needs_y():
            refuse_chunks(X, _why_all_rows(self))
        if sample_weight is not None:
            raise ValueError(
                f"sample_weight requires X to be one matrix, but X is {describe_chunks(X)}: pass "
                "the weights of each chunk to partial_fit(chunk, sample_weight=...) or to "
                "Moments().update(chunk, weights), and fit to the moments"
            )
        moments = gather(X, self._check_chunk)
        if isinstance(X, Moments) or is_dask(X):
            self._check_chunk(moments.mean.numpy()[None], first=True)
        return self._fit_to_moments(moments)

    def _check_chunk(self, chunk: Any, first: bool) -> NDArray[Any]:
        rows, _ = self._check_fit_input(chunk, None, reset=first, ensure_min_samples=0)
        if first:  # raises for a head of another width, before all chunks are read
            self._resolve_head(rows, None)
        return rows

    def _fit_to_moments(self, moments: Moments) -> Self:
        head = self._resolve_head(moments.mean.numpy()[None], None)
        return self._set_fitted(head=head, **self._attributes(moments, head))

    def _attributes(self, moments: Moments, head: LinearHead | None) -> dict[str, Any]:
        check_spread(moments)
        return {"moments_": moments, **self._fit_moments(moments, head)}

    @available_if(_supports_chunks)
    @_fit_context(prefer_skip_nested_validation=True)
    @restore_on_failure
    def partial_fit(
        self, X: "ArrayLike", y: "ArrayLike | None" = None, sample_weight: "ArrayLike | None" = None
    ) -> Self:
        """Update the fit with more rows.

        The result is that of one ``fit`` to all rows so far.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Embeddings of one chunk.
        y : array-like of shape (n_samples,), default=None
            Ignored.
        sample_weight : array-like of shape (n_samples,), default=None
            Frequency weights of the rows of the chunk.

        Returns
        -------
        Self
            The adapter, fitted to all rows so far.

        Raises
        ------
        ValueError
            If X is not finite, if all rows so far are equal, or if weights are negative or sum to 1
            or less over all rows so far.
        """
        refuse_chunks(X, "partial_fit takes one chunk at a time")
        first = not hasattr(self, "moments_")
        rows, _ = self._check_fit_input(X, None, reset=first, ensure_min_samples=2 if first else 1)
        seen = 0.0 if first else self.moments_.count
        weights = check_frequencies(sample_weight, rows, seen)
        moments = Moments().update(rows, weights)
        if not first:
            moments.merge(self.moments_)
        return self._fit_to_moments(moments)

    @abstractmethod
    def _fit_moments(self, moments: Moments, head: LinearHead | None) -> dict[str, Any]:
        """Return the fitted attributes by name, including ``map_``, without setting them."""

    def _fit_rows(
        self, X: NDArray[Any], weights: NDArray[Any] | None, head: LinearHead | None
    ) -> dict[str, Any]:
        return self._attributes(Moments().update(X, weights), head)
