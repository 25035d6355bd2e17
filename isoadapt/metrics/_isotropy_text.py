"""The printed form of an isotropy report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from isoadapt.metrics._references import NEXT_STEPS, ORIGIN, REFERENCES

if TYPE_CHECKING:
    from isoadapt.metrics._isotropy_report import IsotropyReport

_SHOWN = 8  # dimensions that are listed by number
_ROWS = {
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


def significant(value: float) -> str:
    """Format a figure with four significant digits."""
    return f"{value:.4g}"


def row_value(report: IsotropyReport, name: str) -> float:
    """Return the figure of a row of the printed report."""
    if name == "effective_rank_share":
        return report.effective_rank / report.n_features
    return float(getattr(report, name))


def report_text(report: IsotropyReport) -> str:
    """Return a table of all figures beside the reference values, and what to do next."""
    lines = [
        f"IsotropyReport: {report.n_samples} × {report.n_features}",
        _line("", "value", "healthy", "collapsed"),
    ]
    for name, (title, note) in _ROWS.items():
        if name == "effective_rank_share":
            note = f"{significant(report.effective_rank)} of {report.n_features}"
        value = significant(row_value(report, name))
        healthy, collapsed = [*map(significant, REFERENCES.get(name, ())), "-", "-"][:2]
        lines.append(_line(title, value, healthy, collapsed, note))
    lines.append(_dimensions_line("outlier dimensions", _outliers_by_size(report)))
    if report.dead_dimensions:
        lines.append(_dimensions_line("dead dimensions", report.dead_dimensions))
    lines += [_group_line(name, group) for name, group in report.groups.items()]
    return "\n".join([*lines, *(f"  {line}" for line in (*ORIGIN, *NEXT_STEPS))])


def _line(title: str, value: str, healthy: str = "", collapsed: str = "", note: str = "") -> str:
    line = f"  {title:<20}{value:>11}{healthy:>11}{collapsed:>11}"
    return f"{line}   {note}".rstrip()


def _dimensions_line(title: str, dimensions: Sequence[int]) -> str:
    """Line with the number of dimensions and the first of them."""
    more = ", …" if len(dimensions) > _SHOWN else ""
    return _line(title, str(len(dimensions)), note=_listed(dimensions) + more)


def _listed(dimensions: Sequence[int]) -> str:
    return ", ".join(map(str, dimensions[:_SHOWN]))


def _group_line(name: str, group: IsotropyReport) -> str:
    n_dead = len(group.dead_dimensions)
    dead = f", {n_dead} dead dimension{'s' * (n_dead > 1)}" if n_dead else ""
    score = significant(group.isoscore_corrected)
    if math.isnan(group.isoscore_corrected):
        score = f"{significant(group.isoscore)} (plain)"
    return (
        f"  group {name}: n={group.n_samples}, IsoScore {score}, EV1 {significant(group.ev1)}, "
        f"mean cosine {significant(group.mean_cosine)}{dead}"
    )


def _outliers_by_size(report: IsotropyReport) -> list[int]:
    """Outlier dimensions in descending order of their second moment."""
    size = report.mean_profile**2 + report.variance_profile
    return sorted(report.outlier_dimensions, key=lambda dimension: -size[dimension])
