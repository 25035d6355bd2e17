"""The bars of ``IsotropyReport.plot``."""

from typing import Any

import numpy as np

from isoadapt.metrics import IsotropyReport
from isoadapt.metrics._report_text import REFERENCES, ROWS, row_value, significant
from isoadapt.report._display import panels

# The figures that are drawn: no value is larger than 1.
_BARS = ["isoscore_corrected", "ev1", "ev3", "anisotropy1", "effective_rank_share"]
_BARS += ["mean_cosine", "antihub_share"]
_HEIGHT = 0.27  # of a bar


def draw_bars(report: IsotropyReport, ax: Any) -> Any:
    """Draw bars of the bounded figures beside their references, on given or new Axes."""
    [ax] = panels(ax, "IsotropyReport.plot", ["bars"], (7, 5))
    rows = np.arange(len(_BARS))
    text = ax.xaxis.label.get_color()  # of the style, for light and for dark backgrounds
    series = {
        "these vectors": ([row_value(report, name) for name in _BARS], "tab:blue", 1.0),
        "healthy: all-MiniLM-L6-v2": ([REFERENCES[name][0] for name in _BARS], text, 0.3),
        "collapsed: CoLA classifier": ([REFERENCES[name][1] for name in _BARS], text, 0.65),
    }
    for place, (label, (values, color, alpha)) in enumerate(series.items()):
        y, look = rows + (place - 1) * _HEIGHT, {"color": color, "alpha": alpha}
        bars = ax.barh(y, np.nan_to_num(values), height=_HEIGHT, label=label, **look)
        ax.bar_label(bars, [significant(value) for value in values], padding=3, fontsize=8)
    ax.set_yticks(rows, [ROWS[name][0] for name in _BARS])
    ax.invert_yaxis()
    ax.axvline(0, color=text, linewidth=0.8)
    ax.set_xlim(min(-0.02, 1.2 * np.nanmin(series["these vectors"][0])), 1.15)
    ax.set_title(f"Isotropy of {report.n_samples} × {report.n_features} embeddings")
    ax.legend(fontsize=8, loc="lower right")
    return ax
