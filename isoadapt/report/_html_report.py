"""The HTML report: a comparison, an audit and displays in one static file."""

import html
import io
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from sklearn.utils.validation import check_consistent_length

from isoadapt import __version__
from isoadapt._utils.files import atomic_path
from isoadapt._utils.imports import import_optional
from isoadapt._utils.messages import html_paragraphs
from isoadapt.metrics import IsotropyReport
from isoadapt.metrics._report_text import as_html
from isoadapt.model_selection import Comparison
from isoadapt.model_selection._compare._comparison import use_table
from isoadapt.model_selection._compare._uses import phrase_of
from isoadapt.model_selection._compare._verdict import is_of_index
from isoadapt.report._comparison import ComparisonDisplay
from isoadapt.report._display import printable
from isoadapt.report._embedding_map import EmbeddingMapDisplay

_MOST = 4_000  # points of a panel that are drawn as vectors, each with its tooltip
_SVG = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"
_TITLE = "Isotropy report: does an adapter help?"
_HEAD = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<title>{_TITLE}</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 66rem; margin: 0 auto; padding: 1rem }}
h2 {{ margin-top: 2.5rem; border-bottom: 1px solid GrayText }}
p {{ max-width: 46rem; overflow-wrap: anywhere }}
figure, table {{ display: block; margin: 1.5rem 0; overflow-x: auto }}
figcaption, caption {{ font-weight: 600; text-align: left; padding: .3rem 0 }}
svg {{ max-width: 100%; min-width: 40rem; height: auto }}
table {{ border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums }}
th, td {{ padding: .2rem .7rem; text-align: right; white-space: nowrap }}
td {{ border-top: 1px solid color-mix(in srgb, CanvasText 15%, Canvas) }}
th:first-child, td:first-child {{ position: sticky; left: 0; background: Canvas; text-align: left }}
.audit td:last-child {{ text-align: left }}
@media (prefers-color-scheme: dark) {{ svg {{ filter: invert(1) hue-rotate(180deg) }} }}
</style>
</head>
<body>
<h1>{_TITLE}</h1>"""


def write_report(
    file: str | os.PathLike[str],
    *,
    comparison: Comparison | None = None,
    report: IsotropyReport | None = None,
    displays: Mapping[str, Any] | None = None,
    texts: Sequence[Any] | None = None,
    description: str = "",
) -> None:
    """Write a comparison, an isotropy report and displays to one HTML file.

    The file holds the verdicts, tables and plots, the date, and the versions of the libraries that
    computed the figures. It has no scripts and refers to no other file, so it can be opened without
    a network, sent and printed. Plots are SVG: lines and points show their names and figures as
    tooltips.

    Parameters
    ----------
    file : str or path-like
        File to write. An existing file is replaced when the new one is complete.
    comparison : Comparison, default=None
        Result of :func:`~isoadapt.model_selection.compare_adapters`. Its differences from no
        adapter, for the use "index" from the teacher, are drawn for each use.
    report : IsotropyReport, default=None
        Result of :func:`~isoadapt.metrics.isotropy_report`, which is drawn too.
    displays : mapping of str to display, default=None
        Further displays of :mod:`isoadapt.report` by their captions. Of a panel with more than
        4,000 points, these become an image without tooltips.
    texts : sequence of length n_samples, default=None
        Text of each row of the embedding maps in `displays`, for the tooltips of the points. None
        writes no text of the data.
    description : str, default=""
        A paragraph below the title, such as the names of the model and of the data.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    ValueError
        If the number of texts is not that of the points of a map.

    Examples
    --------
    >>> import numpy as np
    >>> from isoadapt.metrics import isotropy_report
    >>> from isoadapt.report import write_report
    >>> report = isotropy_report(np.random.default_rng(0).normal(size=(200, 4)))
    >>> write_report("report.html", report=report)  # doctest: +SKIP
    """
    import_optional("matplotlib", feature="write_report", extra="plot")
    made = f"Written on {datetime.now():%Y-%m-%d %H:%M} by isoadapt {__version__}, {_versions()}."
    parts = [_HEAD, html_paragraphs([description] * bool(description) + [made])]
    drawn = dict(displays or {})
    if comparison is not None:
        parts += ["<h2>What the comparison shows</h2>", comparison._html_verdict()]
        size = 8, 1.5 + 0.27 * len(comparison._rows_of(None))
        forests = {
            f"{phrase_of(use)}: difference in {rows[0]['metric']} from "
            f"{'the teacher' if is_of_index(rows) else 'no adapter'}": (
                ComparisonDisplay.from_comparison(
                    comparison, quantity="difference", uses=[use], ax=_axes(*size)
                )
            )
            for use, rows in ((use, comparison._rows_of(use)) for use in comparison.uses)
        }
        parts += [_svg(name, each.figure_, _tooltips(each, None)) for name, each in forests.items()]
    if report is not None:
        bars = report.plot(ax=_axes(7, 5)).figure
        parts += [
            "<h2>The vectors without an adapter</h2>",
            _svg("Main figures beside references", bars, {}),
        ]
        parts += [f'<div class="audit">{as_html(report, advice=comparison is None)}</div>']
    parts += ["<h2>Plots</h2>"] * bool(drawn)
    parts += [_svg(name, each.figure_, _tooltips(each, texts)) for name, each in drawn.items()]
    if comparison is not None:
        parts += [
            "<h2>All figures</h2>",
            comparison._html_tables(full=True),
            html_paragraphs(comparison.notes),
        ]
    with atomic_path(Path(file).expanduser()) as temporary:
        page = "\n".join([*parts, "</body>", "</html>", ""])
        temporary.write_text(printable(page), "utf-8")


def _versions() -> str:
    """Names and versions of the libraries that compute the figures."""
    names = ("torch", "scikit-learn", "numpy")
    return ", ".join(f"{name} {version(name)}" for name in names)


def _axes(width: float, height: float) -> Any:
    """Axes of a new figure that pyplot does not know."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained").subplots()


def _tooltips(display: Any, texts: Sequence[Any] | None) -> dict[Any, list[str]]:
    """One tooltip for each curve or interval of a display, and one for each of its points."""
    tips: dict[Any, list[str]] = {}
    for label, lines in getattr(display, "lines_", {}).items():
        tips |= {line: [label] for line in np.ravel(lines)}
    if isinstance(display, ComparisonDisplay):
        for use in display.uses:
            _, header, cells = use_table(display.comparison._rows_of(use))
            for name, *figures in cells:
                shown = ", ".join(map(" ".join, zip(header[1:], figures, strict=True)))
                drawn = display.containers_[use, name].get_children()
                tips |= {artist: [f"{name}: {shown}"] for artist in drawn}
    if isinstance(display, EmbeddingMapDisplay):
        check_consistent_length(display.before, texts)
        given = [""] * len(display.before) if texts is None else [f": {text}" for text in texts]
        for (_, label), drawn in display.points_.items():
            found = [given[row] for row in display._rows[label]]
            tips[drawn] = [f"{label}{text}".removeprefix(": ") for text in found]
    return tips


def _svg(caption: str, figure: Any, tips: Mapping[Any, list[str]]) -> str:
    """A matplotlib figure as inline SVG, where the artists of `tips` have tooltips."""
    from matplotlib import rc_context

    for number, (artist, own) in enumerate(tips.items()):
        artist.set_gid(f"tip-{number}")
        artist.set_rasterized(len(own) > _MOST)
    written = io.BytesIO()
    options = {"format": "svg", "metadata": dict.fromkeys(("Creator", "Date", "Format", "Type"))}
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": caption}):
        figure.savefig(written, transparent=True, bbox_inches="tight", **options)
    for artist in tips:
        artist.set_rasterized(False)
    root = ElementTree.fromstring(written.getvalue())
    groups = {group.get("id"): group for group in root.iter(f"{_SVG}g")}
    for number, own in enumerate(tips.values()):
        group = groups.get(f"tip-{number}", ElementTree.Element("g"))
        owners = [group] if len(own) == 1 else group.findall(f".//{_SVG}use")
        if len(owners) == len(own):  # not if the points are an image, or some are out of sight
            for owner, text in zip(owners, own, strict=True):
                owner.insert(0, ElementTree.Element("title"))
                owner[0].text = text
    for element in root.iter():
        element.tag = element.tag.removeprefix(_SVG)  # HTML needs no namespaces
        if _LINK in element.attrib:
            element.set("href", element.attrib.pop(_LINK))
        if element.tag == "g":
            element.attrib.pop("id", None)  # not unique on the page, and referred to by nothing
    del root.attrib["height"]  # follows from the width, also where that is limited
    root.attrib |= {"role": "img", "aria-label": caption}
    title = f"<figcaption>{html.escape(caption)}</figcaption>"
    return f"<figure>{title}{ElementTree.tostring(root, 'unicode')}</figure>"
