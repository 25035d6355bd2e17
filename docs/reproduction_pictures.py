"""Draw a picture for each paper from the records: `python -m docs.reproduction_pictures`.

The description in each file lists the values that are drawn, so that a test can compare them with
the records.
"""

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.quality._adapter_rows import MINIBATCH, NO_PENALTY, REFIT
from benchmarks.reproduction.__main__ import RECORDS
from benchmarks.reproduction._plan import (
    ASKED,
    RECIPES,
    SIZES,
    TRIES,
    ZETAS,
    candidate_cell,
    try_name,
)
from benchmarks.reproduction._records import by_seed, record_store, table_of
from benchmarks.reproduction._report import title_of
from benchmarks.reproduction._statistics import t_interval

STATIC = Path(__file__).parent / "_static"
LAMBDAS = sorted({0.0, *SIZES, *(-size for size in SIZES)})
ANISOTROPY = {"cola": (0.660, 0.468), "mrpc": (0.733, 0.483)}  # BERT, without and with the penalty
GAIN = {"cola": 0.0193, "mrpc": 0.0086, "rte": 0.0268}  # of the layer with BERT, over seeds
METHODS = ("CosReg lam=1", "spectrum control, polynomial", "FlowAdapter, head refit")
MARGIN = 0.01  # difference of the metric up to which a method is not better
TEXT, QUIET = "#1f2933", "#8a949e"
COLOURS = ("#1b6f9c", "#c8553d", "#1b7f5c")
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "reproduction",
    "font.size": 11,
    "font.family": "sans-serif",
    "text.color": TEXT,
    "axes.labelcolor": TEXT,
    "axes.edgecolor": QUIET,
    "xtick.color": TEXT,
    "ytick.color": TEXT,
    "axes.spines.top": False,
    "axes.spines.right": False,
}

Values = dict[str, Any]  # by panel, what is drawn in it


def values(table: pd.DataFrame) -> dict[str, Values]:
    """Return the values of each picture, rounded to four digits."""
    found = {
        "000": _selected_bars(table),
        "002": _signs(table),
        "003": _layer(table),
        "004": _methods(table),
    }
    return json.loads(json.dumps(found), parse_float=lambda text: float(f"{float(text):.4g}"))


def _selected_bars(table: pd.DataFrame) -> Values:
    """Return pairs of values, of the base and with selected bars, for each task and seed."""
    found: Values = {}
    for task, theirs in ANISOTROPY.items():
        name, metric = title_of(task).split(", ")
        for figure, title in (
            ("anisotropy1_centered", "centred anisotropy₁, head's input"),
            ("first_token_anisotropy1_centered", "centred anisotropy₁, [CLS]"),
            ("metric", metric),
        ):
            sides = (by_seed(table, task, each, figure) for each in ("base", "selected bars"))
            found[f"{name}\n{title}"] = {
                "seeds": [list(pair) for pair in zip(*sides, strict=True)],
                "BERT": list(theirs) * ("[CLS]" in title),
            }
    return found


def _signs(table: pd.DataFrame) -> Values:
    """Return the metric of the tries, and IsoScore* of the models of all seeds, against λ."""
    found: Values = {}
    for task in ASKED:
        own = table[table["task"] == task].set_index("name")
        panel: Values = {
            f"ζ = {zeta:g}": [
                [lam, own.at[name, "metric"], bool(own.at[name, "collapsed"])]
                for lam, name in sorted(
                    (lam, try_name(lam, each))
                    for options in TRIES.values()
                    for lam, each in options
                    if each == zeta
                )
            ]
            for zeta in ZETAS
        }
        zero = candidate_cell(task, RECIPES[task]).name
        panel["λ = 0"] = list(by_seed(table, task, zero, "metric"))
        found[f"{title_of(task)}\non held-out training rows"] = panel
    drawn = table[table["isoscore_star"].notna()]
    drawn = drawn[~drawn["name"].str.startswith(("released", "second", "difference"))]
    found["IsoScore* of all layers' tokens\non the dev set, each seed"] = {
        title_of(task).split(", ")[0]: sorted(
            [row["settings"].get("lam", 0.0), row["isoscore_star"]]
            for _, row in drawn[drawn["task"] == task].iterrows()
            if row["name"] == "base" or row["settings"].get("penalty") == "istar"
        )
        for task in ASKED
    }
    return found


def _layer(table: pd.DataFrame) -> Values:
    """Return the differences of the metric between the layer and its controls."""
    controls = {"base": "base", "same layer, no penalty": NO_PENALTY, "head refit": REFIT}
    return {
        title_of(task): {
            f"over {title}": _interval(table, task, name, MINIBATCH)
            for title, name in controls.items()
        }
        | {"BERT over base (paper)": [gain]}
        for task, gain in GAIN.items()
    }


def _methods(table: pd.DataFrame) -> Values:
    """Return the differences of the metric between the methods and the base."""
    return {
        title_of(task): {
            name.split(" lam")[0].split(", head")[0]: _interval(table, task, "base", name)
            for name in METHODS
        }
        for task in ASKED
    }


def _interval(table: pd.DataFrame, task: str, before: str, after: str) -> list[float]:
    steps = by_seed(table, task, after, "metric") - by_seed(table, task, before, "metric")
    return [*t_interval(steps)]


def draw(number: str, panels: Values) -> Figure:
    """Draw the panels of a picture side by side."""
    n_rows = len(panels) // 4 + 1
    figure = Figure(figsize=(9.6, 2.8 * n_rows + 0.6), layout="constrained", facecolor="white")
    axes = figure.subplots(n_rows, len(panels) // n_rows)
    for ax, (title, panel) in zip(axes.flat, panels.items(), strict=True):
        ax.set_title(title, fontsize=11)
        DRAWN[number](ax, panel)
    if number in ("003", "004"):
        for ax in axes[1:]:
            ax.set_yticklabels([])
        figure.supxlabel("difference of the metric, mean and 95 % interval over seeds", fontsize=11)
    return figure


def _draw_pairs(ax: Axes, panel: Values) -> None:
    for pair in panel["seeds"]:
        ax.plot([0, 1], pair, "o-", color=COLOURS[0], markersize=5, alpha=0.7)
    if panel["BERT"]:
        ax.plot([0, 1], panel["BERT"], "s--", color=QUIET, label="BERT (paper)")
        ax.legend(frameon=False, fontsize=10)
    ax.set_xticks([0, 1], ["base", "selected bars"])
    ax.set_xlim(-0.3, 1.3)


def _draw_signs(ax: Axes, panel: Values) -> None:
    for colour, shift, (name, points) in zip(COLOURS, (-0.1, 0.1), panel.items(), strict=False):
        places = [LAMBDAS.index(lam) for lam, *_ in points]
        if "ζ" in name:
            ax.plot(places, [value for _, value, _ in points], "o-", color=colour, label=name)
        else:
            ax.plot(
                [place + shift for place in places],
                [value for _, value in points],
                "o",
                color=colour,
                label=name,
            )
            ax.set_yscale("log")
    if "λ = 0" in panel:
        seeds = panel["λ = 0"]
        ax.plot([LAMBDAS.index(0)] * len(seeds), seeds, "o", color=QUIET, label="λ = 0, each seed")
        lost = [
            (LAMBDAS.index(lam), value)
            for points in panel.values()
            if points is not seeds
            for lam, value, gone in points
            if gone
        ]
        if lost:
            ax.plot(
                *zip(*lost, strict=True), "x", color=TEXT, markersize=10, ls="", label="collapsed"
            )
    ax.set_xticks(range(len(LAMBDAS)), [f"{lam:g}".replace("0.", ".") for lam in LAMBDAS])
    ax.set_xlim(-0.4, len(LAMBDAS) - 0.6)
    ax.set_xlabel("λ")
    ax.legend(frameon=False, fontsize=9)


def _draw_intervals(ax: Axes, panel: Values) -> None:
    for place, (mean, *ends) in enumerate(panel.values()):
        colour = COLOURS[0] if ends else QUIET
        ax.plot(ends, [place] * len(ends), "-", color=colour, lw=2)
        ax.plot([mean], [place], "o" if ends else "s", color=colour)
    ax.axvline(0, color=QUIET, lw=1)
    ax.set_yticks(range(len(panel)), list(panel))
    ax.set_ylim(len(panel) - 0.5, -0.5)
    ax.locator_params(axis="x", nbins=4)


def _draw_methods(ax: Axes, panel: Values) -> None:
    _draw_intervals(ax, panel)
    ax.axvline(MARGIN, color=COLOURS[1], ls=":", label="margin of the claim")
    ax.legend(frameon=False, fontsize=9, loc="lower left")


DRAWN = {
    "000": _draw_pairs,
    "002": _draw_signs,
    "003": _draw_intervals,
    "004": _draw_methods,
}


def main() -> None:
    """Write the pictures."""
    table = table_of(record_store(RECORDS).entries())
    for number, panels in values(table).items():
        file = STATIC / f"reproduction-{number}.svg"
        described = json.dumps(panels, ensure_ascii=False)
        with mpl.rc_context(STYLE):
            metadata = {"Date": None, "Description": described}
            draw(number, panels).savefig(file, metadata=metadata)


if __name__ == "__main__":
    main()
