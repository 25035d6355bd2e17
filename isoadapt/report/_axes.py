"""Axes to draw on, colours, and checks that the displays share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_array

from isoadapt._utils.containers import as_matrix
from isoadapt._utils.imports import import_optional

MOST_COLOURS = 4  # curves that are told apart by colour
DASHES = ("-", (0, (5, 2.5)), (0, (3, 1.5, 1, 1.5)), (0, (1, 1.5)))  # a curve shows below another
_DEFAULT = ("blue", "orange", "green", "red")
_GREY = 0.1  # range of red, green and blue below which a colour is taken as grey


def ink(axes: Any, share: float = 1.0) -> tuple[float, ...]:
    """Colour of the text of a panel, mixed with that of its background if `share` is below 1."""
    to_rgb = import_optional("matplotlib.colors", feature="A display", extra="plot").to_rgb
    text, background = to_rgb(axes.xaxis.label.get_color()), to_rgb(axes.get_facecolor())
    return tuple(share * np.array(text) + (1 - share) * np.array(background))


def colours() -> list[str]:
    """Colours of the matplotlib style without greys, or default ones if these are few."""
    matplotlib = import_optional("matplotlib", feature="A display", extra="plot")
    colors = import_optional("matplotlib.colors", feature="A display", extra="plot")
    cycle = map(colors.to_hex, matplotlib.rcParams["axes.prop_cycle"].by_key().get("color", []))
    found = [colour for colour in dict.fromkeys(cycle) if np.ptp(colors.to_rgb(colour)) > _GREY]
    return found if len(found) >= MOST_COLOURS else [f"tab:{name}" for name in _DEFAULT]


def literal(text: str) -> str:
    """Escape a text for matplotlib, which reads what is between two $ as mathematics."""
    return text.replace("$", r"\$")


def panels(
    ax: Any, feature: str, names: list[str], size: tuple[float, float], *, rows: bool = False
) -> NDArray[Any]:
    """Return one Axes for each name, those of `ax` or new ones, below each other with `rows`."""
    if ax is None:
        pyplot = import_optional("matplotlib.pyplot", feature=feature, extra="plot")
        shape = (len(names), 1) if rows else (1, len(names))
        new = pyplot.subplots(*shape, squeeze=False, figsize=size, layout="constrained")[1]
        return np.asarray(new).ravel()
    import_optional("matplotlib", feature=feature, extra="plot")
    given = np.asarray(ax, dtype=object).ravel()
    if len(given) != len(names) or not all(hasattr(each, "plot") for each in given):
        shown = [type(each).__name__ for each in given]
        raise ValueError(
            f"ax={shown} does not fit {feature}, which draws {len(names)} panel(s): "
            f"{', '.join(names)}; pass {len(names)} matplotlib Axes, or None for a new figure"
        )
    return given


def points(X: ArrayLike, name: str) -> NDArray[np.float64]:
    """Check embeddings of at least two rows that are not all equal."""
    array = check_array(as_matrix(X, name), dtype=np.float64, ensure_min_samples=2, input_name=name)
    if not np.ptp(array, axis=0).any():
        raise ValueError(
            f"{name} has {len(array)} equal rows, which have no variance to draw; pass embeddings "
            "of different texts"
        )
    return array


def legend_beside(axes: Any, entries: Mapping[str, Any], title: str | None = None) -> None:
    """Add a legend to the right of a panel, with a handle for each label."""
    axes.legend(
        entries.values(),
        entries.keys(),
        title=title,
        title_fontsize=8,
        alignment="left",
        fontsize=8,
        frameon=False,
        loc="upper left",
        bbox_to_anchor=(1.02, 1.0),
        borderaxespad=0.0,
    )


def plain(axes: Any) -> None:
    """Remove the upper and the right border, and draw a light grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3, linewidth=0.6)
    axes.set_axisbelow(True)
