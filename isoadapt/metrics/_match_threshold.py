"""A cosine above which two texts match, from vectors without labels."""

from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isoadapt._utils.containers import as_matrix
from isoadapt._utils.copies import copy_hashes, first_of_equal
from isoadapt._utils.sklearn_private import Interval, _num_samples, _safe_indexing, validate_params
from isoadapt._utils.state import own_state
from isoadapt.geometry._neighbours import unit_rows
from isoadapt.metrics._points import as_points

_ROWS = 4_000  # of a sample, whose cosines take 128 MB


class MatchThreshold(NamedTuple):
    """A cosine that a given share of random pairs exceeds, with its 95 % confidence interval.

    Attributes
    ----------
    threshold, ci_low, ci_high : float
        The cosine, and the ends of the interval. `ci_high` is 1 if pairs are too few for less.
    """

    threshold: float
    ci_low: float
    ci_high: float


@validate_params(
    {"rate": [Interval(Real, 0, 1, closed="neither")]}, prefer_skip_nested_validation=True
)
@own_state()
def match_threshold(
    X: ArrayLike, rate: float = 0.001, queries: ArrayLike | None = None
) -> MatchThreshold:
    """Find the cosine that a given share of random pairs exceeds, as a threshold for matches.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Embeddings of texts of the kind to be matched.
    rate : float, default=0.001
        Share of the random pairs, between 0 and 1, whose cosine is larger than the threshold. n
        rows have ``rate * n * (n - 1) / 2`` such pairs, by default 3,124 for 2,500 rows. To find
        duplicates, which are fewer, use :func:`find_duplicates`.
    queries : array-like of shape (n_queries, n_features), default=None
        Embeddings of queries. A pair is then a query and a row of X, otherwise two rows of X.

    Raises
    ------
    ValueError
        If `rate` is not between 0 and 1, or is less than one of the pairs; if rows are all equal or
        not finite.

    Notes
    -----
    All pairs count, of at most 4,000 rows and 4,000 queries, which are drawn with a fixed seed. But
    equal rows, such as copies of a text, count as one and form no pair. Pairs with a common row
    depend on each other: if p_i is the share of the pairs of row i above the threshold, the rate
    has the variance of a U-statistic, about 4 Var(p_i)/n, and with queries
    Var(p_q)/n_q + Var(p_x)/n_x. The ends of the interval are the thresholds of rates that are 1.96
    standard errors larger and smaller (Woodruff, 1952).

    Examples
    --------
    >>> import numpy as np
    >>> from isoadapt.metrics import match_threshold
    >>> X = np.random.default_rng(0).normal(size=(1000, 50))
    >>> round(match_threshold(X, rate=0.01).threshold, 2)
    0.32
    """
    points = _different_rows(X, "X")
    asked = points if queries is None else _different_rows(queries, "queries")
    twice = 2 if queries is None else 1  # each pair of rows of X is there in both orders
    cosines = asked @ points.T
    pairs = cosines <= 1 - 1e-12  # others are equal rows, up to the rounding of float32
    ordered = cosines[pairs]
    n_pairs = len(ordered) // twice
    if rate * n_pairs < 1:
        raise ValueError(
            f"rate={rate!r} is less than one of the {n_pairs} pairs of different rows: pass more "
            "rows, or a larger rate"
        )
    threshold = _exceeded(ordered, rate)
    above = pairs & (cosines > threshold)
    shares = [above.sum(axis) / pairs.sum(axis) for axis in (0, 1)]
    variance = twice * sum(share.var(ddof=1) / len(share) for share in shares)
    low, high = (_exceeded(ordered, rate + side * variance**0.5) for side in (1.96, -1.96))
    return MatchThreshold(threshold, low, high)


def drawn(rows: Any) -> Any:
    """Return at most `_ROWS` rows, drawn with a fixed seed, in their order."""
    chosen = np.random.default_rng(0).permutation(_num_samples(rows))[:_ROWS]
    return _safe_indexing(rows, np.sort(chosen))


def _different_rows(X: ArrayLike, name: str) -> NDArray[np.float64]:
    """Unit vectors (n, d) of at most `_ROWS` rows, without copies."""
    points = unit_rows(as_points(drawn(as_matrix(X, name)), name, min_features=1)).numpy()
    points = points[first_of_equal(copy_hashes(points))]
    if len(points) < 2:
        raise ValueError(f"all rows of {name} are equal, up to their lengths: pass others")
    return points


def _exceeded(cosines: NDArray[np.float64], rate: float) -> float:
    """Smallest cosine that at most a share of them exceeds; 1 if the share is less than one."""
    n_above = max(int(rate * len(cosines)), 0)
    place = max(len(cosines) - 1 - n_above, 0)
    cosines.partition(place)
    return float(cosines[place]) if n_above else 1.0
