"""Plot of the candidates of a search: isotropy against task."""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from isoadapt._utils.messages import choices
from isoadapt.report._display import COLOURS, Display, ink, label_apart, literal


class SearchFrontDisplay(Display):
    """Plot of the candidates of a search by isotropy and task score, with the Pareto set.

    Create it with :meth:`from_estimator`, which also draws it. A candidate is in the Pareto set if
    no other candidate is at least as good in both scores and better in one. Bars are the standard
    deviations of the task score over the folds. Squares are candidates without penalty (``lam=0``).
    Points of the Pareto set are labelled with their parameters, except where another label is.

    Parameters
    ----------
    estimator : AdapterSearchCV or GridSearchCV
        Fitted search with a task score and an isotropy score; see
        :func:`~isoadapt.model_selection.make_isotropy_scorer`.
    task, isotropy : str, default=None
        Names of the two scores. None are those of ``refit``, if it is a
        :class:`~isoadapt.model_selection.BestAboveFloor`.

    Attributes
    ----------
    figure_ : matplotlib Figure
        The figure.
    ax_ : matplotlib Axes
        The panel.
    pareto_ : ndarray of int
        Indices of the Pareto set, the least isotropic candidate first.
    candidates_ : matplotlib PathCollection
        The points of all candidates.
    front_, unpenalised_, floor_, chosen_ : matplotlib Line2D or None
        The Pareto set, the candidates with ``lam=0``, the floor of ``refit``, and the candidate
        that the search chose.

    Raises
    ------
    NotFittedError
        If the search is not fitted.
    ValueError
        If the search has no score of a name.

    Examples
    --------
    >>> from isoadapt.report import SearchFrontDisplay
    >>> display = SearchFrontDisplay.from_estimator(search)  # doctest: +SKIP
    """

    _panels = ("candidates",)
    _size = (7.5, 4.5)

    def __init__(
        self, estimator: Any, *, task: str | None = None, isotropy: str | None = None
    ) -> None:
        check_is_fitted(estimator, "cv_results_")
        results, rule, prefix = estimator.cv_results_, estimator.refit, "mean_test_"
        known = [name.removeprefix(prefix) for name in results if name.startswith(prefix)]
        isotropy = isotropy or getattr(rule, "isotropy", None)
        task = task or getattr(rule, "task", None)
        for parameter, name in (("isotropy", isotropy), ("task", task)):
            if name not in known:
                way_out = choices(str(name), known)
                raise ValueError(f"{parameter}={name!r} is not a score of the search; {way_out}")
        self.params, self.names = results["params"], (isotropy, task)
        self.isotropy, self.task = (results[f"{prefix}{name}"] for name in self.names)
        self.task_std = results[f"std_test_{task}"]
        self.chosen = getattr(estimator, "best_index_", None)
        self.floor = rule.floor if isotropy == getattr(rule, "isotropy", None) else None
        self.pareto_ = _pareto(self.isotropy, self.task)

    @classmethod
    def from_estimator(
        cls, estimator: Any, *, task: str | None = None, isotropy: str | None = None, ax: Any = None
    ) -> Self:
        """Plot a fitted search, with the parameters of the class, and `ax` as for :meth:`plot`."""
        return cls(estimator, task=task, isotropy=isotropy).plot(ax=ax)

    def _draw(self) -> None:
        [self.ax_] = [ax] = self.axes_
        scores, grey = (self.isotropy, self.task), ink(ax, 0.5)
        ax.errorbar(*scores, self.task_std, fmt="none", color=ink(ax, 0.3), lw=0.8, zorder=1)
        label = "candidate, ± 1 standard deviation over folds"
        self.candidates_ = ax.scatter(*scores, s=28, color=grey, zorder=2, label=label)
        self.front_ = self._mark(self.pareto_, "o-", "Pareto set", color=ink(ax), lw=1.2, zorder=3)
        texts = [_text(params) for params in self.params]
        zero = [index for index, text in enumerate(texts) if "lam=0" in text.split(", ")]
        square = {"color": COLOURS[0], "ms": 9, "mfc": "none", "mew": 1.5, "zorder": 4}
        self.unpenalised_ = self._mark(zero, "s", "lam=0: no penalty", **square) if zero else None
        self.floor_ = self.chosen_ = None
        if self.floor is not None:
            label = f"floor {self.floor:g}"
            self.floor_ = ax.axvline(self.floor, color=COLOURS[3], ls="--", label=label)
        if self.chosen is not None:
            circle = {"color": COLOURS[1], "ms": 13, "mfc": "none", "mew": 2, "zorder": 5}
            label = f"chosen: {literal(texts[self.chosen])}"
            self.chosen_ = self._mark([self.chosen], "o", label, **circle)
        xlabel, ylabel = (f"{name} (greater is better)" for name in self.names)
        ax.set(xlabel=xlabel, ylabel=ylabel)
        ax.legend(fontsize=8, frameon=False, loc="lower left", bbox_to_anchor=(0.0, 1.01), ncols=2)
        order = sorted(self.pareto_, key=lambda index: index != self.chosen)
        label_apart(ax, [(self.isotropy[i], self.task[i], texts[i]) for i in order])

    def _mark(self, indices: Any, marker: str, label: str, **look: Any) -> Any:
        x, y = self.isotropy[indices], self.task[indices]
        return self.ax_.plot(x, y, marker, label=label, **look)[0]


def _pareto(isotropy: np.ndarray, task: np.ndarray) -> np.ndarray:
    """Indices of the candidates that no other dominates, in ascending order of isotropy."""
    scores = np.column_stack([isotropy, task])
    as_good = np.all(scores >= scores[:, None], axis=-1)  # whether the column is, as the row
    better = np.any(scores > scores[:, None], axis=-1)
    kept = np.flatnonzero(~np.any(as_good & better, axis=1) & ~np.isnan(scores).any(axis=1))
    return kept[np.argsort(isotropy[kept], kind="stable")]


def _text(params: Mapping[str, Any]) -> str:
    """Parameters without the names of the steps of a pipeline."""
    return ", ".join(
        f"{name.rpartition('__')[2]}={f'{value:.3g}' if isinstance(value, float) else value}"
        for name, value in params.items()
    )
