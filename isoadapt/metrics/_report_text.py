"""What an IsotropyReport prints: the verdict, and a table beside references."""

from collections.abc import Iterator
from typing import Any

from isoadapt._utils.messages import aligned_table, html_paragraphs, html_table, listed
from isoadapt.metrics._points import FEWEST

SHOWN = 8  # labels that are listed by name, and dimensions by number

# Shares of the variance in the first direction, from 0 if all directions are equal to 1. Whitening
# raised similarity in all cases that were measured above COLLAPSED, and in 48 of 70 below it.
COLLAPSED, PARTLY = 0.5, 0.15
SPREAD = 0.4  # corrected IsoScore; encoders trained for similarity have at most 0.33

# The 1,043 sentences of CoLA's dev set, at most 128 tokens each, in float32: embedded by
# all-MiniLM-L6-v2 (mean of the token states, normalised), and by a classifier that was fine-tuned
# from it on CoLA's training set (the input of its head). Both have 384 dimensions.
REFERENCES = {  # figure: healthy, collapsed
    "isoscore_corrected": (0.2440, 0.0002582),
    "isoscore": (0.2235, 0.0002572),
    "ev1": (0.04944, 0.9541),
    "ev2": (0.08253, 0.9582),
    "ev3": (0.1097, 0.9603),
    "anisotropy1": (0.1365, 0.9711),
    "effective_rank_share": (0.3960, 0.003879),
    "two_nn": (3.231, 13.36),
    "mean_cosine": (0.1188, 0.4738),
    "hubness": (1.550, 3.839),
    "antihub_share": (0.01342, 0.08629),
}

ORIGIN = (
    "healthy: all-MiniLM-L6-v2; collapsed: a classifier fine-tuned from it on CoLA; both on the",
    "1,043 dev sentences of CoLA, with 384 dimensions",
)

_HEADER = ("", "value", "healthy", "collapsed", "")
ROWS = {
    "isoscore_corrected": ("IsoScore, corrected", "1 = isotropic"),
    "isoscore": ("IsoScore, plain", "too low if rows are few"),
    "ev1": ("EV1", "share of the first direction"),
    "ev2": ("EV2", "of the first two"),
    "ev3": ("EV3", "of the first three"),
    "anisotropy1": ("anisotropy_1", "as EV1, without centring"),
    "effective_rank_share": ("effective rank / d", ""),
    "two_nn": ("TwoNN dimension", ""),
    "partition_isotropy": ("partition function", "depends on scale"),
    "partition_dispersion": ("  its dispersion", "depends on scale"),
    "mean_cosine": ("mean cosine", ""),
    "hubness": ("hubness", "skewness"),
    "antihub_share": ("antihubs", "share of the rows"),
}
_OF_NEIGHBOURS = ("two_nn", "hubness", "antihub_share")
_ONLY_FULL = {"isoscore", "ev2", "two_nn", "antihub_share"}
_ONLY_FULL |= {"partition_isotropy", "partition_dispersion"}


def state(report: Any) -> str:
    """Return "few", "collapsed", "partly", "isotropic" or "healthy"."""
    n, d = report.n_different, report.n_features
    excess = (report.ev1 * d - 1) / (d - 1)
    if n < FEWEST:
        return "few"
    if excess >= PARTLY:
        return "collapsed" if excess >= COLLAPSED else "partly"
    return "isotropic" if report.isoscore_corrected >= SPREAD else "healthy"


def repair(report: Any, head: bool | None) -> str | None:
    """Return the class of the adapter that repairs collapsed vectors, None for other vectors."""
    if state(report) != "collapsed":
        return None
    return "LogitPreservingWhitening" if head else "Whitening"


def verdict(report: Any, head: bool | None) -> str:
    """Return the text of `IsotropyReport.verdict`."""
    share = f"{report.ev1:.1%} of the variance lies in one direction"
    healthy = f"in a healthy encoder, {REFERENCES['ev1'][0]:.1%}"
    compare = "compare repairs on your own pairs (isoadapt compare --pairs)"
    own = {
        True: "TeacherReadout with the base model, or else LogitPreservingWhitening; both keep the "
        "predictions",
        False: "Whitening",
        None: "Whitening, or LogitPreservingWhitening if a linear classifier reads them",
    }
    taught = "repair them by TeacherReadout with the base model, or else " if head else ""
    few = f"{report.n_different} different ones, while a verdict needs {FEWEST}"
    isotropic = f"{share}; the corrected IsoScore is {report.isoscore_corrected:.2g}"
    found, step = {
        "few": (f"Too few rows to tell: {few}", "measure more rows"),
        "collapsed": (f"Collapsed: {share}; {healthy}", f"repair them by {own[head]}"),
        "partly": (
            f"Partly collapsed: {share}; {healthy}",
            f"{taught}{compare}; in 48 of 70 cases of such vectors, whitening helped",
        ),
        "isotropic": (f"Isotropic: {isotropic}", "leave them as they are"),
        "healthy": (f"Not collapsed: {share}; {healthy}", f"leave them as they are, or {compare}"),
    }[state(report)]
    return f"{found}.\nNext: {step}."


def as_text(report: Any) -> str:
    """Return the verdict and the table of the main figures."""
    title, *lines = table(report, full=False).splitlines()
    return "\n".join([title, *(f"  {line}" for line in report.verdict().splitlines()), *lines])


def table(report: Any, full: bool) -> str:
    """Return the title, the table, which has all figures if it is `full`, and notes."""
    title = f"IsotropyReport: {report.n_samples} × {report.n_features}"
    rows = [_HEADER, *_rows(report, full)]
    lines = aligned_table(rows, left=(0, 4), at_least=(19, 10, 9, 9)).splitlines()
    return "\n  ".join([title, *lines, *_notes(report), *ORIGIN])


def as_html(report: Any, verdict: bool = True) -> str:
    """Return the whole table as HTML, below the verdict if this is asked for."""
    title = f"Isotropy of {report.n_samples} × {report.n_features} embeddings"
    shown = html_table(title, _HEADER, _rows(report, full=True))
    said = html_paragraphs(report.verdict().splitlines() * verdict)
    return f"<div>{said}{shown}{html_paragraphs([*_notes(report), ' '.join(ORIGIN)])}</div>"


def _notes(report: Any) -> list[str]:
    """Lines below the table: dead dimensions and labels."""
    dead = report.dead_dimensions
    lines = [f"dead dimensions: {len(dead)} ({listed(dead, SHOWN)})"] * bool(dead)
    return [*lines, *(_label_line(*label) for label in report.labels.items())]


def _rows(report: Any, full: bool) -> Iterator[tuple[str, ...]]:
    """Title, value, healthy and collapsed reference and note of each row of the printed table."""
    for name, (title, note) in ROWS.items():
        if name in _ONLY_FULL and not full:
            continue
        if name == "effective_rank_share":
            note = f"{significant(report.effective_rank)} of {report.n_features}"
        if name in _OF_NEIGHBOURS and report.n_sampled < report.n_samples:
            note = f"{note}{', ' * bool(note)}on {report.n_sampled} rows drawn with seed 0"
        references = [*map(significant, REFERENCES.get(name, ()))] or ["-", "-"]
        yield title, significant(row_value(report, name)), *references, f" {note}"
    by_size = report.mean_profile**2 + report.variance_profile
    outliers = sorted(report.outlier_dimensions, key=lambda dimension: -by_size[dimension])
    yield "outlier dimensions", str(len(outliers)), "", "", f" {listed(outliers, SHOWN)}"


def row_value(report: Any, name: str) -> float:
    """Figure of a row of the printed report."""
    if name == "effective_rank_share":
        return report.effective_rank / report.n_features
    return float(getattr(report, name))


def significant(value: float) -> str:
    """Format a figure with four significant digits."""
    return f"{value:.4g}"


def _label_line(name: str, part: Any) -> str:
    n_dead = len(part.dead_dimensions)
    dead = f", {n_dead} dead dimension{'s' * (n_dead > 1)}" if n_dead else ""
    return (
        f"label {name}: n={part.n_samples}, IsoScore {significant(part.isoscore_corrected)} "
        f"(corrected), EV1 {significant(part.ev1)}, mean cosine "
        f"{significant(part.mean_cosine)}{dead}"
    )
