"""Map of embeddings in two dimensions, before and after an adapter."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.decomposition import PCA
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_consistent_length, column_or_1d

from isoadapt._utils.containers import as_values
from isoadapt.report._axes import colours, ink, literal, panels, plain, points

_PANELS = ["before", "after"]
_MOST = 20_000  # rows that are drawn


class EmbeddingMapDisplay:
    """Map of embeddings before and after an adapter, coloured by class.

    Create it with :meth:`from_embeddings` or :meth:`from_estimator`, which also draw it. Each panel
    shows its set in the plane of its own first two principal directions. The unit of both axes is
    the standard deviation along the first direction, and both panels have the same limits: a flat
    cloud is anisotropic, a round one is isotropic in its plane. The title of a panel gives the
    share of the variance of the set that it shows.

    The map cannot show more than these two directions. With a small share, classes that lie apart
    in other directions overlap on the map, and neighbours on the map need not be neighbours among
    the embeddings. The panels have different directions and units, so positions and distances
    cannot be compared between them. The map does not show that an adapter helps: measure the use
    itself, for example with :func:`~isoadapt.model_selection.compare_adapters`.

    Parameters
    ----------
    before : array-like of shape (n_samples, 2)
        Coordinates before the adapter.
    after : array-like of shape (n_samples, 2)
        Coordinates after the adapter.
    y : array-like of shape (n_samples,), default=None
        Class of each row.
    shares : tuple of two float, default=None
        Share of the variance that the coordinates have, before and after.

    Attributes
    ----------
    figure_ : matplotlib Figure
        The figure.
    axes_ : ndarray of matplotlib Axes, shape (2,)
        The panels before and after.
    points_ : dict of (str, str) to matplotlib PathCollection
        The points by panel, "before" or "after", and by class. Without classes the class is "". The
        most frequent classes have the colours of the matplotlib style, nine by default. The points
        of all others are grey, under the class "other classes". Of more than 20,000 rows, a random
        20,000 are drawn.

    Raises
    ------
    ValueError
        If the coordinates and the classes do not fit together.

    Examples
    --------
    >>> from sklearn.datasets import make_classification
    >>> from isoadapt import Whitening
    >>> from isoadapt.report import EmbeddingMapDisplay
    >>> X, y = make_classification(300, 8, random_state=0)
    >>> display = EmbeddingMapDisplay.from_estimator(Whitening().fit(X), X, y)  # doctest: +SKIP
    >>> display.figure_.savefig("map.png")  # doctest: +SKIP
    """

    def __init__(
        self,
        before: ArrayLike,
        after: ArrayLike,
        y: ArrayLike | None = None,
        *,
        shares: tuple[float, float] | None = None,
    ) -> None:
        self.before, self.after = points(before, "before"), points(after, "after")
        for name, coordinates in (("before", self.before), ("after", self.after)):
            if coordinates.shape[1] != 2:
                raise ValueError(
                    f"{name} has {coordinates.shape[1]} columns, but a map has 2; "
                    "EmbeddingMapDisplay.from_embeddings projects embeddings"
                )
        self.y = None if y is None else _classes(y)
        check_consistent_length(self.before, self.after, self.y)
        self.shares = shares

    @classmethod
    def from_embeddings(
        cls, X: ArrayLike, Z: ArrayLike, y: ArrayLike | None = None, *, ax: Any = None
    ) -> Self:
        """Project embeddings before and after an adapter and plot them.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Embeddings before the adapter.
        Z : array-like of shape (n_samples, n_adapted_features)
            Embeddings of the same rows after the adapter.
        y : array-like of shape (n_samples,), default=None
            Class of each row.
        ax : two matplotlib Axes, default=None
            Axes to draw on, as for :meth:`plot`.

        Returns
        -------
        EmbeddingMapDisplay
            The display.

        Raises
        ------
        ValueError
            If X and Z do not have the same rows and at least two columns each, if one is not finite
            or has no variance, or if `y` has another length or continuous values.
        """
        (before, first), (after, second) = _projected(X, "X"), _projected(Z, "Z")
        return cls(before, after, y, shares=(first, second)).plot(ax=ax)

    @classmethod
    def from_estimator(
        cls, estimator: Any, X: ArrayLike, y: ArrayLike | None = None, *, ax: Any = None
    ) -> Self:
        """Plot embeddings before and after a fitted adapter.

        Parameters
        ----------
        estimator : fitted transformer
            The adapter.
        X : array-like of shape (n_samples, n_features)
            Embeddings before the adapter, best of rows that it was not fitted to.
        y : array-like of shape (n_samples,), default=None
            Class of each row.
        ax : two matplotlib Axes, default=None
            Axes to draw on, as for :meth:`plot`.

        Returns
        -------
        EmbeddingMapDisplay
            The display.

        Raises
        ------
        ValueError
            As for :meth:`from_embeddings`.
        """
        return cls.from_embeddings(X, estimator.transform(X), y, ax=ax)

    def plot(self, *, ax: Any = None) -> Self:
        """Draw the plot.

        Parameters
        ----------
        ax : two matplotlib Axes, default=None
            Axes to draw on, the first for the embeddings before the adapter. None makes a new
            figure with pyplot.

        Returns
        -------
        EmbeddingMapDisplay
            The display itself.

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        ValueError
            If `ax` does not hold two Axes.
        """
        self.axes_ = panels(ax, "EmbeddingMapDisplay", _PANELS, (10, 4.5))
        self.figure_ = self.axes_[0].figure
        self.points_: dict[tuple[str, str], Any] = {}
        self._rows: dict[tuple[str, str], NDArray[np.intp]] = {}  # of each point
        shares = self.shares or (None, None)
        both = np.vstack([self.before, self.after])
        margin = 0.05 * np.ptp(both)
        limits = both.min() - margin, both.max() + margin
        for axes, name, share in zip(self.axes_, _PANELS, shares, strict=True):
            self._draw(axes, name)
            shown = "" if share is None else f" ({100 * share:.3g} % of the variance)"
            axes.set(title=name + shown, xlim=limits, ylim=limits, aspect="equal")
            axes.set_xlabel("its principal direction 1 (in standard deviations)")
            axes.set_ylabel("its principal direction 2 (same unit)")
            plain(axes)
        if self.y is not None:
            own = {literal(c): drawn for (where, c), drawn in self.points_.items() if where == name}
            look = {"frameon": False, "loc": "upper left", "bbox_to_anchor": (1.02, 1.0)}
            legend = axes.legend(own.values(), own.keys(), title="class", **look)
            for handle in legend.legend_handles:
                handle.set_sizes([20.0])
        return self

    def _draw(self, axes: Any, panel: str) -> None:
        """Draw the points of a panel; grey ones lie below the others."""
        coordinates, y, palette = getattr(self, panel), self.y, colours()
        rows = np.arange(len(coordinates))
        if len(rows) > _MOST:
            rows = np.random.default_rng(0).choice(len(rows), _MOST, replace=False)
        style = {"s": 12 * min(1.0, 2_000 / len(rows)) ** 0.75, "alpha": 0.7, "linewidths": 0}
        if y is None:
            groups: list[tuple[str, Any, NDArray[np.intp]]] = [("", palette[0], rows)]
        else:
            names, counts = np.unique(y[rows], return_counts=True)
            coloured = np.sort(names[np.argsort(-counts, kind="stable")[: len(palette)]])
            others = rows[~np.isin(y[rows], coloured)]
            groups = [("other classes", ink(axes, 0.3), others)] if len(others) else []
            for colour, name in zip(palette, coloured, strict=False):
                groups.append((str(name), colour, rows[y[rows] == name]))
        for label, colour, own in groups:
            self._rows[panel, label] = own
            self.points_[panel, label] = axes.scatter(
                *coordinates[own].T, color=colour, label=literal(label), **style
            )


def _projected(X: ArrayLike, name: str) -> tuple[NDArray[np.float64], float]:
    """Project X (n, d) on its principal plane, (n, 2); return the share of its variance too."""
    array = points(X, name)
    if array.shape[1] < 2:
        raise ValueError(f"{name} has 1 column; a map needs embeddings with at least 2")
    array = array - array.mean(axis=0)  # the solver is inexact with a large mean
    pca = PCA(2, svd_solver="covariance_eigh").fit(array)
    plane = pca.transform(array)
    return plane / plane[:, 0].std(), float(pca.explained_variance_ratio_.sum())


def _classes(y: ArrayLike) -> NDArray[Any]:
    classes = column_or_1d(as_values(y))
    if type_of_target(classes, input_name="y") == "continuous":
        raise ValueError(
            "y has continuous values, but the colours are those of classes; pass classes, such as "
            "np.digitize(y, bins), or None"
        )
    return np.asarray(classes)
