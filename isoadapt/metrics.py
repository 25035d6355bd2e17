"""Isotropy for people: arrays in, floats out.

Every function takes a matrix of shape (n_samples, n_features), as an array or a tensor, and
computes in float64.
"""

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_array, check_consistent_length
from torch import Tensor

from isoadapt.geometry import _cosine, _isoscore, _spectrum

__all__ = [
    "IsotropyReport",
    "anisotropy",
    "cumulative_explained_variance",
    "effective_rank",
    "isoscore",
    "isoscore_star",
    "isotropy_report",
    "mean_cosine_similarity",
]


def isoscore(X: ArrayLike, bias_corrected: bool = False) -> float:
    """IsoScore: 0 if one direction holds all variance, 1 if all hold the same.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Embeddings, at least 2 × 2.
    bias_corrected : bool, default=False
        Remove the bias of few rows: the plain score cannot exceed
        (n_samples - 2) / (n_features - 1) and is too low even at n_samples = 3 n_features.
        Needs 4 rows.

    Returns
    -------
    float
        In [0, 1].

    Raises
    ------
    ValueError
        If X is too small, constant or not finite.

    References
    ----------
    Rudman, Gillman, Rayne and Eickhoff (2022), "IsoScore: Measuring the Uniformity of Embedding
    Space Utilization".

    Examples
    --------
    >>> import numpy as np
    >>> from isoadapt.metrics import isoscore
    >>> X = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    >>> isoscore(X), isoscore(X * [1.0, 0.0])
    (1.0, 0.0)
    """
    points = _points(X, min_samples=4 if bias_corrected else 2)
    return _score(_isoscore.isoscore_star(points, bias_corrected=bias_corrected))


def isoscore_star(X: ArrayLike, cov: ArrayLike | None = None, zeta: float = 0.2) -> float:
    """IsoScore*: the IsoScore of (1 - zeta) Σ_X + zeta cov.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Embeddings, at least 2 × 2.
    cov : array-like of shape (n_features, n_features), default=None
        Shrinkage matrix, the covariance of a larger sample; None is the identity.
    zeta : float, default=0.2
        Its weight, in [0, 1].

    Returns
    -------
    float
        In [0, 1].

    Raises
    ------
    ValueError
        If X is too small, constant or not finite, `cov` has another shape or `zeta` is outside
        [0, 1].

    References
    ----------
    Rudman and Eickhoff, "Stable Anisotropic Regularization", algorithm 1.

    Examples
    --------
    >>> import numpy as np
    >>> from isoadapt.metrics import isoscore_star
    >>> X = np.array([[2.0, 0.0], [-2.0, 0.0], [1.0, 0.0]])
    >>> isoscore_star(X, zeta=0.0), isoscore_star(X, zeta=1.0)
    (0.0, 1.0)
    """
    points = _points(X)
    if not 0 <= zeta <= 1:
        raise ValueError(f"zeta={zeta!r} must lie in [0, 1]")
    prior = None
    if cov is not None:
        prior = _tensor(check_array(_numpy(cov), dtype=np.float64, input_name="cov"))
        if prior.shape != (points.shape[1],) * 2:
            raise ValueError(
                f"cov has shape {tuple(prior.shape)}, X has {points.shape[1]} features: "
                f"{(points.shape[1],) * 2} is needed"
            )
        if not torch.allclose(prior, prior.T):
            raise ValueError("cov is not symmetric: pass a covariance matrix")
    return _score(_isoscore.isoscore_star(points, prior, zeta))


def cumulative_explained_variance(X: ArrayLike, k: int = 3) -> float:
    """Share of variance along the first k principal directions, EV_k.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Embeddings.
    k : int, default=3
        How many directions, from 1 to n_features.

    Returns
    -------
    float
        In [0, 1].

    Raises
    ------
    ValueError
        If X is constant or not finite, or k is out of its range.

    Examples
    --------
    >>> import numpy as np
    >>> from isoadapt.metrics import cumulative_explained_variance
    >>> X = np.array([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    >>> round(cumulative_explained_variance(X, k=1), 3)
    0.9
    """
    points = _points(X)
    _check_k(k, points)
    return float(_spectrum.cumulative_explained_variance(_spectrum.spectrum(points), k))


def anisotropy(X: ArrayLike, k: int = 3, center: bool = False) -> float:
    """Share of the k-th squared singular value alone, anisotropy_k.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Embeddings.
    k : int, default=3
        Which singular value, from 1 to n_features.
    center : bool, default=False
        Subtract the mean first. Uncentred, the first value holds the mean too.

    Returns
    -------
    float
        In [0, 1].

    Raises
    ------
    ValueError
        If X is constant or not finite, or k is out of its range.

    Examples
    --------
    >>> import numpy as np
    >>> from isoadapt.metrics import anisotropy
    >>> X = np.array([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    >>> round(anisotropy(X, k=2), 3)
    0.1
    """
    points = _points(X)
    _check_k(k, points)
    return float(_spectrum.anisotropy(_spectrum.spectrum(points, center=center), k))


def effective_rank(X: ArrayLike) -> float:
    """Exponential of the entropy of the covariance's normalised eigenvalues.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Embeddings.

    Returns
    -------
    float
        In [1, n_features].

    Raises
    ------
    ValueError
        If X is constant or not finite.

    References
    ----------
    Roy and Vetterli (2007), "The effective rank: a measure of effective dimensionality".

    Examples
    --------
    >>> import numpy as np
    >>> from isoadapt.metrics import effective_rank
    >>> round(effective_rank(np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])), 6)
    2.0
    """
    return float(_spectrum.effective_rank(_spectrum.spectrum(_points(X))))


def mean_cosine_similarity(X: ArrayLike) -> float:
    """Mean cosine of all pairs of different rows, exact in O(n d).

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Embeddings, two rows at least; a zero row has cosine 0 with every other.

    Returns
    -------
    float
        In [-1, 1].

    Raises
    ------
    ValueError
        If X has one row or is not finite.

    Examples
    --------
    >>> from isoadapt.metrics import mean_cosine_similarity
    >>> mean_cosine_similarity([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0]])
    0.333...
    """
    return _mean_cosine(_points(X, spread=False))


@dataclass(frozen=True)
class IsotropyReport:
    """Geometry of one set of embeddings.

    Attributes
    ----------
    n_samples, n_features : int
        Shape of the matrix.
    isoscore, isoscore_corrected : float
        Plain and bias-corrected IsoScore; the latter is NaN under 4 rows.
    ev1, ev2, ev3 : float
        Share of variance along the first one, two and three principal directions.
    anisotropy1, anisotropy1_centered : float
        Share of the first squared singular value, raw and centred.
    effective_rank : float
        Exponential of the entropy of the spectrum.
    mean_cosine : float
        Mean cosine of all pairs of different rows.
    groups : dict of str to IsotropyReport
        The same for the rows of each group, where groups were given.
    """

    n_samples: int
    n_features: int
    isoscore: float
    isoscore_corrected: float
    ev1: float
    ev2: float
    ev3: float
    anisotropy1: float
    anisotropy1_centered: float
    effective_rank: float
    mean_cosine: float
    groups: Mapping[str, "IsotropyReport"] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain numbers, groups nested.

        Returns
        -------
        dict
            One entry for each attribute.
        """
        return asdict(self)

    def __str__(self) -> str:
        lines = [
            f"IsotropyReport: {self.n_samples} × {self.n_features}",
            f"  IsoScore            {self.isoscore:8.4f}   corrected {self.isoscore_corrected:.4f}"
            "   (1 = isotropic)",
            f"  explained variance  {self.ev1:8.4f}   first 2 {self.ev2:.4f}, first 3 "
            f"{self.ev3:.4f}",
            f"  anisotropy_1        {self.anisotropy1:8.4f}   centred "
            f"{self.anisotropy1_centered:.4f}",
            f"  effective rank      {self.effective_rank:8.2f}   of {self.n_features}",
            f"  mean cosine         {self.mean_cosine:8.4f}",
        ]
        lines += [
            f"  group {name}: n={group.n_samples}, IsoScore {group.isoscore:.4f} (corrected "
            f"{group.isoscore_corrected:.4f}), EV1 {group.ev1:.4f}, mean cosine "
            f"{group.mean_cosine:.4f}"
            for name, group in self.groups.items()
        ]
        return "\n".join(lines)

    __repr__ = __str__


def isotropy_report(X: ArrayLike, groups: ArrayLike | None = None) -> IsotropyReport:
    """Measure the isotropy of embeddings in every way at once, from one spectrum.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Embeddings.
    groups : array-like of shape (n_samples,), default=None
        Group of each row, such as its class; each group of two different rows or more is
        reported too.

    Returns
    -------
    IsotropyReport
        All figures; print it, or take ``to_dict()``.

    Raises
    ------
    ValueError
        If X is too small, constant or not finite, or `groups` has another length.

    Warns
    -----
    UserWarning
        If n_samples < 3 n_features: the plain IsoScore is far too low then.

    Examples
    --------
    >>> import numpy as np
    >>> from isoadapt.metrics import isotropy_report
    >>> X = np.random.default_rng(0).normal(size=(200, 4)) * [10, 1, 1, 1]
    >>> isotropy_report(X)
    IsotropyReport: 200 × 4
      IsoScore              0.0216   corrected 0.0219   (1 = isotropic)
      explained variance    0.9690   first 2 0.9801, first 3 0.9909
      anisotropy_1          0.9688   centred 0.9690
      effective rank          1.19   of 4
      mean cosine          -0.0010
    """
    points = _points(X)
    n, d = points.shape
    if n < 3 * d:
        warnings.warn(
            f"n_samples={n} is less than 3 × n_features={3 * d}: the plain IsoScore and the "
            "effective rank are far too low; read the bias-corrected score, or use more rows",
            stacklevel=2,
        )
    parts = {}
    if groups is not None:
        labels = np.asarray(groups)
        if labels.ndim != 1:
            raise ValueError(f"groups has shape {labels.shape}: one group for each row is needed")
        check_consistent_length(points, labels)
        masks = {str(label): torch.from_numpy(labels == label) for label in np.unique(labels)}
        rows = {name: points[mask] for name, mask in masks.items()}
        parts = {name: _report(part, {}) for name, part in rows.items() if _varies(part)}
    return _report(points, parts)


def _report(points: Tensor, groups: Mapping[str, IsotropyReport]) -> IsotropyReport:
    n, d = points.shape
    raw, centred = _spectrum.spectrum(points, center=False), _spectrum.spectrum(points)
    trace, square = centred.sum() / (n - 1), centred.square().sum() / (n - 1) ** 2
    corrected = float("nan")
    if n >= 4:
        corrected = float(_isoscore.corrected_score(trace, square, n, d))
    ev1, ev2, ev3 = (float(_spectrum.cumulative_explained_variance(centred, k)) for k in (1, 2, 3))
    return IsotropyReport(
        n_samples=n,
        n_features=d,
        isoscore=_score((trace.square() / square - 1) / (d - 1)),
        isoscore_corrected=corrected,
        ev1=ev1,
        ev2=ev2,
        ev3=ev3,
        anisotropy1=float(_spectrum.anisotropy(raw, 1)),
        anisotropy1_centered=ev1,
        effective_rank=float(_spectrum.effective_rank(centred)),
        mean_cosine=_mean_cosine(points),
        groups=groups,
    )


def _mean_cosine(points: Tensor) -> float:
    largest = points.abs().max()  # a common scale, lest tiny rows count as zero
    scaled = points / largest if largest > 0 else points
    return float(_cosine.mean_cosine(scaled).clamp(-1, 1))


def _numpy(X: Any) -> Any:
    return X.detach().cpu().double().numpy() if isinstance(X, Tensor) else X


def _points(X: ArrayLike, min_samples: int = 2, spread: bool = True) -> Tensor:
    """Check X and return it as float64."""
    array = check_array(
        _numpy(X),
        dtype=np.float64,
        input_name="X",
        ensure_min_samples=min_samples,
        ensure_min_features=2,
    )
    points = _tensor(array)
    if spread and not _varies(points):
        raise ValueError(
            f"X is constant: all {len(points)} rows are equal, so isotropy is not defined; check "
            "that the texts differ"
        )
    return points


def _tensor(array: NDArray[np.float64]) -> Tensor:
    """Wrap an array of any layout; one that is read-only is copied."""
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


def _varies(points: Tensor) -> bool:
    return len(points) > 1 and bool((points != points[0]).any())


def _check_k(k: int, points: Tensor) -> None:
    if not isinstance(k, (int, np.integer)) or not 1 <= k <= points.shape[1]:
        raise ValueError(f"k={k!r} must be a whole number from 1 to n_features={points.shape[1]}")


def _score(score: Tensor) -> float:
    """Clamp away what rounding puts outside [0, 1]."""
    if score.isnan():
        raise ValueError(
            "X is constant but for rounding, so isotropy is not defined; check that the texts "
            "differ, or subtract the mean in a wider type first"
        )
    return float(score.clamp(0, 1))
