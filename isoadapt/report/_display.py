"""What the displays share: their panels, colours and legends."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_array

from isoadapt._utils.containers import as_matrix
from isoadapt._utils.imports import import_optional

_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# Grey is for what stays in the background.
COLOURS = [
    f"tab:{name}"
    for name in ("blue", "orange", "green", "red", "purple", "brown", "pink", "olive", "cyan")
]
DASHES = ("-", (0, (5, 2.5)), (0, (3, 1.5, 1, 1.5)), (0, (1, 1.5)))  # a curve shows below another


class Display:
    """A plot of one or more panels, which a subclass names and draws."""

    figure_: Any
    axes_: NDArray[Any]
    _panels: Sequence[str]
    _size: tuple[float, float]  # of a new figure
    _stacked = False  # whether the panels of a new figure are below each other

    def plot(self, *, ax: Any = None) -> Self:
        """Draw the plot on `ax`, one matplotlib Axes for each panel, or on a new figure of pyplot.

        The display itself is returned. ImportError is raised if matplotlib is not installed,
        ValueError if `ax` is anything else.
        """
        name = type(self).__name__
        self.axes_ = panels(ax, name, self._panels, self._size, stacked=self._stacked)
        self.figure_ = self.axes_[0].figure
        self._draw()
        for axes in self.axes_:
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(alpha=0.3, linewidth=0.6)
            axes.set_axisbelow(True)
        return self

    def _draw(self) -> None:
        raise NotImplementedError


def panels(
    ax: Any, feature: str, names: Sequence[str], size: tuple[float, float], *, stacked: bool = False
) -> NDArray[Any]:
    """Return one Axes for each name, those of `ax` or those of a new figure."""
    if ax is None:
        pyplot = import_optional("matplotlib.pyplot", feature=feature, extra="plot")
        shape = (len(names), 1) if stacked else (1, len(names))
        new = pyplot.subplots(*shape, squeeze=False, figsize=size, layout="constrained")[1]
        return np.asarray(new).ravel()
    given = np.asarray(ax, dtype=object).ravel()
    if len(given) != len(names) or not all(hasattr(each, "plot") for each in given):
        shown = [type(each).__name__ for each in given]
        raise ValueError(
            f"ax={shown} does not fit {feature}, which draws {len(names)} panel(s): "
            f"{', '.join(names)}; pass {len(names)} matplotlib Axes, or None for a new figure"
        )
    return given


def ink(axes: Any, share: float = 1.0) -> tuple[float, ...]:
    """Colour of the text of a panel, mixed with that of its background if `share` is below 1."""
    from matplotlib.colors import to_rgb

    text, background = to_rgb(axes.xaxis.label.get_color()), to_rgb(axes.get_facecolor())
    return tuple(share * np.array(text) + (1 - share) * np.array(background))


def printable(text: str) -> str:
    """Replace control characters and others that XML, and so SVG, cannot have."""
    return _NOT_XML.sub("\ufffd", text)


def literal(text: str) -> str:
    """Escape a text for matplotlib, which reads what is between two $ as mathematics."""
    return printable(text).replace("$", r"\$")


def legend_beside(axes: Any, entries: Mapping[str, Any], title: str | None = None) -> None:
    """Add a legend to the right of a panel, with a handle for each label."""
    look = {"title_fontsize": 8, "alignment": "left", "fontsize": 8, "frameon": False}
    place = {"loc": "upper left", "bbox_to_anchor": (1.02, 1.0), "borderaxespad": 0.0}
    axes.legend(entries.values(), entries.keys(), title=title, **look, **place)


def label_apart(axes: Any, labels: Iterable[tuple[float, float, str]]) -> None:
    """Write labels beside their points (x, y), except where an earlier label is."""
    axes.figure.canvas.figure.draw_without_rendering()  # fixes where the labels are
    middle = np.mean(axes.get_xlim())
    boxes: list[Any] = []
    for x, y, label in labels:
        right = x > middle
        side = {"xytext": (-9, -14) if right else (9, 7), "ha": "right" if right else "left"}
        look = {"textcoords": "offset points", "fontsize": 7}  # beside a falling front
        text = axes.annotate(literal(label), (x, y), **side, **look)
        box = text.get_window_extent()
        if any(box.overlaps(other) for other in boxes):
            text.remove()
        else:
            boxes.append(box)


def points(X: ArrayLike, name: str) -> NDArray[np.float64]:
    """Check embeddings of at least two rows that are not all equal."""
    array = check_array(as_matrix(X, name), dtype=np.float64, ensure_min_samples=2, input_name=name)
    if not np.ptp(array, axis=0).any():
        raise ValueError(
            f"{name} has {len(array)} equal rows, which have no variance to draw; pass embeddings "
            "of different texts"
        )
    return array
