"""Isotropy scores of arrays and of embeddings in chunks."""

from __future__ import annotations

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from isoadapt._utils.state import own_state
from isoadapt.geometry import _neighbours, _spread
from isoadapt.geometry._chunks import Chunked, gather, in_chunks, is_dask
from isoadapt.metrics._points import (
    as_points,
    check_k,
    check_variance,
    corrected_isoscore,
    corrected_score,
    moments_of,
    read_rows,
    score_of,
    warn_of_few_units,
)


@own_state()
def isoscore(X: Chunked, bias_corrected: bool = False, groups: ArrayLike | None = None) -> float:
    """IsoScore of embeddings: 1 if all directions have equal variance, 0 if one has all of it.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features), or chunks of it
        Embeddings, with at least two rows and two columns. They are given as one matrix; as an
        iterable of matrices, a memory map or a dask array, read chunk by chunk (of the latter two,
        the corrected score reads the chunks three times); or by
        their :class:`~isoadapt.geometry.Moments`.
    bias_corrected : bool, default=False
        Remove most of the bias for few rows; needs 4 rows. The plain score cannot exceed
        (n_samples - 2) / (n_features - 1), and even with n_samples = 3 n_features it is too low.
        See the notes.
    groups : array-like of shape (n_samples,), default=None
        Group of each row, where rows of one group depend on each other: the tokens of a text, the
        sentences of a document. At least 4 groups; X must then be a matrix, a memory map or a dask
        array, and `bias_corrected` True: the plain score does not depend on groups.

    Raises
    ------
    ValueError
        If X is too small, constant or not finite, or `groups` does not fit or is given without
        `bias_corrected`. With `bias_corrected`, also if X is a Moments object whose ``fourth`` is
        None.

    Warns
    -----
    UserWarning
        With `bias_corrected`, if one row of a matrix, or one group, holds more than 5 % of the
        squared deviations from the mean, and more than 10 times the share of an average one; or if
        many rows are equal, and few different, see Notes.

    Notes
    -----
    The score is (PR - 1) / (n_features - 1), where PR = tr(Σ)² / ‖Σ‖_F² is the participation ratio
    of the covariance Σ. The bias-corrected score replaces numerator and denominator of PR by
    unbiased estimates, whatever the distribution of the rows, and clamps their ratio to [1,
    n_features]. A clamped ratio of unbiased estimates is still biased: low scores come out too
    high, scores near 1 too low, by an amount that falls roughly as 1 / n_samples.
    ``benchmarks/RESULTS.md`` has a table for several sizes and distributions.

    The corrected score takes the rows as independent of each other, and of the map if they were
    transformed by one. Rows that an adapter was fitted to are not: whitened by their own
    covariance they have the corrected score 1, whatever other rows have. Judge it on other rows.

    Copies and equal draws of a discrete distribution look alike. If at most a fifth of the rows
    equal earlier ones up to rounding, these are taken as copies and left out; if more do, all rows
    are taken as draws, with a warning if fewer than three for each dimension are different: if they
    are copies, name them by `groups`. With `groups`, the estimates are means over rows of different
    groups, so that the number of groups counts. Groups of equal rows are taken as copies by the
    same rule, equal rows of others are not.

    To weight rows, pass :class:`~isoadapt.geometry.Moments`, whose weights are frequencies: the sum
    of the weights counts as the number of independent rows.

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
    if groups is not None and not bias_corrected:
        raise ValueError(
            "groups was given, but the plain IsoScore does not depend on groups of rows: pass "
            "bias_corrected=True too, or leave groups out"
        )
    if bias_corrected and (groups is not None or is_dask(X) or not in_chunks(X)):
        found = read_rows(X, groups, least=4)
        if found.n_units > found.n_different:
            warn_of_few_units(found)
        return corrected_isoscore(found)
    if bias_corrected:
        moments = gather(X, min_samples=4, distinct=True)
        check_variance(moments)
        return corrected_score(moments, len(moments))
    moments, d = moments_of(X)
    return score_of(moments.scatter / moments.scatter.trace(), d)


@own_state()
def isoscore_star(X: Chunked, prior_cov: ArrayLike | None = None, zeta: float = 0.2) -> float:
    """IsoScore* of embeddings: the IsoScore of (1 - zeta) Σ_X + zeta Σ_S, with Σ_S = `prior_cov`.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features), or chunks of it
        Embeddings, with at least two rows and two columns, as one matrix or in one of the other
        forms that :func:`isoscore` accepts.
    prior_cov : array-like of shape (n_features, n_features), default=None
        Shrinkage covariance Σ_S, for example the covariance of a larger sample. None is the
        identity.
    zeta : float, default=0.2
        Weight of Σ_S, in [0, 1].

    Raises
    ------
    ValueError
        If X is too small, constant or not finite, if `prior_cov` has the wrong shape, is not
        symmetric, or if `zeta` is outside [0, 1].

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
    moments, d = moments_of(X, rotated=False)
    prior = torch.eye(d, dtype=torch.float64)
    if prior_cov is not None:
        prior = as_points(prior_cov, "prior_cov")
        if prior.shape != (d, d):
            raise ValueError(
                f"prior_cov has shape {tuple(prior.shape)}, X has {d} features: {(d, d)} is needed"
            )
        if not torch.allclose(prior, prior.T):
            raise ValueError("prior_cov is not symmetric: pass a covariance matrix")
    mixed = moments.covariance().lerp(prior, zeta)
    return score_of(mixed / mixed.trace(), d)


@own_state()
def cumulative_explained_variance(X: Chunked, k: int = 3) -> float:
    """EV_k, the share of the variance along the first k principal directions.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features), or chunks of it
        Embeddings, as one matrix or in one of the other forms that :func:`isoscore` accepts.
    k : int, default=3
        Number of directions, from 1 to n_features.

    Raises
    ------
    ValueError
        If X is constant or not finite, or `k` is out of its range.

    Examples
    --------
    >>> import numpy as np
    >>> from isoadapt.metrics import cumulative_explained_variance
    >>> X = np.array([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    >>> round(cumulative_explained_variance(X, k=1), 3)
    0.9
    """
    moments, d = moments_of(X)
    check_k(k, d, "features")
    variances = _spread.eigenvalues(moments.scatter)
    return float(_spread.cumulative_explained_variance(variances, k))


@own_state()
def anisotropy(X: Chunked, k: int = 3, center: bool = False) -> float:
    """Share of the k-th squared singular value in the sum of all, anisotropy_k.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features), or chunks of it
        Embeddings, as one matrix or in one of the other forms that :func:`isoscore` accepts.
    k : int, default=3
        Index of the singular value, from 1 (the largest) to n_features.
    center : bool, default=False
        Subtract the mean first. Without centring, the first singular value includes the mean.

    Raises
    ------
    ValueError
        If X is constant or not finite, or `k` is out of its range.

    Examples
    --------
    >>> import numpy as np
    >>> from isoadapt.metrics import anisotropy
    >>> X = np.array([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    >>> round(anisotropy(X, k=2), 3)
    0.1
    """
    moments, d = moments_of(X)
    check_k(k, d, "features")
    second_moment = moments.scatter if center else moments.second_moment()
    return float(_spread.anisotropy(_spread.eigenvalues(second_moment), k))


@own_state()
def effective_rank(X: Chunked) -> float:
    """Effective rank: the exponential of the entropy of the normalised covariance eigenvalues.

    It is between 1 and n_features.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features), or chunks of it
        Embeddings, as one matrix or in one of the other forms that :func:`isoscore` accepts.

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
    return float(_spread.effective_rank(_spread.eigenvalues(moments_of(X)[0].scatter)))


@own_state()
def mean_cosine_similarity(X: ArrayLike) -> float:
    """Mean cosine of all pairs of different rows, computed exactly in O(n d).

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Embeddings, with at least two rows. A zero row has cosine 0 with every other row.

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
    points = as_points(X)
    return _spread.mean_cosine([points], len(points))


@own_state()
def partition_isotropy(X: ArrayLike) -> float:
    """I1: smallest over largest value of the partition function along the principal axes.

    It is between 0 and 1, and 1 for isotropic embeddings.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Embeddings.

    Raises
    ------
    ValueError
        If X is too small or not finite.

    Notes
    -----
    The partition function is Z(v) = Σ_i exp(vᵀx_i), evaluated at the unit eigenvectors v of XᵀX,
    without centring. Z depends on the sign of v, which is chosen such that the entry of v of
    largest absolute value is positive. The result therefore depends on the coordinates as well as
    on the scale of X: compare only embeddings of the same scale.

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
    return float(_spread.partition_isotropy(_log_partition(X)))


@own_state()
def partition_dispersion(X: ArrayLike) -> float:
    """I2: standard deviation over mean of the partition function along the principal axes.

    It is 0 for isotropic embeddings. The standard deviation divides by n_features.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Embeddings. The result depends on their scale and coordinates, as described in the notes of
        :func:`partition_isotropy`.

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
    return float(_spread.partition_dispersion(_log_partition(X)))


@own_state()
def two_nn(X: ArrayLike, discard: float = 0.1) -> float:
    """TwoNN estimate of the intrinsic dimension, from the two nearest neighbours of each row.

    It does not change under rotation, translation and scaling.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Embeddings, with at least 4 different rows. Exact duplicates are dropped first.
    discard : float, default=0.1
        Share of the largest ratios of the second to the first distance that is left out, between
        0 and 1.

    Raises
    ------
    ValueError
        If X has fewer than 4 different rows or is not finite, if the two nearest neighbours of
        every row are equally far away, as on a lattice, or if `discard` is out of its range.

    Notes
    -----
    The neighbours are exact. The cost is O(n_samples² n_features), and the distances are computed
    in blocks, so that they need not fit in memory at once.

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
    points = as_points(X)
    if not 0 < discard < 1:
        raise ValueError(f"discard={discard!r} must lie between 0 and 1, both excluded")
    return float(_neighbours.two_nn(points, discard))


def _log_partition(X: ArrayLike) -> Tensor:
    return _spread.log_partition(as_points(X))
