"""Draw a picture for each paper from the records: `python -m docs.reproduction_pictures`.

The description in each file lists the values that are drawn, so that a test can compare them with
the records.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.reproduction import __main__ as reproduce, istar_sign, persistent_entropy
from benchmarks.reproduction._cells import Record
from benchmarks.reproduction._figures import TASKS, has_collapsed, metric_name, of, paired
from benchmarks.reproduction._report import planned
from benchmarks.reproduction._statistics import t_interval
from benchmarks.reproduction._training import BASE
from benchmarks.reproduction.isotropy_calibration import COMPARED, NOTABLE, TESTED
from benchmarks.reproduction.isotropy_layer import MINIBATCH, NO_PENALTY, REFIT, THEIRS

STATIC = Path(__file__).parent / "_static"
LAMBDAS = sorted({0.0, *(sign * size for sign in istar_sign.SIGNS for size in istar_sign.SIZES)})
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
Records = Sequence[Record]


def values(records: Records, every: Records) -> dict[str, Values]:
    """Return the values of each picture, rounded to four digits."""
    found = {
        "000": _selected_bars(records),
        "002": _signs(records, every),
        "003": _layer(records),
        "004": _methods(records),
    }
    return json.loads(json.dumps(found), parse_float=lambda text: float(f"{float(text):.4g}"))


def _selected_bars(records: Records) -> Values:
    """Return pairs of values, of the base and with selected bars, for each task and seed."""
    found: Values = {}
    for task, theirs in persistent_entropy.BERT.items():
        base, bars = of(BASE.name, task), of(persistent_entropy.SELECTED.name, task)
        for figure, title in (
            ("anisotropy1_centered", "centred anisotropy₁, head's input"),
            ("first_token_anisotropy1_centered", "centred anisotropy₁, [CLS]"),
            ("metric", metric_name(task)),
        ):
            pairs = paired(records, base, bars, figure)
            found[f"{TASKS[task]}\n{title}"] = {
                "seeds": [[pairs.before[seed], pairs.after[seed]] for seed in pairs.before],
                "BERT": [float(each) for each in theirs[1].split(" → ")] * ("[CLS]" in title),
            }
    return found


def _signs(records: Records, every: Records) -> Values:
    """Return the metric of the tries, and IsoScore* of the models of all seeds, against λ."""
    kept = {record["key"]: record for record in every if "figures" in record}
    found: Values = {}
    for task in istar_sign.ASKED:
        zeros = [istar_sign.zero_cell(task, seed).key for seed in istar_sign.ZERO_SEEDS]
        panel: Values = {
            f"ζ = {zeta:g}": [
                [lam, record["figures"]["metric"], has_collapsed(record)]
                for lam in LAMBDAS
                if (record := kept.get(istar_sign.try_cell(task, lam, zeta).key))
            ]
            for zeta in istar_sign.ZETAS
        }
        panel["λ = 0"] = [kept[key]["figures"]["metric"] for key in zeros if key in kept]
        found[f"{TASKS[task]}, {metric_name(task)}\non held-out training rows"] = panel
    found["IsoScore* of all layers' tokens\non the dev set, each seed"] = {
        TASKS[task]: sorted(
            [record["settings"].get("lam", 0.0), record["figures"]["isoscore_star"]]
            for record in records
            if record["task"] == task
            and "isoscore_star" in record.get("figures", {})
            and (record["name"] == BASE.name or record["settings"].get("penalty") == "istar")
            and not record["name"].startswith(("released", "second"))
        )
        for task in istar_sign.ASKED
    }
    return found


def _layer(records: Records) -> Values:
    """Return the differences of the metric between the layer and its controls."""
    controls = {"base": BASE.name, "same layer, no penalty": NO_PENALTY, "head refit": REFIT}
    return {
        f"{TASKS[task]}, {metric_name(task)}": {
            f"over {title}": [*_interval(records, of(name, task), of(MINIBATCH, task))]
            for title, name in controls.items()
        }
        | {"BERT over base (paper)": [theirs.gain]}
        for task, theirs in THEIRS.items()
    }


def _methods(records: Records) -> Values:
    """Return the differences of the metric between the methods and the base."""
    return {
        f"{TASKS[task]}, {metric_name(task)}": {
            name.split(" lam")[0].split(", head")[0]: [
                *_interval(records, of(BASE.name, task), of(name, task))
            ]
            for name in COMPARED
        }
        for task in TESTED
    }


def _interval(records: Records, before: Mapping[str, Any], after: Mapping[str, Any]) -> Any:
    return t_interval([*paired(records, before, after, "metric").steps().values()])


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
    ax.axvline(NOTABLE, color=COLOURS[1], ls=":", label="margin of the claim")
    ax.legend(frameon=False, fontsize=9, loc="lower left")


DRAWN = {
    "000": _draw_pairs,
    "002": _draw_signs,
    "003": _draw_intervals,
    "004": _draw_methods,
}


def main() -> None:
    """Write the pictures."""
    _, every, records = planned(reproduce.RECORDS)
    for number, panels in values(records, every).items():
        file = STATIC / f"reproduction-{number}.svg"
        described = json.dumps(panels, ensure_ascii=False)
        with mpl.rc_context(STYLE):
            metadata = {"Date": None, "Description": described}
            draw(number, panels).savefig(file, metadata=metadata)


if __name__ == "__main__":
    main()
