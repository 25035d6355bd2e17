"""Scores of isotropy of arrays, and of rows that come in chunks."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_array
from torch import Tensor

from isoadapt import geometry
from isoadapt._utils.devices import as_array
from isoadapt.geometry import Moments
from isoadapt.metrics._chunks import Chunked
from isoadapt.metrics._points import as_points, as_spread, as_tensor, clamped_score, mean_cosine


def isoscore(X: Chunked, bias_corrected: bool = False) -> float:
    """IsoScore: 0 if one direction holds all variance, 1 if all hold the same.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features), or chunks of it
        Embeddings, at least 2 × 2: as one matrix; as an iterable of matrices, a memory map or
        a dask array, read chunk by chunk; or only their :class:`~isoadapt.geometry.Moments`.
    bias_corrected : bool, default=False
        Remove most of the bias of few rows: the plain score cannot exceed
        (n_samples - 2) / (n_features - 1) and is too low even at n_samples = 3 n_features.
        Needs 4 rows. See the notes.

    Returns
    -------
    float
        In [0, 1].

    Raises
    ------
    ValueError
        If X is too small, constant or not finite; with `bias_corrected`, if X are moments whose
        ``fourth`` is not known.

    Notes
    -----
    The score is (PR - 1) / (n_features - 1) with the participation ratio PR = tr(Σ)² / ‖Σ‖_F² of
    the covariance. The bias-corrected score estimates numerator and denominator without bias,
    whatever the distribution of the rows, and clamps their ratio to [1, n_features]. A clamped
    ratio of unbiased estimates keeps a bias, which raises low scores, lowers scores near 1 and
    falls roughly as 1 / n_samples: for Gaussian rows of 12 dimensions with a true score of .468,
    the mean score is .66 at 5 rows, .59 at 8, .53 at 16 and .49 at 40. ``benchmarks/RESULTS.md``
    tabulates it for other sizes and rows.

    Weighted rows come as :class:`~isoadapt.geometry.Moments`. Whole weights give the score of the
    rows repeated so often. Other weights interpolate between whole numbers: the sum of the weights
    then counts as the number of rows, which removes the bias for frequencies only, not for
    weights that express how reliable or how probable a row is.

    References
    ----------
    Rudman, Gillman, Rayne and Eickhoff (2022), "IsoScore: Measuring the Uniformity of Embedding
    Space Utilization".

    Himeno and Yamada (2014), "Estimations for some functions of covariance matrix in high
    dimension under non-normality and its applications".

    Examples
    --------
    >>> import numpy as np
    >>> from isoadapt.metrics import isoscore
    >>> X = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    >>> isoscore(X), isoscore(X * [1.0, 0.0])
    (1.0, 0.0)
    >>> isoscore(chunk for chunk in np.split(X, 2))
    1.0
    """
    points = as_spread(X, min_samples=4 if bias_corrected else 2)
    if isinstance(points, Moments):
        return _corrected_score(points) if bias_corrected else _score(points.covariance())
    return clamped_score(geometry.isoscore_star(points, bias_corrected=bias_corrected))


def isoscore_star(X: Chunked, prior_cov: ArrayLike | None = None, zeta: float = 0.2) -> float:
    """IsoScore*: the IsoScore of (1 - zeta) Σ_X + zeta Σ_S, with Σ_S = `prior_cov`.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features), or chunks of it
        Embeddings, at least 2 × 2, as one matrix or as :func:`isoscore` takes them.
    prior_cov : array-like of shape (n_features, n_features), default=None
        Shrinkage covariance Σ_S, the covariance of a larger sample; None is the identity.
    zeta : float, default=0.2
        Weight of Σ_S, in [0, 1].

    Returns
    -------
    float
        In [0, 1].

    Raises
    ------
    ValueError
        If X is too small, constant or not finite, `prior_cov` has another shape or is not
        symmetric, or `zeta` is outside [0, 1].

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
    if not 0 <= zeta <= 1:
        raise ValueError(f"zeta={zeta!r} must lie in [0, 1]")
    points = as_spread(X)
    d = _width(points)
    prior = None
    if prior_cov is not None:
        checked = check_array(as_array(prior_cov), dtype=np.float64, input_name="prior_cov")
        prior = as_tensor(checked)
        if prior.shape != (d, d):
            raise ValueError(
                f"prior_cov has shape {tuple(prior.shape)}, X has {d} features: {(d, d)} is needed"
            )
        if not torch.allclose(prior, prior.T):
            raise ValueError("prior_cov is not symmetric: pass a covariance matrix")
    if isinstance(points, Moments):
        identity = torch.eye(d, dtype=torch.float64)
        return _score(points.covariance().lerp(identity if prior is None else prior, zeta))
    return clamped_score(geometry.isoscore_star(points, prior, zeta))


def cumulative_explained_variance(X: Chunked, k: int = 3) -> float:
    """Share of variance along the first k principal directions, EV_k.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features), or chunks of it
        Embeddings, as one matrix or as :func:`isoscore` takes them.
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
    points = as_spread(X)
    _check_k(k, _width(points))
    return float(geometry.cumulative_explained_variance(_variances(points), k))


def anisotropy(X: Chunked, k: int = 3, center: bool = False) -> float:
    """Share of the k-th squared singular value alone, anisotropy_k.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features), or chunks of it
        Embeddings, as one matrix or as :func:`isoscore` takes them.
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
    points = as_spread(X)
    _check_k(k, _width(points))
    return float(geometry.anisotropy(_variances(points, center), k))


def effective_rank(X: Chunked) -> float:
    """Exponential of the entropy of the covariance's normalised eigenvalues.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features), or chunks of it
        Embeddings, as one matrix or as :func:`isoscore` takes them.

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
    return float(geometry.effective_rank(_variances(as_spread(X))))


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
    return mean_cosine(as_points(X, spread=False))


def partition_isotropy(X: ArrayLike) -> float:
    """Smallest over largest value of the partition function along the principal axes, I1.

    The partition function is Z(v) = Σ_i exp(vᵀx_i), v over the unit eigenvectors of XᵀX,
    uncentred. The entry of largest absolute value of each eigenvector is positive. The figure
    depends on the scale of X and on its coordinates: compare only what is scaled alike.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Embeddings.

    Returns
    -------
    float
        In [0, 1], 1 for isotropic embeddings; nothing overflows.

    Raises
    ------
    ValueError
        If X is too small or not finite.

    References
    ----------
    Mu and Viswanath (2018), "All-but-the-Top: Simple and Effective Postprocessing for Word
    Representations".

    Examples
    --------
    >>> from isoadapt.metrics import partition_isotropy
    >>> round(partition_isotropy([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.5], [0.0, -0.5]]), 4)
    0.8366
    """
    return float(geometry.partition_isotropy(_log_partition(X)))


def partition_dispersion(X: ArrayLike) -> float:
    """Standard deviation over mean of the partition function along the principal axes, I2.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Embeddings; scale and coordinates matter as for :func:`partition_isotropy`.

    Returns
    -------
    float
        At least 0, 0 for isotropic embeddings. The standard deviation divides by n_features.

    Raises
    ------
    ValueError
        If X is too small or not finite.

    References
    ----------
    Wang et al. (2020), "Improving Neural Language Generation with Spectrum Control".

    Examples
    --------
    >>> from isoadapt.metrics import partition_dispersion
    >>> round(partition_dispersion([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.5], [0.0, -0.5]]), 4)
    0.0889
    """
    return float(geometry.partition_dispersion(_log_partition(X)))


def two_nn(X: ArrayLike, discard: float = 0.1) -> float:
    """TwoNN intrinsic dimension, from the two nearest neighbours of each row.

    Exact in O(n_samples² n_features) without ever holding all pairs; exact duplicates are
    dropped first.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Embeddings, 4 different rows at least.
    discard : float, default=0.1
        Share of the largest ratios of second to first distance to leave out, between 0 and 1.

    Returns
    -------
    float
        Above 0; the same under rotation, translation and scaling.

    Raises
    ------
    ValueError
        If X has fewer than 4 different rows, is not finite or a lattice, or `discard` is out of
        its range.

    References
    ----------
    Facco, d'Errico, Rodriguez and Laio (2017), "Estimating the intrinsic dimension of datasets
    by a minimal neighborhood information".

    Examples
    --------
    >>> import numpy as np
    >>> from isoadapt.metrics import two_nn
    >>> plane = np.random.default_rng(0).uniform(size=(2000, 2))
    >>> round(two_nn(plane @ [[1.0, 2.0, 0.0, 1.0], [0.0, 1.0, 3.0, 1.0]]), 2)
    1.96
    """
    points = as_points(X, spread=False)
    if not 0 < discard < 1:
        raise ValueError(f"discard={discard!r} must lie between 0 and 1, both excluded")
    return float(geometry.two_nn(points, discard))


def _log_partition(X: ArrayLike) -> Tensor:
    return geometry.log_partition(as_points(X, spread=False))


def _check_k(k: int, n_features: int) -> None:
    if not isinstance(k, (int, np.integer)) or not 1 <= k <= n_features:
        raise ValueError(f"k={k!r} must be a whole number from 1 to n_features={n_features}")


def _width(points: Tensor | Moments) -> int:
    return len(points) if isinstance(points, Moments) else points.shape[1]


def _score(cov: Tensor) -> float:
    """IsoScore of a covariance, in units of its trace, so that squares do not overflow."""
    return clamped_score(geometry.isoscore_from_covariance(cov / cov.trace()))


def _corrected_score(moments: Moments) -> float:
    if moments.fourth is None:
        raise ValueError(
            "bias_corrected=True needs the fourth moment of the rows, but X are moments that lack "
            "it: they were saved by an earlier version, or come from Moments.mapped; gather the "
            "moments of the rows themselves with Moments().update(rows), or use "
            "bias_corrected=False"
        )
    square = (moments.scatter / moments.scatter.trace()).square().sum()
    n, d = moments.count, len(moments)
    return clamped_score(geometry.corrected_score(square, moments.fourth, n, d))


def _variances(points: Tensor | Moments, center: bool = True) -> Tensor:
    """Variances along the principal directions, up to one factor, descending."""
    if isinstance(points, Moments):
        matrix = points.scatter if center else points.second_moment()
        return torch.linalg.eigvalsh(matrix).flip(0).clamp(min=0)
    return geometry.spectrum(points, center)
