"""Isotropy report: all metrics of one set of embeddings, and of its rows of each label."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from isoadapt._utils.messages import listed, warn
from isoadapt._utils.state import own_state
from isoadapt._utils.threads import few_rows_in_one_thread
from isoadapt.geometry import _spread
from isoadapt.metrics._neighbours import HubnessReport, hubness
from isoadapt.metrics._points import (
    IF_FEW,
    Reading,
    codes_of,
    corrected_isoscore,
    in_float64,
    is_constant,
    read,
    read_rows,
    spectral_figures,
    two_nn_or_nan,
    warn_of_few_units,
)
from isoadapt.metrics._report_text import SHOWN, as_html, as_text, verdict

_SAMPLED = 5_000  # rows for TwoNN and hubness, whose cost is quadratic in the rows
_NEIGHBOURS = 10  # for hubness


@dataclass(frozen=True)
class IsotropyReport:
    """Isotropy metrics of one set of embeddings.

    Two reports are equal if all attributes except the profiles are equal.

    Attributes
    ----------
    n_samples, n_features : int
        Shape of the matrix.
    n_different : int
        Number of different rows, or of groups if they were given.
    n_sampled : int
        Number of rows that `two_nn`, `hubness` and `antihub_share` are computed on: at most 5,000,
        drawn with a fixed seed.
    isoscore, isoscore_corrected : float
        Plain and bias-corrected IsoScore. The latter is NaN for fewer than 4 rows.
    ev1, ev2, ev3 : float
        Share of the variance along the first one, two and three principal directions.
    anisotropy1 : float
        Share of the first squared singular value without centring. With centring it is `ev1`.
    effective_rank : float
        Exponential of the entropy of the normalised spectrum.
    two_nn : float
        TwoNN intrinsic dimension of the sampled rows. NaN if it is not defined, for example for
        fewer than 4 different rows.
    partition_isotropy, partition_dispersion : float
        I1 and I2 of the partition function.
    mean_cosine : float
        Mean cosine of all pairs of different rows.
    hubness, antihub_share : float
        Skewness of the 10-occurrence by cosine, and share of the sampled rows that are no other
        row's neighbour, as :func:`~isoadapt.metrics.hubness` computes them. NaN for fewer than 12
        rows; `hubness` is also NaN if all rows occur equally often.
    mean_profile, variance_profile : ndarray of shape (n_features,)
        Mean and variance of each dimension. The variance divides by n_samples - 1.
    outlier_dimensions : tuple of int
        Dimensions that dominate the others. Their variance exceeds the average variance by more
        than 3 standard deviations over the dimensions and is more than twice that average; or
        their absolute mean exceeds the average absolute mean by more than 3 standard deviations
        and is larger than the square root of the average variance. There can be none with fewer
        than 11 dimensions.
    dead_dimensions : tuple of int
        Dimensions that are constant up to rounding errors of about 1e-15 of their mean.
    labels : dict of str to IsotropyReport
        Report of the rows of each label; empty if no labels were given.
    """

    n_samples: int
    n_features: int
    n_different: int
    n_sampled: int
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
    labels: Mapping[str, IsotropyReport] = field(default_factory=dict, hash=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a dict of plain numbers and lists; labels are nested dicts."""
        plain = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        for name in ("mean_profile", "variance_profile"):
            plain[name] = plain[name].tolist()
        for name in ("outlier_dimensions", "dead_dimensions"):
            plain[name] = list(plain[name])
        plain["labels"] = {name: part.to_dict() for name, part in self.labels.items()}
        return plain

    def plot(self, *, ax: Any = None) -> Any:
        """Plot the figures that are at most 1 beside the references; return the matplotlib Axes.

        `ax` are Axes to draw on; None makes a new figure. ImportError is raised if matplotlib is
        not installed, and ValueError if `ax` is anything else.
        """
        from isoadapt.report._isotropy_bars import draw_bars

        return draw_bars(self, ax)

    def verdict(self, head: bool | None = None) -> str:
        """Say how anisotropic the embeddings are, and on a second line what to do next.

        They are collapsed, partly collapsed, not collapsed or isotropic, by the share of the
        variance in the first direction and by the corrected IsoScore; or there are too few
        different rows to tell. `head` says whether a linear classifier reads them; None means that
        this is not known.
        """
        return verdict(self, head)

    def __str__(self) -> str:
        return as_text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return as_html(self)


@own_state()
@few_rows_in_one_thread
def isotropy_report(
    X: Any, groups: ArrayLike | None = None, labels: ArrayLike | None = None
) -> IsotropyReport:
    """Compute all isotropy metrics of embeddings.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features), memory map or dask array
        Embeddings. They are read in blocks several times, so that a memory map or a dask array may
        be larger than memory.
    groups : array-like of shape (n_samples,), default=None
        Group of each row, where rows of one group depend on each other, such as the sentences of
        a document; at least 4 groups. The corrected IsoScore compares rows of different groups
        only, as described in the notes of :func:`isoscore`.
    labels : array-like of shape (n_samples,), default=None
        Label of each row, such as its class. Each label with at least two different rows gets its
        own report, whose `n_samples` counts equal rows too.

    Returns
    -------
    IsotropyReport
        All metrics. Print it for a table beside a healthy and a collapsed encoder, convert it with
        ``to_dict()``, or draw it with ``plot()``. The TwoNN dimension and hubness are computed on
        at most 5,000 rows; :func:`two_nn` and :func:`hubness` use all rows.

    Raises
    ------
    ValueError
        If X is too small, constant or not finite, if there are fewer than 4 groups, or if `groups`
        or `labels` has the wrong length or a missing value (NaN or None).

    Warns
    -----
    UserWarning
        If X, or the rows of a label, have fewer than 3 n_features different rows or groups: the
        plain IsoScore can then be far too low. If one row or one group dominates the others, as
        defined for :func:`isoscore`.

    Examples
    --------
    >>> import numpy as np
    >>> from isoadapt.metrics import isotropy_report
    >>> X = np.random.default_rng(0).normal(size=(200, 4)) * [10, 1, 1, 1]
    >>> isotropy_report(X)
    IsotropyReport: 200 × 4
      Collapsed: 96.9% of the variance lies in one direction; in a healthy encoder, 4.9%.
      Next: repair them by Whitening, or LogitPreservingWhitening if a linear classifier reads them.
                                value    healthy  collapsed
      IsoScore, corrected     0.02188      0.244  0.0002582   1 = isotropic
      EV1                       0.969    0.04944     0.9541   share of the first direction
      EV3                      0.9909     0.1097     0.9603   of the first three
      anisotropy_1             0.9688     0.1365     0.9711   as EV1, without centring
      effective rank / d        0.297      0.396   0.003879   1.188 of 4
      mean cosine          -0.0009708     0.1188     0.4738
      hubness                 0.01914       1.55      3.839   skewness
      outlier dimensions            0
      healthy: all-MiniLM-L6-v2; collapsed: a classifier fine-tuned from it on CoLA; both on the
      1,043 dev sentences of CoLA, with 384 dimensions
    """
    found = read_rows(X, groups)
    warn_of_few_units(found)
    return _report(found, {} if labels is None else _by_label(found, labels))


def _by_label(found: Reading, labels: ArrayLike) -> dict[str, IsotropyReport]:
    """Report of each label that has at least two different rows; warn of labels with few."""
    names, codes = codes_of(labels, len(found.kept), "labels")
    reports, small, least = {}, [], 3 * found.n_features
    for number, name in enumerate(names):
        rows = np.flatnonzero(codes == number)
        if len(rows) < 2:
            continue
        part = read(found.source.take(rows), found.groups and found.groups.codes[rows])
        if not is_constant(part.moments):
            reports[str(name)] = _report(part, {})
            if part.n_units < least:
                small.append(f"{name} ({part.n_units})")
    if small and found.n_units >= least:
        units = "rows" if found.groups is None else "groups"
        warn(
            f"{len(small)} of {len(reports)} labels have fewer {units} than "
            f"{least} = 3 × n_features, {listed(small, SHOWN)}: for these {IF_FEW}"
        )
    return reports


def _report(found: Reading, labels: Mapping[str, IsotropyReport]) -> IsotropyReport:
    """Report of rows, with the given reports of their labels."""
    n, d, moments = len(found.kept), found.n_features, found.moments
    sample = _sample(found)
    occurrence = HubnessReport(math.nan, math.nan, math.nan, 0)
    if len(sample) > _NEIGHBOURS + 1:
        occurrence = hubness(sample, _NEIGHBOURS)
    raw, axes = torch.linalg.eigh(moments.second_moment())
    if n < d:  # `axes` belong to other coordinates
        points = torch.cat([*map(in_float64, found.source.blocks())])
        log_z, mean, variance = _spread.log_partition(points), points.mean(0), points.var(0)
    else:
        axes, blocks = _spread.fix_signs(axes), map(in_float64, found.rows.blocks())
        log_z = _spread.log_partition_along(axes, blocks, n, d)
        mean, variance = moments.mean, moments.scatter.diagonal() / (n - 1)
    centred = _spread.eigenvalues(moments.scatter)
    dead = _spread.is_rounding(variance.sqrt(), mean.abs())
    return IsotropyReport(
        n_samples=n,
        n_features=d,
        n_different=found.n_different,
        n_sampled=len(sample),
        **spectral_figures(raw.flip(0).clamp(min=0), centred, corrected_isoscore(found), d),
        effective_rank=float(_spread.effective_rank(centred)),
        two_nn=two_nn_or_nan(sample),
        partition_isotropy=float(_spread.partition_isotropy(log_z)),
        partition_dispersion=float(_spread.partition_dispersion(log_z)),
        mean_cosine=_spread.mean_cosine(map(in_float64, found.rows.blocks()), n),
        hubness=occurrence.skewness,
        antihub_share=occurrence.antihub_share,
        mean_profile=mean.numpy(),
        variance_profile=variance.numpy(),
        outlier_dimensions=_outliers(mean, variance),
        dead_dimensions=tuple(np.flatnonzero(dead).tolist()),
        labels=labels,
    )


def _sample(found: Reading) -> Tensor:
    """At most `_SAMPLED` rows, drawn with a fixed seed."""
    order = torch.randperm(len(found.kept), generator=torch.Generator().manual_seed(0))
    chosen = order[:_SAMPLED].sort().values.numpy()
    return torch.cat([*map(in_float64, found.source.take(chosen).blocks())])


def _outliers(mean: Tensor, variance: Tensor) -> tuple[int, ...]:
    """Indices of the outlier dimensions, as defined in `IsotropyReport`."""
    average = variance.mean()
    outlying = _stands_out(variance) & (variance > 2 * average)
    outlying |= _stands_out(mean.abs()) & (mean.abs() > average.sqrt())
    return tuple(np.flatnonzero(outlying).tolist())


def _stands_out(profile: Tensor) -> Tensor:
    """Mask of the entries more than 3 standard deviations above the mean."""
    return profile > profile.mean() + 3 * profile.std(correction=0)
