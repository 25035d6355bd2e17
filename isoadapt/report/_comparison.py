"""Forest plot of a comparison of adapters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from isoadapt._utils.messages import choices
from isoadapt.model_selection import Comparison
from isoadapt.model_selection._compare._verdict import is_credited, is_explained, is_worse
from isoadapt.report._axes import colours, ink, legend_beside, literal, panels, plain

_COLUMNS = {
    "score": ("score", "ci_low", "ci_high"),
    "difference": ("difference", "difference_low", "difference_high"),
}


class _Style(NamedTuple):
    """How the point of a row is drawn."""

    label: str
    marker: str
    colour: int | None = None  # index in the colours of the style; None is that of the text
    share: float = 1.0  # of the colour of the text, the rest is that of the background
    filled: bool = False


_STYLES = {
    "baseline": _Style("no adapter", "D", filled=True),
    "control": _Style("control", "s", share=0.55),
    "better": _Style("shown to be better", ">", 0, filled=True),
    "explained": _Style("better, but not shown to be\nbetter than a control", ">", 0),
    "adapter": _Style("no difference shown", "o"),
    "worse": _Style("shown to be worse", "<", 1, filled=True),
}


class ComparisonDisplay:
    """Forest plot of a comparison of adapters, with one panel for each use.

    Create it with :meth:`from_comparison`, which also draws it. Each row of a panel is a point with
    its 95 % interval; a vertical line is the value without an adapter. Greater is better. Controls
    are grey squares. Filled triangles are adapters that the tests show, after Holm's adjustment, to
    be better than no adapter and than their controls (pointing to the right), or worse than no
    adapter (to the left). A hollow triangle is an adapter that is shown to be better than no
    adapter but not than a control. For the others, hollow circles, no difference is shown.

    Parameters
    ----------
    comparison : Comparison
        Result of :func:`~isoadapt.model_selection.compare_adapters`.
    quantity : {"score", "difference"}, default="score"
        Draw the scores, or their differences from no adapter. The tests are about differences. The
        intervals of two scores may overlap although their difference is shown not to be zero,
        because both are judged on the same rows.
    uses : sequence of str, default=None
        Uses to draw. None are all of the comparison.

    Attributes
    ----------
    figure_ : matplotlib Figure
        The figure.
    axes_ : ndarray of matplotlib Axes, shape (n_uses,)
        One panel for each use.
    containers_ : dict of (str, str) to matplotlib ErrorbarContainer
        Point and interval by use and name of the adapter.

    Raises
    ------
    TypeError
        If `comparison` is not a Comparison.
    ValueError
        If a use is not in the comparison, or if `quantity` is unknown.

    Examples
    --------
    >>> from sklearn.datasets import make_classification
    >>> from isoadapt.model_selection import compare_adapters
    >>> from isoadapt.report import ComparisonDisplay
    >>> X, y = make_classification(300, 8, n_informative=5, random_state=0)
    >>> comparison = compare_adapters(X, y, ["Whitening"], encoder_saw=False)  # doctest: +SKIP
    >>> display = ComparisonDisplay.from_comparison(comparison)  # doctest: +SKIP
    >>> display.figure_.savefig("comparison.png")  # doctest: +SKIP
    """

    def __init__(
        self,
        comparison: Comparison,
        *,
        quantity: str = "score",
        uses: Sequence[str] | None = None,
    ) -> None:
        if not isinstance(comparison, Comparison):
            raise TypeError(
                f"comparison is a {type(comparison).__name__}; pass the Comparison that "
                "compare_adapters returns"
            )
        if quantity not in _COLUMNS:
            raise ValueError(f"quantity={quantity!r} is unknown; {choices(quantity, _COLUMNS)}")
        self.comparison = comparison
        self.quantity = quantity
        self.uses = list(comparison.uses if uses is None else uses)
        for use in self.uses:
            comparison._rows_of(use)  # raises for a use that is not in the comparison
        if not self.uses:
            raise ValueError(f"uses is empty; choose from {', '.join(comparison.uses)}")

    @classmethod
    def from_comparison(
        cls,
        comparison: Comparison,
        *,
        quantity: str = "score",
        uses: Sequence[str] | None = None,
        ax: Any = None,
    ) -> Self:
        """Plot a comparison.

        Parameters
        ----------
        comparison : Comparison
            Result of :func:`~isoadapt.model_selection.compare_adapters`.
        quantity : {"score", "difference"}, default="score"
            Draw the scores, or their differences from no adapter.
        uses : sequence of str, default=None
            Uses to draw. None are all of the comparison.
        ax : matplotlib Axes, one for each use, default=None
            Axes to draw on, as for :meth:`plot`.

        Returns
        -------
        ComparisonDisplay
            The display.

        Raises
        ------
        ValueError
            If a use is not in the comparison, or if `quantity` is unknown.
        """
        return cls(comparison, quantity=quantity, uses=uses).plot(ax=ax)

    def plot(self, *, ax: Any = None) -> Self:
        """Draw the plot.

        Parameters
        ----------
        ax : matplotlib Axes, one for each use, default=None
            Axes to draw on. None makes a new figure with pyplot.

        Returns
        -------
        ComparisonDisplay
            The display itself.

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        ValueError
            If the number of Axes is not the number of uses.
        """
        rows = {use: self.comparison._rows_of(use) for use in self.uses}
        longest = max(map(len, rows.values()))
        size = (4.8 + 2.2 * len(rows), 1.5 + 0.27 * longest)
        self.axes_ = panels(ax, "ComparisonDisplay", self.uses, size)
        self.figure_ = self.axes_[0].figure
        self.containers_: dict[tuple[str, str], Any] = {}
        for axes, use in zip(self.axes_, self.uses, strict=True):
            self._draw(axes, use, rows[use])
        self._add_legend()
        return self

    def _draw(self, axes: Any, use: str, rows: list[dict[str, Any]]) -> None:
        """Draw the panel of a use; the first row is at the top."""
        middle, low, high = _COLUMNS[self.quantity]
        for y, row in enumerate(rows):
            style = _STYLES[_finding(row)]
            colour = ink(axes, style.share) if style.colour is None else colours()[style.colour]
            # The row that the others are compared with has a score, but no difference from itself.
            reference = np.isnan(row[middle]) and not np.isnan(row["score"])
            value = 0.0 if reference else row[middle]
            if row["kind"] == "baseline":
                axes.axvline(value, color=ink(axes), linewidth=0.9, linestyle="--", zorder=1)
            reach = np.array([[value - row[low]], [row[high] - value]])
            self.containers_[use, row["adapter"]] = axes.errorbar(
                value,
                y,
                xerr=None if np.isnan(reach).any() else reach,
                fmt=style.marker,
                color=colour,
                markerfacecolor=colour if style.filled else axes.get_facecolor(),
                label=style.label,
                markersize=5,
                linewidth=1.3,
            )
        first = axes is self.axes_[0]
        names = [literal(row["adapter"]) if first else "" for row in rows]
        axes.set_yticks(range(len(rows)), names)
        label = rows[0]["metric"]
        axes.set_xlabel(label if self.quantity == "score" else f"difference in {label}")
        axes.locator_params(axis="x", nbins=5)
        axes.set_title(use, fontsize=10)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        plain(axes)

    def _add_legend(self) -> None:
        """Add one legend for all panels, beside the last one."""
        found: dict[str, Any] = {}
        for axes in self.axes_:
            handles, labels = axes.get_legend_handles_labels()
            found |= dict(zip(labels, handles, strict=True))
        shown = [style.label for style in _STYLES.values() if style.label in found]
        title = "Greater is better.\nLines are 95 % intervals."
        legend_beside(self.axes_[-1], {label: found[label] for label in shown}, title)


def _finding(row: dict[str, Any]) -> str:
    """Key of the style of a row: what the tests show, else its kind."""
    shown = {"better": is_credited, "explained": is_explained, "worse": is_worse}
    return next((name for name, holds in shown.items() if holds(row)), row["kind"])
