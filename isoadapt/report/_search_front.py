"""Plot of the candidates of a search: isotropy against task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d

from isoadapt._utils.messages import choices
from isoadapt.model_selection import BestAboveFloor
from isoadapt.report._axes import colours, ink, literal, panels, plain

_PREFIX = "mean_test_"


class SearchFrontDisplay:
    """Plot of the candidates of a search by isotropy and task score, with the Pareto set.

    Create it with :meth:`from_estimator`, which also draws it. A candidate is in the Pareto set if
    no other candidate is at least as good in both scores and better in one. Bars are the standard
    deviations of the task score over the folds. Squares are candidates without penalty (``lam=0``).
    Points of the Pareto set are labelled with their parameters, except where another label is.

    Parameters
    ----------
    isotropy : array-like of shape (n_candidates,)
        Isotropy score of each candidate, greater is better; NaN if its fits failed.
    task : array-like of shape (n_candidates,)
        Task score of each candidate, greater is better; NaN if its fits failed.
    params : sequence of mapping
        Parameters of each candidate.
    task_std : array-like of shape (n_candidates,), default=None
        Standard deviation of the task score over the folds.
    chosen : int, default=None
        Index of the candidate that the search chose, in the range of `params`.
    floor : float, default=None
        Smallest admissible isotropy.
    names : tuple of two str, default=("isotropy", "task score")
        Labels of the two scores.

    Attributes
    ----------
    figure_ : matplotlib Figure
        The figure.
    ax_ : matplotlib Axes
        The panel.
    pareto_ : ndarray of int
        Indices of the Pareto set, the least isotropic candidate first.
    candidates_ : matplotlib PathCollection
        The points of all candidates that have both scores.
    front_ : matplotlib Line2D
        The Pareto set.
    floor_ : matplotlib Line2D or None
        The floor.
    chosen_ : matplotlib Line2D or None
        The candidate that the search chose.
    unpenalised_ : matplotlib Line2D or None
        The candidates with ``lam=0``.

    Raises
    ------
    ValueError
        If the lengths differ, if no candidate has both scores, or if `chosen` is not a candidate.

    Examples
    --------
    >>> from sklearn.datasets import make_classification
    >>> from sklearn.model_selection import GridSearchCV
    >>> from isoadapt import LogitPreservingWhitening
    >>> from isoadapt.model_selection import BestAboveFloor, make_isotropy_scorer
    >>> from isoadapt.report import SearchFrontDisplay
    >>> X, y = make_classification(300, 8, random_state=0)
    >>> search = GridSearchCV(  # doctest: +SKIP
    ...     LogitPreservingWhitening(head="logistic"),
    ...     {"strength": [0.0, 0.5, 1.0]},
    ...     scoring={"accuracy": "accuracy", "isoscore": make_isotropy_scorer("isoscore")},
    ...     refit=BestAboveFloor("accuracy", "isoscore", floor=0.5),
    ... ).fit(X, y)
    >>> display = SearchFrontDisplay.from_estimator(search)  # doctest: +SKIP
    >>> display.figure_.savefig("front.png")  # doctest: +SKIP
    """

    def __init__(
        self,
        isotropy: ArrayLike,
        task: ArrayLike,
        params: Sequence[Mapping[str, Any]],
        *,
        task_std: ArrayLike | None = None,
        chosen: int | None = None,
        floor: float | None = None,
        names: tuple[str, str] = ("isotropy", "task score"),
    ) -> None:
        self.isotropy = column_or_1d(isotropy, dtype=np.float64)
        self.task = column_or_1d(task, dtype=np.float64)
        self.params = list(params)
        self.task_std = None if task_std is None else column_or_1d(task_std, dtype=np.float64)
        check_consistent_length(self.isotropy, self.task, self.params, self.task_std)
        if chosen is not None and not 0 <= chosen < len(self.params):
            raise ValueError(
                f"chosen={chosen} must be None or the index of one of the {len(self.params)} "
                "candidates"
            )
        self.chosen = chosen
        self.floor = floor
        self.names = names
        self.pareto_ = _pareto(self.isotropy, self.task)
        if not len(self.pareto_):
            raise ValueError(
                f"no candidate has both scores {names[1]!r} and {names[0]!r}: one of them is "
                "always NaN; set error_score='raise' to see why"
            )

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        *,
        task: str | None = None,
        isotropy: str | None = None,
        ax: Any = None,
    ) -> Self:
        """Plot the candidates of a fitted search.

        Parameters
        ----------
        estimator : AdapterSearchCV or GridSearchCV
            Fitted search with a task score and an isotropy score; see
            :func:`~isoadapt.model_selection.make_isotropy_scorer`.
        task : str, default=None
            Name of the task score. None is that of ``refit``, if it is a
            :class:`~isoadapt.model_selection.BestAboveFloor`.
        isotropy : str, default=None
            Name of the isotropy score. None is that of ``refit``, as for `task`.
        ax : matplotlib Axes, default=None
            Axes to draw on, as for :meth:`plot`.

        Returns
        -------
        SearchFrontDisplay
            The display.

        Raises
        ------
        NotFittedError
            If the search is not fitted.
        ValueError
            If the search has no score of a name, if a name is missing, or if no candidate has both
            scores.
        """
        check_is_fitted(estimator, "cv_results_")
        results, rule = estimator.cv_results_, estimator.refit
        rule = rule if isinstance(rule, BestAboveFloor) else None
        task = _known_score("task", task or getattr(rule, "task", None), results)
        isotropy = _known_score("isotropy", isotropy or getattr(rule, "isotropy", None), results)
        return cls(
            results[_PREFIX + isotropy],
            results[_PREFIX + task],
            results["params"],
            task_std=results[f"std_test_{task}"],
            chosen=getattr(estimator, "best_index_", None),
            floor=rule.floor if rule is not None and isotropy == rule.isotropy else None,
            names=(isotropy, task),
        ).plot(ax=ax)

    def plot(self, *, ax: Any = None) -> Self:
        """Draw the plot.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on. None makes a new figure with pyplot.

        Returns
        -------
        SearchFrontDisplay
            The display itself.

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        ValueError
            If `ax` holds more than one Axes.
        """
        [self.ax_] = panels(ax, "SearchFrontDisplay", ["candidates"], (7.5, 4.5))
        self.figure_ = self.ax_.figure
        self._draw_candidates()
        self.floor_ = self.chosen_ = None
        if self.floor is not None:
            label = f"floor {self.floor:g}"
            self.floor_ = self.ax_.axvline(self.floor, color=colours()[3], ls="--", label=label)
        if self.chosen is not None:
            [self.chosen_] = self.ax_.plot(
                self.isotropy[self.chosen],
                self.task[self.chosen],
                "o",
                color=colours()[1],
                markerfacecolor="none",
                markeredgewidth=2,
                markersize=13,
                label=f"chosen: {literal(_text(self.params[self.chosen]))}",
                zorder=5,
            )
        xlabel, ylabel = (f"{name} (greater is better)" for name in self.names)
        self.ax_.set(xlabel=xlabel, ylabel=ylabel)
        plain(self.ax_)
        self.ax_.legend(
            fontsize=8, frameon=False, loc="lower left", bbox_to_anchor=(0.0, 1.01), ncols=2
        )
        self._label_candidates()
        return self

    def _draw_candidates(self) -> None:
        """Draw all candidates with both scores, and the Pareto set with its parameters."""
        scored = _scored(self.isotropy, self.task)
        x, y, label = self.isotropy[scored], self.task[scored], "candidate"
        if self.task_std is not None:
            error, label = self.task_std[scored], "candidate, ± 1 standard deviation over folds"
            grey = ink(self.ax_, 0.3)
            self.ax_.errorbar(x, y, error, fmt="none", color=grey, linewidth=0.8, zorder=1)
        grey = ink(self.ax_, 0.5)
        self.candidates_ = self.ax_.scatter(x, y, s=28, color=grey, zorder=2, label=label)
        [self.front_] = self.ax_.plot(
            self.isotropy[self.pareto_],
            self.task[self.pareto_],
            "o-",
            color=ink(self.ax_),
            linewidth=1.2,
            zorder=3,
            label="Pareto set",
        )
        self.unpenalised_ = None
        zero = [index for index in scored if "lam=0" in _text(self.params[index]).split(", ")]
        if zero:
            look = {"color": colours()[0], "ms": 9, "mfc": "none", "mew": 1.5, "zorder": 4}
            [self.unpenalised_] = self.ax_.plot(
                self.isotropy[zero], self.task[zero], "s", label="lam=0: no penalty", **look
            )

    def _label_candidates(self) -> None:
        """Label the Pareto set, the chosen candidate first, where no other label is in the way."""
        self.figure_.canvas.figure.draw_without_rendering()  # fixes where the labels are
        left, right = self.ax_.get_xlim()
        boxes: list[Any] = []
        for index in sorted(self.pareto_.tolist(), key=lambda each: each != self.chosen):
            on_the_right = self.isotropy[index] > (left + right) / 2
            text = self.ax_.annotate(
                literal(_text(self.params[index])),
                (self.isotropy[index], self.task[index]),
                xytext=(-9, -14) if on_the_right else (9, 7),  # beside a falling front
                textcoords="offset points",
                ha="right" if on_the_right else "left",
                fontsize=7,
            )
            box = text.get_window_extent()
            if any(box.overlaps(other) for other in boxes):
                text.remove()
            else:
                boxes.append(box)


def _known_score(parameter: str, name: str | None, results: Mapping[str, Any]) -> str:
    known = [key.removeprefix(_PREFIX) for key in results if key.startswith(_PREFIX)]
    if name is None:
        raise ValueError(
            f"{parameter}=None needs a search with refit=BestAboveFloor(...), which names the "
            f"scores; pass {parameter}=, one of {', '.join(known)}"
        )
    if name not in known:
        raise ValueError(
            f"{parameter}={name!r} is not a score of the search; {choices(name, known)}"
        )
    return name


def _scored(isotropy: NDArray[np.float64], task: NDArray[np.float64]) -> NDArray[np.intp]:
    return np.flatnonzero(~np.isnan(isotropy) & ~np.isnan(task))


def _pareto(isotropy: NDArray[np.float64], task: NDArray[np.float64]) -> NDArray[np.intp]:
    """Indices of the candidates that no other dominates, in ascending order of isotropy."""
    scored = _scored(isotropy, task)
    # Descending in isotropy, then in task: a candidate is dominated by one of those before it.
    order = scored[np.lexsort((-task[scored], -isotropy[scored]))]
    found: list[int] = []
    for index in order:
        last = found[-1] if found else None
        equal = last is not None and (isotropy[index], task[index]) == (isotropy[last], task[last])
        if last is None or task[index] > task[last] or equal:
            found.append(int(index))
    return np.array(found[::-1], dtype=np.intp)


def _text(params: Mapping[str, Any]) -> str:
    """Parameters without the names of the steps of a pipeline."""
    return ", ".join(
        f"{name.rpartition('__')[2]}={value:.3g}"
        if isinstance(value, float)
        else f"{name.rpartition('__')[2]}={value}"
        for name, value in params.items()
    )
