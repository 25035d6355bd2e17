"""Isotropy report: all metrics of one set of embeddings, and of groups of its rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from isoadapt._utils.labels import is_missing
from isoadapt._utils.warn import warn
from isoadapt.geometry import _dimension, _partition, _spectrum, _spread, _unbiased
from isoadapt.metrics._isotropy_text import report_text
from isoadapt.metrics._neighbours import HubnessReport, hubness
from isoadapt.metrics._points import as_points, clamped_score, mean_cosine, varies

_SAMPLED = 5_000  # rows for TwoNN and hubness, whose cost is quadratic in the rows
_NEIGHBOURS = 10  # for hubness
_SHOWN = 8  # groups that are listed by name


@dataclass(frozen=True)
class IsotropyReport:
    """Isotropy metrics of one set of embeddings.

    Two reports are equal if all attributes except the profiles are equal.

    Attributes
    ----------
    n_samples, n_features : int
        Shape of the matrix.
    isoscore, isoscore_corrected : float
        Plain and bias-corrected IsoScore. The latter is NaN for fewer than 4 rows.
    ev1, ev2, ev3 : float
        Share of the variance along the first one, two and three principal directions.
    anisotropy1 : float
        Share of the first squared singular value without centring. With centring it is `ev1`.
    effective_rank : float
        Exponential of the entropy of the normalised spectrum.
    two_nn : float
        TwoNN intrinsic dimension. If there are more than 5,000 rows, it is estimated on 5,000 of
        them, drawn with a fixed seed. NaN if it is not defined, for example for fewer than 4
        different rows.
    partition_isotropy, partition_dispersion : float
        I1 and I2 of the partition function.
    mean_cosine : float
        Mean cosine of all pairs of different rows.
    hubness, antihub_share : float
        Skewness of the 10-occurrence by cosine, and share of the rows that are no other row's
        neighbour, as :func:`~isoadapt.metrics.hubness` computes them, on at most 5,000 rows. NaN
        for fewer than 12 rows; `hubness` is also NaN if all rows occur equally often.
    mean_profile, variance_profile : ndarray of shape (n_features,)
        Mean and variance of each dimension. The variance divides by n_samples - 1.
    outlier_dimensions : tuple of int
        Dimensions that dominate the others. Their variance exceeds the average variance by more
        than 3 standard deviations over the dimensions and is more than twice that average; or
        their absolute mean exceeds the average absolute mean by more than 3 standard deviations
        and is larger than the square root of the average variance. There can be none with fewer
        than 11 dimensions.
    dead_dimensions : tuple of int
        Dimensions that are constant up to rounding. Their variance is at most 1e-12 of the total
        variance, so their standard deviation is at most 1e-6 of its square root.
    groups : dict of str to IsotropyReport
        Report of the rows of each group; empty if no groups were given.
    """

    n_samples: int
    n_features: int
    isoscore: float
    isoscore_corrected: float
    ev1: float
    ev2: float
    ev3: float
    anisotropy1: float
    effective_rank: float
    two_nn: float
    partition_isotropy: float
    partition_dispersion: float
    mean_cosine: float
    hubness: float
    antihub_share: float
    mean_profile: NDArray[np.float64] = field(compare=False)
    variance_profile: NDArray[np.float64] = field(compare=False)
    outlier_dimensions: tuple[int, ...] = ()
    dead_dimensions: tuple[int, ...] = ()
    groups: Mapping[str, IsotropyReport] = field(default_factory=dict, hash=False)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IsotropyReport):
            return NotImplemented
        return self._compared() == other._compared()

    def _compared(self) -> list[Any]:
        """Values that two equal reports have in common, with None for NaN."""
        values = [getattr(self, entry.name) for entry in fields(self) if entry.compare]
        return [
            None if isinstance(value, float) and math.isnan(value) else value for value in values
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a dict of plain numbers and lists.

        Returns
        -------
        dict
            One entry for each attribute; groups are nested dicts.
        """
        plain = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        for name in ("mean_profile", "variance_profile"):
            plain[name] = plain[name].tolist()
        for name in ("outlier_dimensions", "dead_dimensions"):
            plain[name] = list(plain[name])
        plain["groups"] = {name: group.to_dict() for name, group in self.groups.items()}
        return plain

    def plot(self, *, ax: Any = None) -> Any:
        """Plot the figures that are at most 1 as bars, beside the reference values.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on. None makes a new figure with pyplot.

        Returns
        -------
        matplotlib Axes
            The axes.

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        ValueError
            If `ax` is not a matplotlib Axes.
        """
        from isoadapt.metrics._isotropy_plot import plot_report

        return plot_report(self, ax)

    def __str__(self) -> str:
        return report_text(self)

    __repr__ = __str__


def isotropy_report(X: ArrayLike, groups: ArrayLike | None = None) -> IsotropyReport:
    """Compute all isotropy metrics of embeddings.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Embeddings.
    groups : array-like of shape (n_samples,), default=None
        Group of each row, such as its class. Each group with at least two different rows gets a
        report of its own.

    Returns
    -------
    IsotropyReport
        All metrics. Print it for a table beside the values of a healthy and of a collapsed
        encoder, convert it with ``to_dict()``, or draw it with ``plot()``. The TwoNN dimension and
        hubness are computed on at most 5,000 rows, because their cost is quadratic in them;
        :func:`two_nn` and :func:`hubness` use all rows.

    Raises
    ------
    ValueError
        If X is too small, constant or not finite, or if `groups` has the wrong length or lacks the
        group of a row (NaN or None).

    Warns
    -----
    UserWarning
        If n_samples < 3 n_features for X or, otherwise, for some groups: the plain IsoScore can
        then be far too low.

    Examples
    --------
    >>> import numpy as np
    >>> from isoadapt.metrics import isotropy_report
    >>> X = np.random.default_rng(0).normal(size=(200, 4)) * [10, 1, 1, 1]
    >>> isotropy_report(X)
    IsotropyReport: 200 × 4
                                value    healthy  collapsed
      IsoScore, corrected     0.02188      0.244  0.0002582   1 = isotropic
      IsoScore, plain         0.02157     0.2235  0.0002572   too low if rows are few
      EV1                       0.969    0.04944     0.9541   share of the first direction
      EV2                      0.9801    0.08253     0.9582   of the first two
      EV3                      0.9909     0.1097     0.9603   of the first three
      anisotropy_1             0.9688     0.1365     0.9711   as EV1, without centring
      effective rank / d        0.297      0.396   0.003879   1.188 of 4
      TwoNN dimension           3.167      3.231      13.36
      partition function    7.808e-08          -          -   depends on scale
        its dispersion          1.732          -          -   depends on scale
      mean cosine          -0.0009708     0.1188     0.4738
      hubness                 0.01914       1.55      3.839   skewness
      antihubs                   0.01    0.01342    0.08629   share of the rows
      outlier dimensions            0
      healthy: all-MiniLM-L6-v2; collapsed: a classifier fine-tuned from it on CoLA; both on the
      1,043 dev sentences of CoLA, with 384 dimensions
      next: LogitPreservingWhitening (keeps a classifier's predictions), Whitening (no head),
      IsotropyLayer (trains for the task too), no adapter (an encoder trained for similarity);
      measure the effect on your task with compare_adapters or `isoadapt compare`
    """
    points = as_points(X)
    n, d = points.shape
    parts = {} if groups is None else _rows_by_group(points, groups)
    small_groups = [f"{name} ({len(part)})" for name, part in parts.items() if len(part) < 3 * d]
    remedy = (
        "the plain IsoScore and the effective rank can be far too low; use the bias-corrected "
        "score, or more rows"
    )
    if n < 3 * d:
        warn(f"n_samples={n} is less than 3 × n_features={3 * d}: {remedy}")
    elif small_groups:
        named = ", ".join(small_groups[:_SHOWN]) + (", …" if len(small_groups) > _SHOWN else "")
        warn(
            f"{len(small_groups)} of {len(parts)} groups have fewer rows than "
            f"3 × n_features={3 * d}, {named}: for these {remedy}",
        )
    return _report(points, {name: _report(part, {}) for name, part in parts.items()})


def spectral_figures(
    raw: Tensor, centred: Tensor, fourth: Tensor, n_samples: int, d: int
) -> dict[str, Any]:
    """Metrics of `IsotropyReport` that depend only on the spectra and on the fourth moment.

    `raw` and `centred` (r,) are the squared singular values, descending, without and with centring;
    `fourth` is Σ ‖x - x̄‖⁴ / (Σ ‖x - x̄‖²)², as `Moments.fourth`; `n_samples` is at least 2. The
    corrected IsoScore is NaN for fewer than 4 rows. ValueError if there is no variance.
    """
    square = (centred / centred.sum()).square().sum()
    corrected = math.nan
    if n_samples >= 4:
        corrected = float(_unbiased.corrected_score(square, fourth, n_samples, d))
    ev1, ev2, ev3 = (float(_spectrum.cumulative_explained_variance(centred, k)) for k in (1, 2, 3))
    return {
        "isoscore": clamped_score((1 / square - 1) / (d - 1)),
        "isoscore_corrected": corrected,
        "ev1": ev1,
        "ev2": ev2,
        "ev3": ev3,
        "anisotropy1": float(_spectrum.anisotropy(raw, 1)),
    }


def two_nn_or_nan(points: Tensor, tolerance: float = 0.0) -> float:
    """TwoNN dimension of points (n, d), NaN where it is not defined."""
    try:
        return float(_dimension.two_nn(points, tolerance=tolerance))
    except ValueError:
        return math.nan


def _report(points: Tensor, groups: Mapping[str, IsotropyReport]) -> IsotropyReport:
    """Report of points (n, d), with the given reports of their groups."""
    n, d = points.shape
    raw, centred = _spectrum.spectrum(points, center=False), _spectrum.spectrum(points)
    log_z = _partition.log_partition(points)
    mean, variance = points.mean(0), points.var(0)
    sample = _sample(points)
    occurrence = _hubness(sample)
    return IsotropyReport(
        n_samples=n,
        n_features=d,
        **spectral_figures(raw, centred, _unbiased.norm_concentration(points), n, d),
        effective_rank=float(_spectrum.effective_rank(centred)),
        two_nn=two_nn_or_nan(sample),
        partition_isotropy=float(_partition.partition_isotropy(log_z)),
        partition_dispersion=float(_partition.partition_dispersion(log_z)),
        mean_cosine=mean_cosine(points),
        hubness=occurrence.skewness,
        antihub_share=occurrence.antihub_share,
        mean_profile=mean.numpy(),
        variance_profile=variance.numpy(),
        outlier_dimensions=_outliers(mean, variance),
        dead_dimensions=_indices(_spread.dead_dimensions(variance)),
        groups=groups,
    )


def _rows_by_group(points: Tensor, groups: ArrayLike) -> dict[str, Tensor]:
    """Rows of each group that has at least two different rows."""
    labels = np.asarray(groups)
    if labels.ndim != 1:
        raise ValueError(f"groups has shape {labels.shape}: one group for each row is needed")
    if len(labels) != len(points):
        raise ValueError(
            f"groups has {len(labels)} entries, X has {len(points)} rows: one group for each row "
            "is needed"
        )
    missing = [i for i, label in enumerate(np.asarray(groups, dtype=object)) if is_missing(label)]
    if missing:
        raise ValueError(
            f"groups lacks the group of {len(missing)} row(s), first of row {missing[0]} (NaN or "
            "None): leave these rows out, or name their group, for example 'none'"
        )
    masks = {str(label): torch.from_numpy(labels == label) for label in np.unique(labels)}
    parts = {name: points[mask] for name, mask in masks.items()}
    return {name: part for name, part in parts.items() if varies(part)}


def _hubness(points: Tensor) -> HubnessReport:
    """Hubness of points (n, d), NaN where there are too few."""
    if len(points) < _NEIGHBOURS + 2:
        return HubnessReport(math.nan, math.nan, math.nan, 0)
    return hubness(points, _NEIGHBOURS)


def _sample(points: Tensor) -> Tensor:
    """At most `_SAMPLED` rows, drawn with a fixed seed."""
    if len(points) <= _SAMPLED:
        return points
    order = torch.randperm(len(points), generator=torch.Generator().manual_seed(0))
    return points[order[:_SAMPLED]]


def _outliers(mean: Tensor, variance: Tensor) -> tuple[int, ...]:
    """Indices of the outlier dimensions, as defined in `IsotropyReport`."""
    average = variance.mean()
    outlying = _stands_out(variance) & (variance > 2 * average)
    outlying |= _stands_out(mean.abs()) & (mean.abs() > average.sqrt())
    return _indices(outlying)


def _indices(mask: Tensor) -> tuple[int, ...]:
    return tuple(mask.nonzero().flatten().tolist())


def _stands_out(profile: Tensor) -> Tensor:
    """Mask of the entries more than 3 standard deviations above the mean."""
    return profile > profile.mean() + 3 * profile.std(correction=0)
