"""Bars of an isotropy report beside the reference values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from isoadapt._utils.optional import import_optional
from isoadapt.metrics._isotropy_text import row_value, significant
from isoadapt.metrics._references import REFERENCES

if TYPE_CHECKING:
    from isoadapt.metrics._isotropy_report import IsotropyReport

_BARS = {  # figures of which no value is larger than 1
    "isoscore_corrected": "IsoScore, corrected",
    "ev1": "EV1",
    "ev3": "EV3",
    "anisotropy1": "anisotropy₁",
    "effective_rank_share": "effective rank / d",
    "mean_cosine": "mean cosine",
    "antihub_share": "antihubs, share",
}
_HEIGHT = 0.27  # of a bar


def plot_report(report: IsotropyReport, ax: Any = None) -> Any:
    """Draw horizontal bars of the bounded figures beside their references; return the Axes."""
    pyplot = import_optional("matplotlib.pyplot", feature="IsotropyReport.plot", extra="plot")
    if ax is None:
        ax = pyplot.subplots(figsize=(7, 5), layout="constrained")[1]
    if not hasattr(ax, "barh"):
        raise ValueError(f"ax is a {type(ax).__name__}; pass one matplotlib Axes, or None")
    names = [*_BARS]
    series = {
        "these vectors": ([row_value(report, name) for name in names], "tab:blue"),
        "healthy: all-MiniLM-L6-v2": ([REFERENCES[name][0] for name in names], "0.75"),
        "collapsed: CoLA classifier": ([REFERENCES[name][1] for name in names], "0.45"),
    }
    for place, (label, (values, color)) in enumerate(series.items()):
        bars = ax.barh(
            np.arange(len(names)) + (place - 1) * _HEIGHT,
            np.nan_to_num(values),
            height=_HEIGHT,
            label=label,
            color=color,
        )
        ax.bar_label(bars, [significant(value) for value in values], padding=3, fontsize=8)
    ax.set_yticks(np.arange(len(names)), [*_BARS.values()])
    ax.invert_yaxis()
    ax.axvline(0, color="black", linewidth=0.8)
    ax.set_xlim(min(-0.02, 1.2 * np.nanmin(series["these vectors"][0])), 1.15)
    ax.set_title(f"Isotropy of {report.n_samples} × {report.n_features} embeddings")
    ax.legend(fontsize=8, loc="lower right")
    return ax
