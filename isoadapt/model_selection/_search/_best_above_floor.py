"""The choice of a candidate by its task and isotropy scores."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isoadapt._utils.messages import warn


@dataclass(frozen=True)
class BestAboveFloor:
    """Choose the candidate with the best task score among those that are isotropic enough.

    It is a callable for the parameter ``refit`` of a search with several metrics. Among the
    candidates whose mean isotropy over the folds reaches the floor, it chooses the one with the
    best mean task score. Ties are broken by isotropy, then by the order of the candidates.
    Candidates with a score of NaN are never chosen.

    Parameters
    ----------
    task : str
        Name of the task score among the scores of the search.
    isotropy : str
        Name of the isotropy score; see :func:`make_isotropy_scorer`.
    floor : float
        Smallest admissible mean isotropy, on the scale of that score. It is negative for a metric
        of which smaller values are better, because the scorer changes its sign.

    Raises
    ------
    ValueError
        If `floor` is not a finite number. At the end of a search, if the search has no score of
        one of these names, or if no candidate has both scores.

    Warns
    -----
    UserWarning
        If no candidate reaches the floor. The most isotropic one is then chosen, so that the
        results of the search are not lost.

    Notes
    -----
    As with any callable ``refit``, scikit-learn sets ``best_index_``, ``best_params_`` and
    ``best_estimator_``, but not ``best_score_``; the scores are in ``cv_results_``.

    Examples
    --------
    >>> from sklearn.datasets import make_classification
    >>> from sklearn.model_selection import GridSearchCV
    >>> from isoadapt import LogitPreservingWhitening
    >>> from isoadapt.model_selection import BestAboveFloor, make_isotropy_scorer
    >>> X, y = make_classification(100, 8, random_state=0)
    >>> search = GridSearchCV(
    ...     LogitPreservingWhitening(head="logistic"),
    ...     {"strength": [0.0, 0.5, 1.0]},
    ...     scoring={"accuracy": "accuracy", "isoscore": make_isotropy_scorer("isoscore")},
    ...     refit=BestAboveFloor("accuracy", "isoscore", floor=0.5),
    ...     cv=2,
    ... )
    >>> search.fit(X, y).best_params_
    {'strength': 1.0}
    """

    task: str
    isotropy: str
    floor: float

    def __post_init__(self) -> None:
        if not (isinstance(self.floor, Real) and math.isfinite(self.floor)):
            raise ValueError(f"floor={self.floor!r} must be a finite number, such as 0.5")

    def __call__(self, cv_results: Mapping[str, Any]) -> int:
        """Return the index of the chosen candidate in the ``cv_results_`` of a search."""
        prefix = "mean_test_"
        self._check_names(name.removeprefix(prefix) for name in cv_results if prefix in name)
        task, isotropy = (
            np.asarray(cv_results[prefix + name], float) for name in (self.task, self.isotropy)
        )
        scored = ~np.isnan(task) & ~np.isnan(isotropy)
        if not scored.any():
            raise ValueError(
                f"no candidate has both scores {self.task!r} and {self.isotropy!r}: all are NaN; "
                "set error_score='raise' to see why"
            )
        above_floor = scored & (isotropy >= self.floor)
        if above_floor.any():
            return _best(above_floor, task, isotropy)
        best = _best(scored, isotropy, task)
        warn(
            f"no candidate reaches floor={self.floor} of {self.isotropy!r}, so the most isotropic "
            f"one is chosen, with {isotropy[best]:.4g}; widen the grid, or lower the floor"
        )
        return best

    def _check_names(self, scores: Iterable[str]) -> None:
        """Check that a search has both scores."""
        found = list(scores)
        for name in {self.task, self.isotropy} - set(found):
            raise ValueError(
                f"the search has no score {name!r}, only {', '.join(map(repr, found))}: use names "
                "of its scoring={name: scorer, ...}"
            )


def _best(
    admitted: NDArray[np.bool_], first: NDArray[np.float64], second: NDArray[np.float64]
) -> int:
    """Index of the `admitted` candidate with the best `first` score; `second` breaks ties."""
    return int(max(np.flatnonzero(admitted), key=lambda index: (first[index], second[index])))
