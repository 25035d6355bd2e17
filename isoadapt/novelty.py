"""NoveltyDetector: which rows are unlike all training rows, as an outlier detector."""

from numbers import Real
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, OutlierMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from isoadapt._utils.containers import as_matrix
from isoadapt._utils.copies import copy_hashes
from isoadapt._utils.sklearn_private import Interval, _fit_context
from isoadapt._utils.state import own_state
from isoadapt.geometry._chunks import FLOATS, prefix_errors
from isoadapt.geometry._neighbours import unit_matrix
from isoadapt.metrics._points import codes_of

__all__ = ["NoveltyDetector"]

Floats = NDArray[np.float64]
_COSINES = 2**22  # that are in memory at a time: 16 MiB


class NoveltyDetector(OutlierMixin, BaseEstimator):
    """Detector of rows that are unlike all training rows, by the cosine to the nearest one.

    A row is not compared with training rows that are equal to it, up to their lengths: training
    rows, and copies of them, are judged by the other ones.

    Parameters
    ----------
    rate : float, default=0.05
        Share of the rows of the training kind that are refused.

    Attributes
    ----------
    offset_ : float
        Cosine below which a row is refused.

    Examples
    --------
    >>> import numpy as np
    >>> from isoadapt import NoveltyDetector
    >>> X = np.random.default_rng(0).normal(size=(500, 8)) + 2
    >>> detector = NoveltyDetector().fit(X[:400], X_calibration=X[400:])
    >>> detector.predict([X.mean(axis=0), -X.mean(axis=0)])
    array([ 1, -1])
    """

    _parameter_constraints: ClassVar = {"rate": [Interval(Real, 0, 1, closed="neither")]}

    def __init__(self, rate: float = 0.05) -> None:
        self.rate = rate

    @_fit_context(prefer_skip_nested_validation=True)
    @own_state()
    def fit(
        self, X: ArrayLike, y: Any = None, groups: Any = None, X_calibration: Any = None
    ) -> Self:
        """Store the training rows, and find the limit.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Embeddings of the training texts.
        groups : array-like of shape (n_samples,), default=None
            Groups of rows that depend on each other, such as paraphrases. Rows of one group are not
            compared for the limit.
        X_calibration : array-like of shape (n_calibration, n_features), default=None
            Rows of the same kind that the encoder was not fitted to, for the limit. None takes the
            limit from the training rows. If the encoder was fitted to these, the share of new rows
            that is refused differs from `rate`: .015 to .11 instead of .05 in three classifiers.
        """
        least = {"ensure_min_samples": 2, "ensure_min_features": 2}
        self._training = unit_matrix(validate_data(self, as_matrix(X), dtype=FLOATS, **least))
        self._mean = self._training.mean(axis=0, dtype=np.float64)
        self._copies = copy_hashes(self._training, self._mean)
        codes = None if groups is None else codes_of(groups, len(self._copies), "groups")[1]
        if (self._copies == self._copies[0]).all() or (codes is not None and not codes.any()):
            alike = "all rows of X are equal, up to their lengths, or in one of the groups"
            raise ValueError(f"{alike}, so that no row has a neighbour: pass others")
        if X_calibration is None:
            scores = self._nearest(self._training, codes)
        else:
            with prefix_errors("X_calibration"):
                scores = self.score_samples(X_calibration)
        self.offset_ = float(np.quantile(scores, self.rate, method="weibull"))
        return self

    @own_state()
    def score_samples(self, X: ArrayLike) -> Floats:
        """Compute the cosine (n_samples,) to the nearest training row, smaller for novel rows."""
        check_is_fitted(self)
        rows = validate_data(self, as_matrix(X), dtype=FLOATS, reset=False)
        return self._nearest(unit_matrix(rows))

    def decision_function(self, X: ArrayLike) -> Floats:
        """Compute ``score_samples(X) - offset_``, negative for rows that are refused."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """Return an array (n_samples,): -1 for rows that are refused, 1 for the others."""
        return np.where(self.decision_function(X) >= 0, 1, -1)

    def _nearest(self, rows: NDArray[np.float32], groups: Any = None) -> Floats:
        """Cosines (m,) to the nearest training rows that are neither equal nor in one's group."""
        copies, nearest = copy_hashes(rows, self._mean), np.empty(len(rows))
        size = max(1, _COSINES // len(self._copies))
        for start in range(0, len(rows), size):
            part = slice(start, start + size)
            cosines = rows[part] @ self._training.T
            cosines[copies[part, None] == self._copies] = -np.inf
            if groups is not None:
                cosines[groups[part, None] == groups] = -np.inf
            found = self._training[cosines.argmax(axis=1)].astype(np.float64)
            nearest[part] = (rows[part] * found).sum(axis=1)
        return nearest
