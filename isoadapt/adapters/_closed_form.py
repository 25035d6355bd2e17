"""Base classes of adapters that are computed in closed form, in one pass over the rows."""

from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Self

from numpy.typing import ArrayLike, NDArray
from sklearn.utils.metaestimators import available_if

from isoadapt._utils.sklearn_private import StrOptions
from isoadapt._utils.threads import one_blas_thread_if_small
from isoadapt.adapters._base import BaseAdapter, fit_method
from isoadapt.adapters._heads import needs_fit
from isoadapt.adapters._rows import Sample, check_frequencies, check_spread
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


@dataclass(eq=False, repr=False)
class RefittedHead:
    """The parameters of adapters that fit their head to the adapted embeddings."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "head_training": [StrOptions({"refit", "frozen"})],
    }

    _: KW_ONLY
    head: Any = "auto"
    head_training: str = "refit"


class OnePassAdapter(BaseAdapter):
    """Base class of adapters without a training loop, which implement ``_fit_rows``."""

    @fit_method
    def fit(
        self,
        X: "Chunked",
        y: "ArrayLike | None" = None,
        sample_weight: "ArrayLike | None" = None,
        groups: "ArrayLike | None" = None,
    ) -> Self:
        """Fit to embeddings, in memory or, except by ClusterIsotropy, chunk by chunk.

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
        groups : array-like of shape (n_samples,), default=None
            Group of each row, such as its document. The folds that choose the penalty of a head
            with a name keep groups whole; nothing else depends on them.

        Raises
        ------
        TypeError
            If X is given in chunks, but the class or its parameters require all rows at once.
        ValueError
            If X is not finite or all its rows are equal, if weights are negative or sum to less
            than 2, if chunks have different widths, or if an iterator is exhausted.
        """
        if why := self._why_all_rows():
            refuse_chunks(X, why)
        elif in_chunks(X) or (is_memmap(X) and sample_weight is None):
            return self._fit_chunks(X, sample_weight)
        rows = self._read_rows(X, y, sample_weight, groups)
        moments = Moments().update(rows.X, rows.weights)
        check_spread(moments)
        refit = self._refits_head()
        head = None if refit else self._resolve_head(rows)
        fitted = self._fit_rows(rows, moments, head)
        if refit:
            head = self._fit_head(rows, fitted["map_"])
        return self._set_fitted(head=head, **fitted)

    @abstractmethod
    def _fit_rows(self, rows: Sample, moments: Moments, head: LinearHead | None) -> dict[str, Any]:
        """Return the fitted attributes by name, including ``map_``, without setting them."""

    def _fit_chunks(self, X: Any, sample_weight: Any) -> Self:
        """Fit to what gives its rows in chunks, if not all rows are needed at once."""
        raise NotImplementedError

    def _why_all_rows(self) -> str:
        """Why ``fit`` needs all rows at once; empty if it does not."""
        return f"{type(self).__name__} needs all rows at once"

    def _needs_y(self) -> bool:
        return needs_fit(self._head) or self._refits_head()


def _supports_chunks(adapter: "MomentsAdapter") -> bool:
    if why := adapter._why_all_rows():
        raise AttributeError(why)
    return True


class MomentsAdapter(OnePassAdapter):
    """Base class of adapters computed from the first two moments, kept as ``moments_``."""

    moments_: Moments

    @available_if(_supports_chunks)
    @fit_method
    def partial_fit(
        self, X: "ArrayLike", y: "ArrayLike | None" = None, sample_weight: "ArrayLike | None" = None
    ) -> Self:
        """Update the fit with more rows, as if one ``fit`` had had all rows so far.

        X are the embeddings (n_samples, n_features) of one chunk, and `sample_weight` (n_samples,)
        their frequency weights; y is ignored. ValueError is raised if X is not finite, if all rows
        so far are equal, or if weights are negative or sum to less than 2 over all rows so far.
        """
        refuse_chunks(X, "partial_fit takes one chunk at a time")
        first = not hasattr(self, "moments_")
        rows, _ = self._check_fit_input(X, None, reset=first, ensure_min_samples=2 if first else 1)
        moments = Moments().update(rows, check_frequencies(sample_weight, rows))
        if not first:
            moments.merge(self.moments_)
        return self._fit_to_moments(moments)

    @abstractmethod
    def _fit_moments(self, moments: Moments, head: LinearHead | None) -> dict[str, Any]:
        """Return the fitted attributes by name, including ``map_``, without setting them."""

    def _fit_rows(self, rows: Any, moments: Moments, head: LinearHead | None) -> dict[str, Any]:
        with one_blas_thread_if_small(moments.scatter):
            return {"moments_": moments, **self._fit_moments(moments, head)}

    def _fit_chunks(self, X: Any, sample_weight: Any) -> Self:
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
        return self._check_fit_input(chunk, None, reset=first, ensure_min_samples=0)[0]

    def _fit_to_moments(self, moments: Moments) -> Self:
        check_spread(moments)
        head = self._resolve_head(Sample(moments.mean.numpy()[None]))
        return self._set_fitted(head=head, **self._fit_rows(None, moments, head))

    def _why_all_rows(self) -> str:
        if not self._needs_y():
            return ""
        return (
            f"with head={self._head!r} a head is fitted, which requires all rows at once; to fit "
            "chunk by chunk, use head=None or a frozen LinearHead that is not refitted"
        )
