"""The HTML report: a comparison, an audit and displays in one static file."""

from __future__ import annotations

import html
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from sklearn.utils.validation import check_consistent_length

from isoadapt._utils.files import atomic_path
from isoadapt._utils.imports import import_optional
from isoadapt._utils.messages import html_paragraphs
from isoadapt.metrics import IsotropyReport
from isoadapt.model_selection import Comparison
from isoadapt.model_selection._compare._comparison import _use_table
from isoadapt.report._comparison import ComparisonDisplay
from isoadapt.report._embedding_map import EmbeddingMapDisplay
from isoadapt.report._search_front import SearchFrontDisplay, _scored, _text

_MOST = 4_000  # points of a panel that are drawn as vectors, each with its tooltip
_SVG = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"
_HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<style>
:root { color-scheme: light dark }
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 66rem; margin: 0 auto; padding: 1rem }
h1 { line-height: 1.2 }
h2 { margin-top: 2.5rem; border-bottom: 1px solid GrayText }
p { max-width: 46rem; overflow-wrap: anywhere }
figure, table { display: block; margin: 1.5rem 0; overflow-x: auto }
figcaption, caption { font-weight: 600; text-align: left; padding: .3rem 0 }
svg { max-width: 100%; min-width: 40rem; height: auto }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .7rem; text-align: right; white-space: nowrap }
td { border-top: 1px solid color-mix(in srgb, CanvasText 15%, Canvas) }
th:first-child, td:first-child { position: sticky; left: 0; background: Canvas; text-align: left }
.audit td:last-child { text-align: left }
@media (prefers-color-scheme: dark) { svg { filter: invert(1) hue-rotate(180deg) } }
</style>
"""


def write_report(
    file: str | os.PathLike[str],
    *,
    comparison: Comparison | None = None,
    report: IsotropyReport | None = None,
    displays: Mapping[str, Any] | None = None,
    texts: Sequence[Any] | None = None,
    title: str = "One model, two jobs: what you have and what you could have",
    description: str = "",
) -> None:
    """Write a comparison, an isotropy report and displays to one HTML file.

    The file holds the verdicts, tables and plots. It has no scripts and refers to no other file, so
    it can be opened without a network, sent and printed. Plots are SVG: lines and points show their
    names and figures as tooltips.

    Parameters
    ----------
    file : str or path-like
        File to write. An existing file is replaced when the new one is complete.
    comparison : Comparison, default=None
        Result of :func:`~isoadapt.model_selection.compare_adapters`. Its differences from no
        adapter are drawn for each use.
    report : IsotropyReport, default=None
        Result of :func:`~isoadapt.metrics.isotropy_report`, which is drawn too.
    displays : mapping of str to display, default=None
        Further displays of :mod:`isoadapt.report` by their captions. Of a panel with more than
        4,000 points, these become an image without tooltips.
    texts : sequence of length n_samples, default=None
        Text of each row of the embedding maps in `displays`, for the tooltips of the points. None
        writes no text of the data.
    title : str, default="One model, two jobs: what you have and what you could have"
        Title of the page.
    description : str, default=""
        A paragraph below the title, such as the names of the model and of the data.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    OSError
        If the file cannot be written.
    ValueError
        If there is nothing to write, or the number of texts is not that of the points of a map.

    Examples
    --------
    >>> from sklearn.datasets import make_classification
    >>> from isoadapt.metrics import isotropy_report
    >>> from isoadapt.model_selection import compare_adapters
    >>> from isoadapt.report import write_report
    >>> X, y = make_classification(300, 8, n_informative=5, random_state=0)
    >>> comparison = compare_adapters(X, y, ["Whitening"], encoder_saw=False, random_state=0)
    >>> report = isotropy_report(X, labels=y)
    >>> write_report("report.html", comparison=comparison, report=report)  # doctest: +SKIP
    """
    if comparison is None and report is None and not displays:
        raise ValueError("there is nothing to write; pass a comparison, a report or displays")
    import_optional("matplotlib", feature="write_report", extra="plot")
    body = [f"<h1>{html.escape(title)}</h1>", html_paragraphs([description])]
    drawn = dict(displays or {})
    if comparison is not None:
        body += ["<h2>What the comparison shows</h2>", comparison._html_verdict()]
        drawn = {
            f"{use}: differences from no adapter": _forest(comparison, use)
            for use in comparison.uses
        } | drawn
    if report is not None:
        bars = report.plot(ax=_axes(7, 5)).figure
        body += ["<h2>What you have</h2>", _svg("Isotropy", bars, {})]
        body += [f'<div class="audit">{report._repr_html_()}</div>']
    if drawn:
        body += ["<h2>What you could have</h2>"]
        body += [_svg(name, each.figure_, _tooltips(each, texts)) for name, each in drawn.items()]
    if comparison is not None:
        body += [comparison._html_tables(), html_paragraphs(comparison.notes)]
    page = [
        f"{_HEAD}<title>{html.escape(title)}</title>\n</head>\n<body>",
        *body,
        "</body>\n</html>\n",
    ]
    with atomic_path(Path(file).expanduser()) as temporary:
        temporary.write_text("\n".join(page), "utf-8")


def _axes(width: float, height: float) -> Any:
    """Axes of a new figure that pyplot does not know."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained").subplots()


def _forest(comparison: Comparison, use: str) -> ComparisonDisplay:
    """Draw the differences from no adapter in a use."""
    axes = _axes(8, 1.5 + 0.27 * len(comparison._rows_of(use)))
    return ComparisonDisplay.from_comparison(comparison, quantity="difference", uses=[use], ax=axes)


def _tooltips(display: Any, texts: Sequence[Any] | None) -> dict[Any, str | list[str]]:
    """One tooltip for each curve or interval of a display, and one for each of its points."""
    tips: dict[Any, str | list[str]] = {}
    for label, lines in getattr(display, "lines_", {}).items():
        tips |= dict.fromkeys(lines if isinstance(lines, tuple) else [lines], label)
    if isinstance(display, ComparisonDisplay):
        for use in display.uses:
            _, header, cells = _use_table(display.comparison._rows_of(use))
            for name, *figures in cells:
                shown = ", ".join(map(" ".join, zip(header[1:], figures, strict=True)))
                drawn = display.containers_[use, name].get_children()
                tips |= dict.fromkeys(drawn, f"{name}: {shown}")
    if isinstance(display, EmbeddingMapDisplay):
        check_consistent_length(display.before, texts)
        for (panel, label), drawn in display.points_.items():
            rows = {tuple(xy): row for row, xy in enumerate(getattr(display, panel).tolist())}
            offsets = drawn.get_offsets().tolist()
            tips[drawn] = [_point(label, texts, rows[tuple(xy)]) for xy in offsets]
    if isinstance(display, SearchFrontDisplay):
        scored = _scored(display.isotropy, display.task)
        tips[display.candidates_] = [_text(display.params[row]) for row in scored]
        tips[display.front_] = [_text(display.params[row]) for row in display.pareto_]
    return tips


def _point(label: str, texts: Sequence[Any] | None, row: int) -> str:
    """Class and text of a point; the texts of a pair are joined."""
    found = "" if texts is None else texts[row]
    return ": ".join(filter(None, [label, found if isinstance(found, str) else " / ".join(found)]))


def _svg(caption: str, figure: Any, tips: Mapping[Any, str | Sequence[str]]) -> str:
    """A matplotlib figure as inline SVG, where the artists of `tips` have tooltips."""
    from matplotlib import rc_context

    for number, (artist, tip) in enumerate(tips.items()):
        artist.set_gid(f"tip-{number}")
        artist.set_rasterized(not isinstance(tip, str) and len(tip) > _MOST)
    written = io.BytesIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": caption}):
        figure.savefig(
            written, format="svg", transparent=True, bbox_inches="tight", metadata=nothing
        )
    for artist in tips:
        artist.set_rasterized(False)
    root = ElementTree.fromstring(written.getvalue())
    for element in list(root.iter()):
        _simplify(element, {f"tip-{number}": tip for number, tip in enumerate(tips.values())})
    del root.attrib["height"]  # follows from the width, also where that is limited
    root.attrib |= {"role": "img", "aria-label": caption}
    name = f"<figcaption>{html.escape(caption)}</figcaption>"
    return f"<figure>{name}{ElementTree.tostring(root, 'unicode')}</figure>"


def _simplify(element: ElementTree.Element, tips: Mapping[str, str | Sequence[str]]) -> None:
    """Add tooltips to an element, and remove namespaces and ids that HTML does not need."""
    element.tag = element.tag.removeprefix(_SVG)
    if _LINK in element.attrib:
        element.set("href", element.attrib.pop(_LINK))
    if element.tag != "g":
        return
    tip = tips.get(element.attrib.pop("id", ""), [])
    tip, owners = (
        ([tip], [element]) if isinstance(tip, str) else (tip, element.findall(f".//{_SVG}use"))
    )
    if len(owners) == len(tip):  # not if points are an image, or lie outside of the figure
        for owner, text in zip(owners, tip, strict=True):
            title = ElementTree.Element("title")
            title.text = text
            owner.insert(0, title)
