"""Drawing of the pictures of the report, as SVG files that depend on the records alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.reproduction._cells import Record
from benchmarks.reproduction._curves import PICTURES, Curve, Panel
from isoadapt._utils.files import atomic_path, writable_folder

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FOLDER = "pictures"
COLOURS = ("#5b6b7b", "#4c78a8", "#d98032", "#2a9d6f", "#b5477c", "#8a6d3b")
STYLE: dict[str, object] = {
    "svg.hashsalt": "isoadapt",  # the same element ids in every run
    "svg.fonttype": "none",  # text stays text
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
WIDTH, HEIGHT = 3.6, 3.0  # inches of a panel
FEW_POINTS = 8  # up to which a curve has markers


def picture_links(records: Sequence[Record]) -> dict[str, str]:
    """Return the Markdown links of the pictures, by paper, for which the records suffice."""
    return {
        number: f"![{picture.caption}]({FOLDER}/{_file_name(number)})\n\n{picture.caption}. "
        "Thin lines are single seeds, thick lines their means."
        for number, picture in PICTURES.items()
        if picture.panels(records)
    }


def draw_pictures(records: Sequence[Record], folder: Path) -> None:
    """Draw the pictures for which the records suffice into `pictures` in a folder."""
    drawn: Mapping[str, list[Panel]] = {
        number: panels
        for number, picture in PICTURES.items()
        if (panels := picture.panels(records))
    }
    for number, panels in drawn.items():
        target = writable_folder(folder / FOLDER) / _file_name(number)
        with atomic_path(target) as temporary:
            _draw(panels, temporary)


def _file_name(number: str) -> str:
    return f"reproduction-{number}.svg"


def _draw(panels: Sequence[Panel], target: Path) -> None:
    """Draw panels side by side, with one legend below them."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    labels = list(dict.fromkeys(curve.label for panel in panels for curve in panel.curves))
    colours = dict(zip(labels, COLOURS, strict=False))
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH * len(panels), HEIGHT), layout="constrained")
        for axes, panel in zip(
            figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
        ):
            _draw_panel(axes, panel, colours)
        handles = {
            label: handle
            for axes in figure.axes
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        figure.legend(
            handles.values(), handles.keys(), loc="outside lower center", ncols=3, frameon=False
        )
        figure.savefig(target, format="svg", metadata={"Date": None})


def _draw_panel(axes: "Axes", panel: Panel, colours: Mapping[str, str]) -> None:
    for curve in panel.curves:
        colour = colours[curve.label]
        marker = "o-" if len(curve.values) <= FEW_POINTS else "-"
        for seed in curve.seeds:
            axes.plot(*curve.of_seed(seed), color=colour, alpha=0.4, linewidth=0.8)
        axes.plot(list(curve.values), curve.means(), marker, ms=3, color=colour, label=curve.label)
    axes.set_title(f"{panel.title} ({_seeds(panel.curves)})", loc="left", fontweight="bold")
    axes.set_xlabel(panel.x)
    axes.set_ylabel(panel.y)
    if panel.is_share:
        axes.set_ylim(0, 1.02)
    if panel.log_x:
        axes.set_xscale("log")
        axes.set_xticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"])
    if panel.log_y:
        axes.set_yscale("log")


def _seeds(curves: Sequence[Curve]) -> str:
    fewest, most = (
        min(len(curve.seeds) for curve in curves),
        max(len(curve.seeds) for curve in curves),
    )
    number = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    return f"{number} seed{'s' if most > 1 else ''}"
