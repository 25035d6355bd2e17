"""Forest plot of a comparison of adapters."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from isoadapt._utils.messages import choices
from isoadapt.model_selection import Comparison
from isoadapt.model_selection._compare._verdict import is_credited, is_explained, is_worse
from isoadapt.report._display import COLOURS, Display, ink, legend_beside, literal

_INTERVALS = {"score": ("ci_low", "ci_high"), "difference": ("difference_low", "difference_high")}

# Label, marker, colour or share of the colour of the text, and whether the marker is filled.
STYLES: dict[str, tuple[str, str, str | float, bool]] = {
    "baseline": ("no adapter", "D", 1.0, True),
    "control": ("control", "s", 0.55, False),
    "better": ("shown to be better", ">", COLOURS[0], True),
    "explained": ("better, but not shown to be\nbetter than a control", ">", COLOURS[0], False),
    "adapter": ("no difference shown", "o", 1.0, False),
    "worse": ("shown to be worse", "<", COLOURS[1], True),
}


class ComparisonDisplay(Display):
    """Forest plot of a comparison of adapters, with one panel for each use.

    Create it with :meth:`from_comparison`, which also draws it. Each row of a panel is a point with
    its 95 % interval; a vertical line is the value without an adapter. Greater is better. The look
    of a point is what the tests show after Holm's adjustment, and the legend says it.

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
        self, comparison: Comparison, *, quantity: str = "score", uses: Sequence[str] | None = None
    ) -> None:
        if quantity not in _INTERVALS:
            raise ValueError(f"quantity={quantity!r} is unknown; {choices(quantity, _INTERVALS)}")
        self.comparison = comparison
        self.quantity = quantity
        self.uses = list(comparison.uses if uses is None else uses)
        rows = max(len(comparison._rows_of(use)) for use in self.uses)
        self._panels, self._size = self.uses, (4.8 + 2.2 * len(self.uses), 1.5 + 0.27 * rows)

    @classmethod
    def from_comparison(
        cls,
        comparison: Comparison,
        *,
        quantity: str = "score",
        uses: Sequence[str] | None = None,
        ax: Any = None,
    ) -> Self:
        """Plot a comparison, with the parameters of the class, and `ax` as for :meth:`plot`."""
        return cls(comparison, quantity=quantity, uses=uses).plot(ax=ax)

    def _draw(self) -> None:
        self.containers_: dict[tuple[str, str], Any] = {}
        found: dict[str, Any] = {}
        for axes, use in zip(self.axes_, self.uses, strict=True):
            rows = self.comparison._rows_of(use)
            for y, row in enumerate(rows):
                drawn = self._draw_row(axes, y, row)
                found[finding(row)] = self.containers_[use, row["adapter"]] = drawn
            axes.set_yticks(range(len(rows)), [literal(row["adapter"]) for row in rows])
            axes.tick_params(labelleft=axes is self.axes_[0])
            prefix = "" if self.quantity == "score" else "difference in "
            axes.set(xlabel=prefix + rows[0]["metric"], ylim=(len(rows) - 0.5, -0.5))
            axes.set_title(use, fontsize=10)
            axes.locator_params(axis="x", nbins=5)
        entries = {style[0]: found[key] for key, style in STYLES.items() if key in found}
        legend_beside(self.axes_[-1], entries, "Greater is better.\nLines are 95 % intervals.")

    def _draw_row(self, axes: Any, y: int, row: dict[str, Any]) -> Any:
        low, high = _INTERVALS[self.quantity]
        value = row[self.quantity]
        # The row that the others are compared with has a score, but no difference from itself.
        if np.isnan(value) and not np.isnan(row["score"]):
            value = 0.0
        if row["kind"] == "baseline":
            axes.axvline(value, color=ink(axes), linewidth=0.9, linestyle="--", zorder=1)
        reach = np.array([[value - row[low]], [row[high] - value]])
        _, marker, given, filled = STYLES[finding(row)]
        colour = given if isinstance(given, str) else ink(axes, given)
        look = {"color": colour, "mfc": colour if filled else axes.get_facecolor()}
        xerr = None if np.isnan(reach).any() else reach
        return axes.errorbar(value, y, xerr=xerr, fmt=marker, ms=5, lw=1.3, **look)


def finding(row: Mapping[str, Any]) -> str:
    """Key of the style of a row: what the tests show, else its kind."""
    shown = {"better": is_credited, "explained": is_explained, "worse": is_worse}
    return next((name for name, holds in shown.items() if holds(row)), row["kind"])
