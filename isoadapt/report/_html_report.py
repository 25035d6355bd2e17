"""The HTML report: a comparison, an audit and displays in one static file."""

import html
import io
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from string import Template
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
from isoadapt.report._display import printable
from isoadapt.report._embedding_map import EmbeddingMapDisplay
from isoadapt.report._html_comparison import card, forests

_MOST = 4_000  # points of a panel that are drawn as vectors, each with its tooltip
_SVG = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"
_PAGE = Template(Path(__file__).with_name("report.html").read_text("utf-8"))


def write_report(
    file: str | os.PathLike[str],
    *,
    comparison: Comparison | None = None,
    report: IsotropyReport | None = None,
    displays: Mapping[str, Any] | None = None,
    texts: Sequence[Any] | None = None,
    description: str = "",
    next_step: str = "",
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
        Result of :func:`~isoadapt.metrics.isotropy_report`: the verdict, and
        the figures beside references.
    displays : mapping of str to display, default=None
        Further displays of :mod:`isoadapt.report` by their captions. If a panel has more than 4,000
        points, they become an image without tooltips.
    texts : sequence of length n_samples, default=None
        Text of each row of the embedding maps in `displays`, for the tooltips of the points. None
        writes no text of the data.
    description : str, default=""
        A paragraph below the title, such as the names of the model and of the data.
    next_step : str, default=""
        A command or code that follows from the comparison, shown below its verdict.

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
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "scikit-learn", "numpy"))
    made = f"Written on {datetime.now():%Y-%m-%d %H:%M} by isoadapt {__version__}, {versions}."
    parts = [f"<header>{html_paragraphs([description] * bool(description) + [made])}</header>"]
    drawn = dict(displays or {})
    if comparison is not None:
        parts += [card(comparison, next_step), forests(comparison)]
    parts += ["<h2>The vectors</h2>"] * bool(drawn or report)
    parts += [_svg(name, each.figure_, _tooltips(each, texts)) for name, each in drawn.items()]
    if report is not None:
        found, step = report.verdict().splitlines()
        parts += [
            html_paragraphs([f"Without an adapter: {found}", *[step] * (comparison is None)]),
            "<details><summary>How isotropic they are without an adapter</summary>",
            f'<div class="audit">{as_html(report, verdict=False)}</div></details>',
        ]
    if comparison is not None:
        full = comparison._html_tables(full=True)
        parts += [f"<details><summary>All figures</summary>{full}</details>"]
        parts += [html_paragraphs(comparison.notes)]
    with atomic_path(Path(file).expanduser()) as temporary:
        temporary.write_text(printable(_PAGE.substitute(body="\n".join(parts))), "utf-8")


def _tooltips(display: Any, texts: Sequence[Any] | None) -> dict[Any, list[str]]:
    """One tooltip for each curve of a display, and one for each of its points."""
    tips: dict[Any, list[str]] = {}
    for label, lines in getattr(display, "lines_", {}).items():
        tips |= {line: [label] for line in np.ravel(lines)}
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
