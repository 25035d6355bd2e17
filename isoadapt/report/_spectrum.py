"""Plot of spectra and of the explained variance."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import column_or_1d

from isoadapt._utils.messages import choices
from isoadapt.geometry._spread import spectrum
from isoadapt.report._axes import (
    DASHES,
    MOST_COLOURS,
    colours,
    ink,
    legend_beside,
    literal,
    panels,
    plain,
    points,
)

_PANELS = ["spectrum", "cumulative explained variance"]
_EQUAL = "equal shares: isotropic"
_LOWEST = 1e-8  # share of variance below which a spectrum is cut off


class SpectrumDisplay:
    """Plot of the spectra of embeddings and of their cumulative explained variance.

    Create it with :meth:`from_embeddings` or :meth:`from_estimator`, which also draw it. The
    baseline is a broad line in the colour of the text, up to four highlighted sets have colours,
    and all others are grey. Dashes let a curve show below another one that coincides with it. A
    dotted line shows equal shares of variance, those of isotropic embeddings, if all sets have the
    same number of directions.

    Parameters
    ----------
    shares : mapping of str to array-like of shape (n_directions,)
        Share of the variance in each principal direction by the label of the set, largest first.
    baseline : str, default=None
        Label of the baseline. None is the first label.
    highlight : sequence of str, default=None
        Labels of up to four coloured curves. None are the first four after the baseline.

    Attributes
    ----------
    figure_ : matplotlib Figure
        The figure.
    axes_ : ndarray of matplotlib Axes, shape (2,)
        Panel of the spectra and panel of the cumulative explained variance.
    lines_ : dict of str to tuple of two matplotlib Line2D
        The two curves of each label.

    Raises
    ------
    ValueError
        If there are no shares, if they are not positive, descending and of sum 1, or if a label
        is unknown or highlighted twice.

    Examples
    --------
    >>> import numpy as np
    >>> from isoadapt import Whitening
    >>> from isoadapt.report import SpectrumDisplay
    >>> X = np.random.default_rng(0).normal(size=(300, 4)) * [8, 4, 2, 1]
    >>> display = SpectrumDisplay.from_estimator(Whitening().fit(X), X)  # doctest: +SKIP
    >>> display.figure_.savefig("spectra.png")  # doctest: +SKIP
    """

    def __init__(
        self,
        shares: Mapping[str, ArrayLike],
        *,
        baseline: str | None = None,
        highlight: Sequence[str] | None = None,
    ) -> None:
        self.shares = {label: _checked(values, label) for label, values in shares.items()}
        if not self.shares:
            raise ValueError("shares is empty; pass at least one set of embeddings by its label")
        labels = list(self.shares)
        self.baseline = labels[0] if baseline is None else baseline
        others = [label for label in labels if label != self.baseline]
        self.highlight = others[:MOST_COLOURS] if highlight is None else list(highlight)
        for name, chosen in (("baseline", [self.baseline]), ("highlight", self.highlight)):
            for label in chosen:
                if label not in labels:
                    raise ValueError(f"{name}: there is no set {label!r}; {choices(label, labels)}")
        if len(set(self.highlight) - {self.baseline}) < len(self.highlight):
            raise ValueError(
                f"highlight={self.highlight} names a set twice, or the baseline "
                f"{self.baseline!r}; name other sets once"
            )
        if len(self.highlight) > MOST_COLOURS:
            raise ValueError(
                f"highlight has {len(self.highlight)} labels; name at most {MOST_COLOURS}, because "
                "more colours cannot be told apart. The other sets are drawn in grey"
            )

    @classmethod
    def from_embeddings(
        cls,
        embeddings: ArrayLike | Mapping[str, ArrayLike],
        *,
        baseline: str | None = None,
        highlight: Sequence[str] | None = None,
        ax: Any = None,
    ) -> Self:
        """Compute and plot the spectra of embeddings.

        Parameters
        ----------
        embeddings : array-like of shape (n_samples, n_features), or mapping of str to array-like
            Embeddings, or several sets of embeddings by their labels.
        baseline : str, default=None
            Label of the baseline. None is the first label.
        highlight : sequence of str, default=None
            Labels of up to four coloured curves. None are the first four after the baseline.
        ax : two matplotlib Axes, default=None
            Axes to draw on, as for :meth:`plot`.

        Returns
        -------
        SpectrumDisplay
            The display.

        Raises
        ------
        ValueError
            If embeddings are not finite matrices with at least two different rows, or if a label
            is unknown.
        """
        sets = embeddings if isinstance(embeddings, Mapping) else {"embeddings": embeddings}
        shares = {label: _shares(X, f"embeddings[{label!r}]") for label, X in sets.items()}
        return cls(shares, baseline=baseline, highlight=highlight).plot(ax=ax)

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: ArrayLike,
        *,
        baseline: str = "no adapter",
        highlight: Sequence[str] | None = None,
        ax: Any = None,
    ) -> Self:
        """Plot the spectra of embeddings before and after fitted adapters.

        Parameters
        ----------
        estimator : fitted transformer, or mapping of str to fitted transformer
            An adapter, or several by their labels. The label of a single one is its class.
        X : array-like of shape (n_samples, n_features)
            Embeddings before the adapter, best of rows that it was not fitted to. The spectrum of
            rows that it was fitted to is flatter.
        baseline : str, default="no adapter"
            Label of X.
        highlight : sequence of str, default=None
            Labels of up to four coloured curves. None are the first four adapters.
        ax : two matplotlib Axes, default=None
            Axes to draw on, as for :meth:`plot`.

        Returns
        -------
        SpectrumDisplay
            The display.

        Raises
        ------
        ValueError
            If X is not a finite matrix with at least two different rows, or if a label is unknown
            or used twice.
        """
        if not isinstance(estimator, Mapping):
            estimator = {type(estimator).__name__: estimator}
        if baseline in estimator:
            raise ValueError(
                f"baseline={baseline!r} is also the label of an estimator; choose another label"
            )
        adapted = {label: each.transform(X) for label, each in estimator.items()}
        return cls.from_embeddings({baseline: X, **adapted}, highlight=highlight, ax=ax)

    def plot(self, *, ax: Any = None) -> Self:
        """Draw the plot.

        Parameters
        ----------
        ax : two matplotlib Axes, default=None
            Axes to draw on, the first for the spectra, the second for the cumulative explained
            variance. None makes a new figure with pyplot.

        Returns
        -------
        SpectrumDisplay
            The display itself.

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        ValueError
            If `ax` does not hold two Axes.
        """
        self.axes_ = panels(ax, "SpectrumDisplay", _PANELS, (10, 4.2))
        self.figure_ = self.axes_[0].figure
        self.lines_: dict[str, tuple[Any, Any]] = {}
        rest = [label for label in self.shares if label not in {self.baseline, *self.highlight}]
        for label in [*rest, self.baseline, *self.highlight]:
            self._draw(label)
        self._draw_equal()
        spectra, cumulative = self.axes_
        lowest = min(values[values > _LOWEST].min() for values in self.shares.values())
        spectra.set(xscale="log", yscale="log", ylim=(lowest / 2, 1.5), ylabel="share of variance")
        cumulative.set(xscale="log", ylim=(0, 1.02), ylabel="cumulative explained variance")
        for axes in self.axes_:
            axes.set_xlabel("principal direction")
            plain(axes)
        self._add_legend(rest)
        return self

    def _draw(self, label: str) -> None:
        """Draw both curves of a label."""
        style: dict[str, Any] = {"color": ink(self.axes_[0], 0.3), "linewidth": 1.0, "zorder": 2}
        if label == self.baseline:
            style = {"color": ink(self.axes_[0]), "linewidth": 3.2, "zorder": 3}
        elif label in self.highlight:
            place = self.highlight.index(label)
            style = {"color": colours()[place], "linestyle": DASHES[place], "zorder": 4}
            style["linewidth"] = 2.2 - 0.2 * place
        values = self.shares[label]
        x = np.arange(1, len(values) + 1)
        spectra, cumulative = self.axes_
        [first] = spectra.plot(x, values, label=label, **style)
        [second] = cumulative.plot(x, values.cumsum(), label=label, **style)
        self.lines_[label] = (first, second)

    def _draw_equal(self) -> None:
        """Draw equal shares, if all sets have the same number of directions."""
        sizes = {len(values) for values in self.shares.values()}
        if len(sizes) == 1:
            size = sizes.pop()
            x, colour = np.arange(1, size + 1), ink(self.axes_[0], 0.7)
            style = {"color": colour, "linestyle": ":", "linewidth": 1.2}
            self.axes_[0].plot(x, np.full(size, 1 / size), label=_EQUAL, **style)
            self.axes_[1].plot(x, x / size, label=_EQUAL, **style)

    def _add_legend(self, rest: list[str]) -> None:
        """Add a legend beside the panels in which all grey curves share one entry."""
        shown = [self.baseline, *self.highlight]
        entries = {literal(label): self.lines_[label][0] for label in shown}
        if rest:
            names = literal(textwrap.fill(f"grey: {', '.join(rest)}", 30))
            entries[names] = self.lines_[rest[0]][0]
        last = self.axes_[0].lines[-1]
        if last.get_label() == _EQUAL:
            entries[_EQUAL] = last
        legend_beside(self.axes_[1], entries)


def _shares(X: ArrayLike, name: str) -> NDArray[np.float64]:
    """Shares of the variance (min(n, d),) in the principal directions of X (n, d)."""
    variances = spectrum(torch.from_numpy(points(X, name))).numpy()
    return np.asarray(variances / variances.sum())


def _checked(values: ArrayLike, label: str) -> NDArray[np.float64]:
    shares = column_or_1d(values, dtype=np.float64)
    falling = bool((shares >= 0).all() and (np.diff(shares) <= 1e-12).all())
    if not (falling and np.isclose(shares.sum(), 1)):
        raise ValueError(
            f"shares[{label!r}] must be shares of variance, none negative, largest first, with the "
            "sum 1; SpectrumDisplay.from_embeddings computes them from embeddings"
        )
    return shares
