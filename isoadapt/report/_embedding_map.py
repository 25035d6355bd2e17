"""Map of embeddings in two dimensions, before and after an adapter."""

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.decomposition import PCA
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_consistent_length, column_or_1d

from isoadapt._utils.containers import as_values
from isoadapt.report._display import COLOURS, Display, ink, legend_beside, literal, points

_OTHERS = "other classes"


class EmbeddingMapDisplay(Display):
    """Map of embeddings before and after an adapter, coloured by class.

    Create it with :meth:`from_embeddings` or :meth:`from_estimator`, which also draw it. Each panel
    shows its set in the plane of its own first two principal directions, and its title the share of
    the variance in this plane. The unit of both axes is the standard deviation along the first
    direction, and both panels have the same limits: a flat cloud is anisotropic, a round one is
    isotropic in its plane. Classes that lie apart in other directions overlap on the map, and
    neighbours on the map need not be neighbours among the embeddings. Positions and distances
    cannot be compared between the panels. The map does not show that an adapter helps: measure the
    use itself, for example with :func:`~isoadapt.model_selection.compare_adapters`.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Embeddings before the adapter.
    Z : array-like of shape (n_samples, n_adapted_features)
        Embeddings of the same rows after the adapter.
    y : array-like of shape (n_samples,), default=None
        Class of each row.

    Attributes
    ----------
    figure_ : matplotlib Figure
        The figure.
    axes_ : ndarray of matplotlib Axes, shape (2,)
        The panels before and after.
    points_ : dict of (str, str) to matplotlib PathCollection
        The points by panel, "before" or "after", and by class. Without classes the class is "". The
        nine most frequent classes have colours, all others are grey, under "other classes".

    Raises
    ------
    ValueError
        If X and Z do not have the same rows and at least two columns each, if one is not finite or
        has no variance, or if `y` has another length or continuous values.

    Examples
    --------
    >>> from sklearn.datasets import make_classification
    >>> from isoadapt import Whitening
    >>> from isoadapt.report import EmbeddingMapDisplay
    >>> X, y = make_classification(300, 8, random_state=0)
    >>> display = EmbeddingMapDisplay.from_estimator(Whitening().fit(X), X, y)  # doctest: +SKIP
    >>> display.figure_.savefig("map.png")  # doctest: +SKIP
    """

    _panels = ("before", "after")
    _size = (10, 4.5)

    def __init__(self, X: ArrayLike, Z: ArrayLike, y: Any = None) -> None:
        (self.before, first), (self.after, second) = _projected(X, "X"), _projected(Z, "Z")
        self.shares = first, second
        self.y = None if y is None else column_or_1d(as_values(y))
        check_consistent_length(self.before, self.after, self.y)
        if y is not None and type_of_target(self.y, input_name="y") == "continuous":
            raise ValueError("y has continuous values; pass classes, such as np.digitize(y, bins)")

    @classmethod
    def from_embeddings(cls, X: ArrayLike, Z: ArrayLike, y: Any = None, *, ax: Any = None) -> Self:
        """Plot embeddings, with the parameters of the class, and `ax` as for :meth:`plot`."""
        return cls(X, Z, y).plot(ax=ax)

    @classmethod
    def from_estimator(cls, estimator: Any, X: ArrayLike, y: Any = None, *, ax: Any = None) -> Self:
        """Plot embeddings before and after an adapter, best one that was fitted to other rows."""
        return cls.from_embeddings(X, estimator.transform(X), y, ax=ax)

    def _draw(self) -> None:
        self._rows = self._rows_by_class()
        self.points_: dict[tuple[str, str], Any] = {}
        size = 12 * min(1.0, 2_000 / len(self.before)) ** 0.75
        both = np.vstack([self.before, self.after])
        limits = both.min() - 0.05 * np.ptp(both), both.max() + 0.05 * np.ptp(both)
        sets = zip(self.axes_, self._panels, (self.before, self.after), self.shares, strict=True)
        for axes, panel, coordinates, share in sets:
            colours = iter(COLOURS)
            for label, rows in self._rows.items():
                colour = ink(axes, 0.3) if label == _OTHERS else next(colours)
                self.points_[panel, label] = axes.scatter(
                    *coordinates[rows].T, s=size, color=colour, alpha=0.7, linewidths=0
                )
            axes.set(title=f"{panel} ({100 * share:.3g} % of the variance)", aspect="equal")
            axes.set(xlim=limits, xlabel="its principal direction 1 (in standard deviations)")
            axes.set(ylim=limits, ylabel="its principal direction 2 (same unit)")
        if self.y is not None:
            entries = {literal(label): self.points_["after", label] for label in self._rows}
            legend_beside(self.axes_[1], entries, "class")
            for handle in self.axes_[1].get_legend().legend_handles:
                handle.set_sizes([20.0])

    def _rows_by_class(self) -> dict[str, NDArray[np.intp]]:
        """Rows of each class; those of rare classes are first, below the others."""
        if self.y is None:
            return {"": np.arange(len(self.before))}
        names, counts = np.unique(self.y, return_counts=True)
        coloured = np.sort(names[np.argsort(-counts, kind="stable")[: len(COLOURS)]])
        others = np.flatnonzero(~np.isin(self.y, coloured))
        rare = {_OTHERS: others} if len(others) else {}
        return rare | {str(name): np.flatnonzero(self.y == name) for name in coloured}


def _projected(X: ArrayLike, name: str) -> tuple[NDArray[np.float64], float]:
    """Project X (n, d) on its principal plane, (n, 2); return the share of its variance too."""
    array = points(X, name)
    array = array - array.mean(axis=0)  # the solver is inexact with a large mean
    plane = PCA(2, svd_solver="covariance_eigh").fit_transform(array)
    return plane / plane[:, 0].std(), float(plane.var(axis=0).sum() / array.var(axis=0).sum())
