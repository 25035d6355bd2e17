"""Weighted count, mean, scatter and two higher moments of rows, mergeable over chunks."""

from __future__ import annotations

from contextlib import ExitStack, closing
from itertools import pairwise
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from isoadapt._utils.containers import as_array
from isoadapt._utils.threads import Worker, one_blas_thread

_CHUNK = 262144  # rows whose scatter is computed about one pivot
_DEVICE_CHUNK = 8192  # the same on devices other than the CPU
_BLOCK = 1024  # rows at a time, which fit in the processor's cache
_PART = 2**30  # multiply-adds for which a thread is worth starting
_PIVOT_ROWS = 128  # rows whose mean is the pivot
_TENSORS = ("mean", "scatter", "third", "fourth")
_TINY = float(np.finfo(np.float64).tiny)  # added to divisors that may be zero


class Moments:
    """Count, mean, scatter and two higher moments of rows, updated by chunks and mergeable.

    All moments are kept in float64, whatever the dtype of the rows, on the device of the first
    rows. They are updated by the pairwise method of Chan, Golub and LeVeque (1983), which stays
    accurate when the mean is large compared with the spread. Merging two instances gives the
    moments of all their rows together.

    Attributes
    ----------
    count : float
        Sum of the weights, that is, the number of rows if none were given.
    mean : Tensor of shape (n_features,)
        Weighted mean.
    scatter : Tensor of shape (n_features, n_features)
        Weighted sum of the outer products of the centred rows.
    third : Tensor of shape (n_features,) or None
        Weighted sum of ‖c‖² c over the centred rows c, divided by trace(scatter)^(3/2), so that it
        does not depend on the scale. It is needed to merge `fourth`. It is None if it is unknown:
        after :meth:`mapped`, after :meth:`from_arrays` without it, and after a merge with an
        instance in which it is None.
    fourth : Tensor of shape () or None
        Weighted sum of ‖c‖⁴, divided by trace(scatter)²; it lies between 1 / count and 1. The
        bias-corrected IsoScore needs it. It is None in the same cases as `third`.

    Examples
    --------
    >>> import numpy as np
    >>> from isoadapt.geometry import Moments
    >>> X = np.random.default_rng(0).normal(size=(100, 3))
    >>> moments = Moments().update(X[:60]).merge(Moments().update(X[60:]))
    >>> np.allclose(moments.covariance(), np.cov(X.T))
    True
    """

    def __init__(self) -> None:
        self.count = 0.0
        self.mean = torch.zeros(0, dtype=torch.float64)
        self.scatter = torch.zeros(0, 0, dtype=torch.float64)
        self.third: Tensor | None = torch.zeros(0, dtype=torch.float64)
        self.fourth: Tensor | None = torch.zeros((), dtype=torch.float64)

    def update(self, X: Tensor | ArrayLike, weights: Tensor | NDArray[Any] | None = None) -> Self:
        """Add rows, and return the instance.

        Parameters
        ----------
        X : Tensor or array-like of shape (n_samples, n_features)
            Rows to add.
        weights : Tensor or ndarray of shape (n_samples,), default=None
            Frequency weights, zero or more: a row of weight 2 counts as two equal rows. Fractions
            are allowed, and `count` is the sum of all weights. Estimates that correct for the
            number of rows (``covariance()``, the bias-corrected IsoScore) then use that sum. They
            are unbiased for frequencies only, not for weights that express the reliability or the
            probability of a row. None gives each row the weight 1.

        Raises
        ------
        ValueError
            If X is not a matrix with the number of features seen before, or `weights` does not hold
            one finite weight of zero or more for each row.
        """
        if not isinstance(X, Tensor):
            X = np.asarray(as_array(X))
        if X.ndim != 2 or (self.count and X.shape[1] != len(self.mean)):
            wanted = len(self.mean) if self.count else "n_features"
            raise ValueError(f"X has shape {tuple(X.shape)}; (n_samples, {wanted}) is needed")
        if weights is not None:
            weights = torch.as_tensor(as_array(weights), dtype=torch.float64)
            allowed = torch.isfinite(weights) & (weights >= 0)
            if weights.shape != X.shape[:1] or not bool(allowed.all()):
                raise ValueError(
                    f"weights, of shape {tuple(weights.shape)}, must hold one finite number of "
                    f"zero or more for each of the {len(X)} rows of X"
                )
        on_device = isinstance(X, Tensor) and X.device.type != "cpu"
        size, moments = (_DEVICE_CHUNK, _device_moments) if on_device else (_CHUNK, _in_threads)
        for start in range(0, len(X), size):
            part = None if weights is None else weights[start : start + size]
            self._add(moments(X[start : start + size], part))
        return self

    def merge(self, other: Moments) -> Self:
        """Add the rows that another instance has seen, and return this one.

        ValueError is raised if the numbers of features differ. The other one is not changed.
        """
        if self.count and other.count and len(self.mean) != len(other.mean):
            raise ValueError(
                f"other has {len(other.mean)} features, this has {len(self.mean)}: only moments "
                "of the same features can be merged"
            )
        self._add(other)
        return self

    def covariance(self, ddof: float = 1.0) -> Tensor:
        """Return the covariance ``scatter / (count - ddof)`` of the rows seen so far.

        ValueError is raised if `count` is not larger than `ddof`.
        """
        if self.count <= ddof:
            raise ValueError(
                f"n_samples={self.count:g}: a covariance needs more than {ddof:g} row(s)"
            )
        return self.scatter / (self.count - ddof)

    def mapped(self, matrix: Tensor | NDArray[Any], offset: Tensor | NDArray[Any]) -> Moments:
        """Return the moments of the rows after the affine map x -> Ax + c.

        The matrix A has shape (n_features_out, n_features), and the offset c (n_features_out,).
        `third` and `fourth` of the new instance are None, because they cannot be computed. For the
        bias-corrected IsoScore, map the rows and pass them to :meth:`update`.
        """
        matrix = torch.as_tensor(matrix).to(self.mean)
        mean = matrix @ self.mean + torch.as_tensor(offset).to(self.mean)
        return self._of(self.count, mean, matrix @ self.scatter @ matrix.T)

    def second_moment(self) -> Tensor:
        """Return ``scatter / count + mean meanᵀ``; ValueError is raised if no row has been seen."""
        return self.covariance(ddof=0) + torch.outer(self.mean, self.mean)

    def to_arrays(self) -> dict[str, NDArray[np.float64]]:
        """Return ``count``, ``mean``, ``scatter`` and, if known, ``third`` and ``fourth``.

        They are copies as NumPy arrays, by these names; ``count`` and ``fourth`` are 0-dimensional.
        """
        arrays = [tensor.numpy(force=True).copy() for tensor in self._tensors()]
        return {"count": np.array(self.count), **dict(zip(_TENSORS, arrays, strict=False))}

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[np.float64]]) -> Moments:
        """Make an instance on the CPU from the arrays by name that :meth:`to_arrays` returned."""
        known = (arrays[name] for name in _TENSORS if name in arrays)
        tensors = (torch.tensor(array, dtype=torch.float64) for array in known)
        return cls._of(float(arrays["count"]), *tensors)

    @classmethod
    def _of(cls, count: float, mean: Tensor, scatter: Tensor, *higher: Any) -> Self:
        self = cls.__new__(cls)
        self.count, self.mean, self.scatter = count, mean, scatter
        self.third, self.fourth = higher or (None, None)
        return self

    def _tensors(self) -> list[Tensor]:
        """Return mean, scatter and, unless they are None, third and fourth moment."""
        return [tensor for name in _TENSORS if (tensor := getattr(self, name)) is not None]

    def _add(self, other: Moments) -> None:
        if not other.count:
            return
        if not self.count:
            self.count, self.mean = other.count, other.mean.clone()
            self.scatter, self.third, self.fourth = other.scatter.clone(), other.third, other.fourth
            return
        moved = (tensor.to(self.mean.device) for tensor in other._tensors())
        other = Moments._of(other.count, *moved)
        step, total = other.mean - self.mean, self.count + other.count
        share, between = other.count / total, self.count * other.count / total
        if self.third is None or other.third is None:
            self.third = self.fourth = None
        else:
            self.third, self.fourth = _merged_higher(self, other, step)
        self.scatter += other.scatter
        self.scatter.addr_(step, step, alpha=between)
        self.mean += step * share
        self.count = total

    def __len__(self) -> int:
        return len(self.mean)

    def __repr__(self) -> str:
        return f"Moments(count={self.count:g}, n_features={len(self.mean)})"

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.to_arrays())  # NumPy's arrays, which skops stores too

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(vars(self.from_arrays(state)))


def _merged_higher(first: Moments, second: Moments, step: Tensor) -> tuple[Tensor, Tensor]:
    """Third and fourth moment of two sets of rows; `step` is the second mean minus the first."""
    n, traces = first.count + second.count, first.scatter.trace() + second.scatter.trace()
    trace = traces + first.count * second.count / n * (step @ step) + _TINY
    step = step / trace**0.5
    own, others = ((each.count, *each._tensors()[1:]) for each in (first, second))
    third, fourth = _shifted_higher(own, -second.count / n * step, trace)
    second_part = _shifted_higher(others, first.count / n * step, trace)
    return third + second_part[0], fourth + second_part[1]


def _shifted_higher(part: tuple[Any, ...], shift: Tensor, trace: Tensor) -> tuple[Tensor, Tensor]:
    """Third and fourth moment of centred rows plus a shift, both in units of √trace."""
    # For n rows c of scatter S and a shift s: Σ ‖c‖²c + tr(S) s + 2 S s + n‖s‖²s and
    # Σ ‖c‖⁴ + 4 sᵀΣ ‖c‖²c + 4 sᵀS s + 2 tr(S)‖s‖² + n‖s‖⁴.
    count, scatter, third, fourth = part
    ratio, shift_square = scatter.trace() / trace, shift @ shift
    third, scatter_shift = ratio**1.5 * third, scatter @ shift / trace
    return (
        third + (ratio + count * shift_square) * shift + 2 * scatter_shift,
        ratio**2 * fourth
        + 4 * (shift @ (third + scatter_shift))
        + (2 * ratio + count * shift_square) * shift_square,
    )


def _in_threads(X: Tensor | NDArray[Any], weights: Tensor | None) -> Moments:
    """Moments of a chunk of rows in memory; each thread takes a part."""
    # Threads of BLAS in each product of a block would wait for each other longer than they compute.
    most = X.shape[0] * X.shape[1] ** 2 // _PART
    n_threads = max(1, min(torch.get_num_threads(), most))
    bounds = np.linspace(0, len(X), n_threads + 1).astype(int)
    parts = [slice(*pair) for pair in pairwise(bounds.tolist())]
    with ExitStack() as stack:
        stack.enter_context(one_blas_thread())
        started = [stack.enter_context(closing(Worker())) for _ in parts[1:]]
        given = [(X[part], None if weights is None else weights[part]) for part in parts]
        pairs = zip(started, given[1:], strict=True)
        others = [worker.submit(_chunk_moments, *arguments) for worker, arguments in pairs]
        moments = _chunk_moments(*given[0])
        for other in others:
            moments._add(other.result())
    return moments


@np.errstate(over="ignore", invalid="ignore")
def _chunk_moments(X: Tensor | NDArray[Any], weights: Tensor | None) -> Moments:
    """Moments of a chunk of rows in memory, from two matrix products of each block."""
    # CᵀC and (1, s)ᵀC, where C is X minus a pivot near the mean, and s are the squared norms of its
    # rows in units of the largest one so far, since their squares could overflow.
    counts = None if weights is None else weights.cpu().numpy()
    count = float(len(X) if counts is None else counts.sum())
    if not count:
        return Moments()
    d, pivot, largest, fourth = X.shape[1], _pivot(X, counts), _TINY, 0.0
    size = min(len(X), _BLOCK)
    scatter, sums = np.zeros((d, d)), np.zeros((2, d))
    centred_buffer, factor_buffer = np.empty((size, d)), np.ones((2, size))
    for start in range(0, len(X), _BLOCK):
        rows = _as_array(X[start : start + _BLOCK])
        centred, factors = centred_buffer[: len(rows)], factor_buffer[:, : len(rows)]
        np.subtract(rows, pivot, out=centred)
        if counts is not None:
            part = counts[start : start + _BLOCK]
            centred[part == 0] = 0  # rows without weight may be so large as to overflow
        np.einsum("ij,ij->i", centred, centred, out=factors[1])
        known, largest = largest, max(largest, factors[1].max())
        factors[1] /= largest
        sums[1] *= known / largest
        fourth *= (known / largest) ** 2
        if counts is not None:
            np.sqrt(part, out=factors[0])
            factors[1] *= factors[0]
            centred *= factors[0][:, None]
        sums += factors @ centred
        fourth += factors[1] @ factors[1]
        scatter += centred.T @ centred  # unlike SciPy's BLAS, NumPy's lets other threads go on
    return _about_mean(count, pivot, scatter, sums, fourth, largest)


def _pivot(X: Tensor | NDArray[Any], weights: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """Mean of the first rows, or of those with the largest weights; exact for constant columns."""
    if weights is None:
        chosen, own = np.arange(min(len(X), _PIVOT_ROWS)), None
    else:
        chosen = np.argsort(-weights, kind="stable")[:_PIVOT_ROWS]
        chosen = chosen[weights[chosen] > 0]
        own = weights[chosen] / weights[chosen[0]]
    rows = _as_array(X[chosen]).astype(np.float64)
    return rows[0] + np.average(rows - rows[0], axis=0, weights=own)


def _as_array(X: Tensor | NDArray[Any]) -> NDArray[Any]:
    return X.detach().double().numpy() if isinstance(X, Tensor) else X


def _about_mean(
    count: float, pivot: Any, product: Any, sums: Any, raw_fourth: float, largest: float
) -> Moments:
    """Moments about the mean from the sums of `_chunk_moments` about a pivot."""
    pivot, product, sums = map(torch.from_numpy, (pivot, product, sums))
    shift = sums[0] / count
    upper = product.addr(shift, shift, alpha=-count).triu_()
    scatter = upper + upper.triu(1).T
    trace = scatter.trace() + _TINY
    step, unit = shift / trace.sqrt(), largest / trace
    third, fourth = _shifted_higher((count, scatter, 0.0, 0.0), step, trace)
    third = sums[1] / trace.sqrt() * unit - third
    fourth = raw_fourth * unit**2 - fourth - 4 * (step @ third)
    return Moments._of(count, pivot + shift, scatter, third, fourth)


def _device_moments(X: Any, weights: Tensor | None) -> Moments:
    """Moments of a chunk of rows on a device other than the CPU."""
    rows = X.detach().to(torch.float64)
    counts = rows.new_ones(len(rows)) if weights is None else weights.to(rows.device)
    pivot, count = rows[0], float(len(rows))
    if weights is not None:  # only then is a GPU waited for
        pivot, count = rows[counts.argmax()], float(counts.sum())
    centred = rows - pivot
    offset = counts @ centred / max(count, _TINY)
    centred -= offset
    centred[counts == 0] = 0
    norms = centred.square().sum(1)
    trace = counts @ norms + _TINY
    norms /= trace
    third, fourth = counts * norms @ centred / trace.sqrt(), counts * norms @ norms
    centred *= counts.sqrt()[:, None]
    return Moments._of(count, pivot + offset, centred.T @ centred, third, fourth)
