"""Ridge regression from features of a classifier's pass to the vectors of another encoder."""

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from math import sqrt
from numbers import Real
from typing import Any, ClassVar, Self, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import r2_score
from sklearn.utils import Tags
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data

from isoadapt._utils.containers import as_matrix, as_values
from isoadapt._utils.messages import warn
from isoadapt._utils.sklearn_private import Interval, StrOptions
from isoadapt.adapters._base import BaseAdapter, fit_method
from isoadapt.adapters._linalg import descending_eigh, row_space
from isoadapt.adapters._maps import Affine, Floats, map_rows
from isoadapt.adapters._ridge_path import NO_ROWS, Folds, add_rows, choose_ridge, merged
from isoadapt.adapters._rows import check_frequencies, check_spread
from isoadapt.geometry import Moments
from isoadapt.geometry._chunks import RowReader, is_dask, is_memmap, refuse_chunks, unmap_pages
from isoadapt.geometry._ridge import standardised_path
from isoadapt.heads import LinearHead

_CONSTANT = 1e-20  # variance of unit vectors up to which they count as equal
_ENTRIES = 2**22  # entries of a memory map that are read at a time
_POOR = 0.35  # held-out R² below which LogitPreservingWhitening was better on CoLA
_SMALLEST = 1e-8  # ridge that is larger than the rounding errors of a correlation matrix


@dataclass(eq=False, repr=False)
class TeacherReadout(BaseAdapter):
    """Predict a teacher's vectors from several layers of a classifier, and keep its logits.

    One pass of a fine-tuned classifier gives hidden states of all its layers and the input of its
    head. This adapter is a ridge regression from such columns to the vectors of another encoder,
    the teacher, such as the base model. It needs unlabelled texts that both have encoded. The first
    columns of X are the head's input, from which predictions are computed as before. In an
    :class:`~isoadapt.AdaptedEncoder`, X may also hold the output of the teacher's last layers.

    Columns of X are standardised. The teacher's vectors are scaled to unit length; zeros stay
    zeros. Let T̂ be the predicted vectors, and h the head's input.

    - ``space="teacher"`` returns T̂, which can be compared with vectors that the teacher computed.
    - ``space="head"`` returns z = RRᵀh + sNQᵀT̂, which the head reads exactly as h. R and N are
      orthonormal bases of the head's row space and of its complement. Q holds the leading
      eigenvectors of the uncentred second moment of T̂, at most as many as N has columns.

    Parameters
    ----------
    head : LinearHead, FrozenEstimator, "auto" or None, default="auto"
        The fitted head, which reads the first ``head.n_features_in_`` columns of X. "auto" is the
        checkpoint's in an AdaptedEncoder and on the command line, elsewhere None.
    space : {"teacher", "head"}, default="teacher"
        Space of the adapted vectors. "head" needs a head.
    ridge : float or "auto", default="auto"
        The penalty α in the coefficients (X̃ᵀX̃/n + αI)⁻¹X̃ᵀT/n of the standardised columns X̃. "auto"
        minimises the squared error in five folds of rows, each left out of the fit in turn. The
        folds keep groups whole. Without groups, they keep copies of a row together, nearly always
        also copies that differ by rounding. A number must be at least 1e-8.
    head_share : float, default=0.03
        Share, between 0 and 1, of RRᵀh in the mean squared norm of z with ``space="head"``, which
        sets s. If it is small, z has nearly the cosines of T̂.

    Attributes
    ----------
    map_ : Affine
        The fitted map.
    head_map_ : Affine
        The map from X to the head's input: its first columns, and all of them without a head.
    readout_ : Affine
        The map from X to T̂; with ``space="teacher"`` it is `map_`.
    ridge_ : float
        The penalty used.
    r2_ : float
        Share of the variance of the teacher's vectors explained in the folds that are left out of
        the fit. It is too high if rows of different folds are similar, such as the sentences of one
        document, unless documents are `groups`. NaN if all vectors are equal or all rows are in one
        fold.
    moments_ : Folds
        Moments of the columns of X and y in each fold, about 40 bytes times the square of their
        number; only after ``partial_fit``, which continues with them.
    <head attributes>

    Examples
    --------
    >>> import numpy as np
    >>> from isoadapt import LinearHead, TeacherReadout
    >>> rng = np.random.default_rng(0)
    >>> meaning = rng.normal(size=(400, 5))
    >>> layers = np.tanh(meaning @ rng.normal(size=(5, 24)) / 3)
    >>> X = np.hstack([meaning @ rng.normal(size=(5, 8)) * [9, 1, 1, 1, 1, 1, 1, 1], layers])
    >>> teacher = meaning @ rng.normal(size=(5, 16))
    >>> head = LinearHead(np.eye(2, 8), [0.0, 0.0], classes=[0, 1])
    >>> readout = TeacherReadout(head, space="head").fit(X, teacher)
    >>> bool(np.allclose(head.outputs(readout.transform(X)), head.outputs(X[:, :8])))
    True
    >>> round(readout.r2_, 2), round(readout.score(X, teacher), 2)
    (0.97, 0.97)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "head": [LinearHead, FrozenEstimator, StrOptions({"auto"}), None],
        "space": [StrOptions({"teacher", "head"})],
        "ridge": [Interval(Real, _SMALLEST, None, closed="left"), StrOptions({"auto"})],
        "head_share": [Interval(Real, 0, 1, closed="neither")],
    }

    _needs_teacher: ClassVar[bool] = True
    _keeps_predictions = True
    _invertible: ClassVar[bool] = False
    _n_predicted: ClassVar[int] = 0  # last columns of X, predictions of y that are corrected

    head: Any = "auto"
    _: KW_ONLY
    space: str = "teacher"
    ridge: float | str = "auto"
    head_share: float = 0.03

    @fit_method
    def fit(
        self,
        X: "ArrayLike",
        y: "ArrayLike | None" = None,
        sample_weight: "ArrayLike | None" = None,
        groups: "ArrayLike | None" = None,
    ) -> Self:
        """Fit to columns of the classifier and vectors of the teacher for the same texts.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Columns of the classifier, the head's input first. A memory map or a dask array is read
            once, in parts.
        y : array-like of shape (n_samples, n_features_teacher)
            The teacher's vectors, of any width; also a memory map or a dask array.
        sample_weight : array-like of shape (n_samples,), default=None
            Frequency weights: a row of weight 2 counts as two equal rows.
        groups : array-like of shape (n_samples,), default=None
            Group of each row, such as its document or corpus. All rows of a group are in one fold.
            Each of the first five groups has its own fold.

        Raises
        ------
        TypeError
            If X is given in chunks, but is neither a memory map nor a dask array.
        ValueError
            If X or y is not finite, their lengths differ, all rows of X are equal, or weights are
            negative or sum to less than 2; if the head is wider than X; or if ``space="head"`` has
            no head, or a head of full rank.
        """
        folds = NO_ROWS
        for chunk in _chunks(X, y, sample_weight, groups):
            folds = self._add_chunk(folds, *chunk)
        self.__dict__.pop("moments_", None)
        return self._solve(folds)

    @fit_method
    def partial_fit(
        self,
        X: "ArrayLike",
        y: "ArrayLike | None" = None,
        sample_weight: "ArrayLike | None" = None,
        groups: "ArrayLike | None" = None,
    ) -> Self:
        """Update the fit with more rows, as if one ``fit`` had had all rows so far.

        It takes one chunk of what :meth:`fit` takes. The first chunk may have one row, whose
        teacher's vector is then predicted for any row. ``fit`` keeps no moments, because they are
        large, so ``partial_fit`` after it starts again.
        """
        before = getattr(self, "moments_", NO_ROWS)
        if before is NO_ROWS and hasattr(self, "map_"):
            warn(
                "partial_fit starts without the rows of the fit before, which kept no moments: "
                "pass all rows to partial_fit, or all to fit"
            )
        self.moments_ = self._add_chunk(before, X, y, sample_weight, groups, least=1)
        return self._solve(self.moments_, several=before is not NO_ROWS or len(cast(Any, X)) > 1)

    def score(
        self, X: "ArrayLike", y: "ArrayLike | None" = None, sample_weight: "ArrayLike | None" = None
    ) -> float:
        """Compute the share of the variance of the teacher's vectors that is explained.

        It is R² of T̂, in both spaces, with the variances of all columns added up. `y` are the
        vectors (n_samples, n_features_teacher), which are scaled to unit length.
        """
        check_is_fitted(self)
        rows, true = self._check_pair(X, y, reset=False)
        predicted = map_rows(self.readout_, rows)
        return float(
            r2_score(true, predicted, sample_weight=sample_weight, multioutput="variance_weighted")
        )

    @property
    def head_map_(self) -> Affine:
        """The map from embeddings to what the head reads: the first columns."""
        width = (self.head_ or self).n_features_in_
        return Affine(np.eye(width, self.n_features_in_), np.zeros(width))

    def _check_pair(self, X: Any, y: Any, **options: Any) -> tuple[NDArray[Any], Floats]:
        """Validate rows and the teacher's vectors, which are scaled to unit length."""
        refuse_chunks(X, "TeacherReadout takes a matrix, a memory map or a dask array")
        options |= {"dtype": [np.float64, np.float32], "order": "C", "multi_output": True}
        rows, y = validate_data(self, as_matrix(X), as_values(y), **options)
        vectors = y.astype(np.float64).reshape(len(y), -1)
        for norm in (np.inf, 2):  # the first prevents overflow
            sizes = np.linalg.norm(vectors, norm, axis=1, keepdims=True)
            vectors /= np.where(sizes > 0, sizes, 1.0)
        return rows, vectors

    def _add_chunk(
        self, folds: Folds, X: Any, y: Any, sample_weight: Any, groups: Any, least: int = 2
    ) -> Folds:
        """Return folds with more rows; the first chunk has at least `least`."""
        first = folds is NO_ROWS
        size = {"ensure_min_samples": least if first else 1, "ensure_min_features": 1 + first}
        rows, targets = self._check_pair(X, y, reset=first, **size)
        groups = as_values(groups, "groups")
        check_consistent_length(rows, groups)
        weights = check_frequencies(sample_weight, rows)
        n = self._n_predicted
        targets[:, :n] -= rows[:, self.n_features_in_ - n :]
        return add_rows(folds, rows, targets, weights, groups)

    def _find_head(self) -> LinearHead | None:
        """Return the head, or raise ValueError if it does not fit the columns or the space."""
        head = None if self._head is None else LinearHead.from_estimator(self._head)
        if head is not None and head.n_features_in_ > self.n_features_in_:
            raise ValueError(
                f"X has {self.n_features_in_} features, but the head expects "
                f"{head.n_features_in_}: the head's input must be the first columns of X"
            )
        if self.space == "head" and (head is None or not row_space(head.coef_)[1].size):
            why = "leaves no direction free, because it has full rank"
            raise ValueError(
                f"space='head', but head={head!r} {why if head else 'is not a head'}: pass a head "
                "of lower rank, or use space='teacher'"
            )
        return head

    def _solve(self, folds: Folds, several: bool = True) -> Self:
        """Compute the maps; all rows have the same prediction unless there are several."""
        parts = [part for part in folds.parts if part is not None]
        total, p, n = merged(parts), self.n_features_in_, self._n_predicted
        if several:
            own = Moments._of(total.count, total.mean[:p], total.scatter[:p, :p])
            check_spread(own, scaled=True)
        head = self._find_head()
        self.ridge_, error = choose_ridge(parts, p, self.ridge)
        both, q = total.scatter[p - n :, p - n :], len(total) - p  # what was predicted, and errors
        spread = float(torch.einsum("aibi->", both.reshape(-1, q, len(both) // q, q)))
        self.r2_ = float(1 - error / spread) if spread > _CONSTANT * total.count else float("nan")
        if len(total) == p + 1:
            warn("y has one column: TeacherReadout needs vectors of a teacher, not labels")
        elif not self.r2_ >= _POOR:  # NaN if the vectors are all equal, or the rows in one fold
            other = "compare with LogitPreservingWhitening, " if head is not None else ""
            warn(
                f"R² of the teacher's vectors is {self.r2_:.2f} in held-out rows. Below {_POOR}, "
                f"{other}fit to more texts, or check that X and y are of the same texts"
            )
        mean, coef = total.mean.numpy(), next(standardised_path(total, p, [self.ridge_])).numpy()
        offset = mean[p:] - mean[:p] @ coef
        coef[p - n :] += np.eye(n, q)
        self.readout_ = Affine(coef.T, offset)
        map_ = self.readout_ if self.space == "teacher" else self._into_head(total, head)
        return self._set_fitted(map_, head)

    def _into_head(self, total: Moments, head: Any) -> Affine:
        """Return the map to vectors that the head reads as its own input."""
        basis, complement = row_space(head.coef_)
        readout, d, p = self.readout_, head.n_features_in_, self.n_features_in_
        cov = total.scatter[:p, :p].numpy() / total.count
        own, mean = total.mean[:d].numpy(), readout(total.mean[:p].numpy())
        second = readout.matrix @ cov @ readout.matrix.T + np.outer(mean, mean)
        sizes, directions = descending_eigh(second)
        k = min(complement.shape[1], len(sizes))
        free = sizes[:k].sum()
        kept = np.trace(basis.T @ (cov[:d, :d] + np.outer(own, own)) @ basis)
        ratio = (1 - self.head_share) / self.head_share
        scale = sqrt(ratio * kept / free) if min(kept, free) > 0 else 1.0
        into = scale * complement[:, :k] @ directions[:, :k].T
        matrix = into @ readout.matrix
        matrix[:, :d] += basis @ basis.T
        return Affine(matrix, into @ readout.offset)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.estimator_type = tags.classifier_tags = tags.regressor_tags = None
        tags.target_tags.required = tags.target_tags.multi_output = True
        return tags


def _chunks(X: Any, y: Any, *others: Any) -> Iterator[tuple[Any, ...]]:
    """Rows of X, y and other arrays or None, in parts if X or y is a memory map or a dask array."""
    X = RowReader(X).X if is_dask(X) else X
    y = RowReader(y, name="y").X if is_dask(y) and y.ndim == 2 else y
    given = X, y, *others
    maps = [each for each in (X, y) if is_memmap(each)]
    sizes = [max(each.chunks[0]) for each in (X, y) if is_dask(each)]
    if not maps and not sizes:
        yield given
        return
    check_consistent_length(*given)
    size = max(2, *(sizes or [_ENTRIES // max(1, *(each.shape[1] for each in maps))]))
    for start in range(0, max(1, len(X)), size):
        rows: list[Any] = [each if each is None else each[start : start + size] for each in given]
        yield tuple(each.compute() if is_dask(each) else each for each in rows)
        for each in maps:
            unmap_pages(each)
