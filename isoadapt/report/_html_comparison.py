"""The verdict and the differences of a comparison as HTML, which fits screens of any width."""

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from isoadapt._utils.messages import html_paragraphs
from isoadapt.model_selection import Comparison
from isoadapt.model_selection._compare._comparison import by_score, use_table
from isoadapt.model_selection._compare._uses import phrase_of
from isoadapt.model_selection._compare._verdict import best, headline, is_of_index
from isoadapt.report._comparison import STYLES, finding


def card(comparison: Comparison, next_step: str) -> str:
    """Name the best adapter of each use, and the next step; the verdict in full is folded."""
    lines = []
    for use in comparison._ordered_uses():
        name, change = map(escape, headline(comparison._rows_of(use)))
        lines.append(f"<dt>{escape(phrase_of(use))}</dt><dd><b>{name}</b>: {change}</dd>")
    step = f"<pre>{escape(next_step)}</pre>" * bool(next_step)
    said = html_paragraphs([*comparison.verdict().splitlines(), comparison.protocol])
    full = f"<details><summary>The verdict in full</summary>{said}</details>"
    return f'<section class="card"><dl>{"".join(lines)}</dl>{step}{full}</section>'


def forests(comparison: Comparison) -> str:
    """Draw the differences of all uses, with one legend."""
    drawn = [_forest(comparison._rows_of(use)) for use in comparison._ordered_uses()]
    found = {finding(row) for row in comparison.rows}
    keys = [f'<span class="{key}"><b></b>{STYLES[key][0]}</span>' for key in STYLES if key in found]
    said = f"{''.join(keys)}<br/>{escape(comparison._legend())}"
    return f'<p class="keys">{said}</p>{"".join(drawn)}'


def _forest(rows: Sequence[dict[str, Any]]) -> str:
    """Draw the differences of a use with their intervals, by score, the best adapter marked."""
    other = "the teacher" if is_of_index(rows) else "no adapter"
    title = f"{phrase_of(rows[0]['use'])}: difference in {rows[0]['metric']} from {other}"
    shown = ("difference_low", "difference_high", "difference")
    ends = [0.0, *(row[name] for row in rows for name in shown)]
    low, high = np.nanmin(ends), np.nanmax(ends)
    named, lines = best(rows), []
    _, header, cells = use_table(rows)
    for row, (name, *figures, _) in zip(by_score(rows), cells, strict=True):
        at = (0.0, *(row[each] for each in shown[:2]), np.nan_to_num(row["difference"]))
        places = [f"{3 + 94 * (x - low) / ((high - low) or 1.0):.2f}%" for x in at]
        style = ";".join(map("--{}:{}".format, ("zero", "low", "high", "at"), places))
        tip = escape(f"{name}: {', '.join(map(' '.join, zip(header[1:], figures, strict=False)))}")
        point = "<b></b>" * bool(row["score"] == row["score"])  # not that of a row without a score
        lines.append(
            f'<tr class="{finding(row)}{" best" * (row is named)}" title="{tip}">'
            f'<th>{escape(name)}</th><td style="{style}"><i></i>{point}</td>'
            f"<td>{figures[0]}</td><td>{figures[2]}</td></tr>"
        )
    head = "<th></th><th>difference, with its 95 % interval</th><th>score</th><th>difference</th>"
    table = f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody>"
    return f'<table class="forest"><caption>{escape(title)}</caption>{table}</table>'
