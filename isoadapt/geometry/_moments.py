"""Weighted count, mean, scatter and two higher moments of a stream of rows."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

_BLOCK = 2048  # rows that stay in the processor's cache
_CHUNK = 8192  # rows at a time on other devices
_TINY = float(np.finfo(np.float64).tiny)  # added to what may be zero before division by it


class Moments:
    """Count, mean, scatter and two higher moments of rows, updated chunk by chunk and mergeable.

    Everything is kept in float64 on the device of the first rows, whatever their dtype, by the
    pairwise update of Chan, Golub and LeVeque (1983), which does not lose digits to a large mean.
    Merging is exact: the result is that of all rows at once.

    Attributes
    ----------
    count : float
        Sum of the weights.
    mean : Tensor of shape (n_features,)
        Weighted mean.
    scatter : Tensor of shape (n_features, n_features)
        Weighted sum of the outer products of the centred rows.
    third : Tensor of shape (n_features,) or None
        Weighted sum of ‖c‖² c over the centred rows c, divided by trace(scatter)^(3/2) so that it
        does not depend on the scale. It is needed to merge `fourth`. None if it is not known: see
        :meth:`mapped` and :meth:`from_arrays`; merging with what is not known gives None too.
    fourth : Tensor of shape () or None
        Weighted sum of ‖c‖⁴, divided by trace(scatter)²: from 1 / count to 1. The bias-corrected
        IsoScore needs it. None if it is not known, as `third`.

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
        """Take in more rows.

        Parameters
        ----------
        X : Tensor or array-like of shape (n_samples, n_features)
            Rows.
        weights : Tensor or ndarray of shape (n_samples,), default=None
            Frequency weights, zero or more: weight 2 counts a row twice. Other than whole numbers
            are allowed; `count` is their sum. Estimates that correct for the number of rows
            (``covariance()``, the bias-corrected IsoScore) then interpolate between whole
            numbers: they are free of bias for counts only, not for weights that express how
            reliable or how probable a row is.

        Returns
        -------
        Moments
            Itself.

        Raises
        ------
        ValueError
            If the shapes do not fit or a weight is negative or not finite.
        """
        if not isinstance(X, Tensor):
            X = np.asarray(X)
        if X.ndim != 2 or (self.count and X.shape[1] != len(self.mean)):
            wanted = len(self.mean) if self.count else "n_features"
            raise ValueError(f"X has shape {tuple(X.shape)}; (n_samples, {wanted}) is needed")
        if weights is not None:
            weights = torch.as_tensor(weights, dtype=torch.float64)
            if weights.shape != X.shape[:1]:
                raise ValueError(
                    f"weights has shape {tuple(weights.shape)}; one weight for each of the "
                    f"{len(X)} rows is needed"
                )
            if not bool(torch.isfinite(weights).all() & (weights >= 0).all()):
                raise ValueError("weights must be finite and not negative")
        if isinstance(X, Tensor) and X.device.type != "cpu":
            for start in range(0, len(X), _CHUNK):
                part = None if weights is None else weights[start : start + _CHUNK]
                self._add(_device_moments(X[start : start + _CHUNK], part))
        else:
            self._add(_array_moments(X, weights))
        return self

    def merge(self, other: Moments) -> Self:
        """Take in the rows that another instance has seen.

        Parameters
        ----------
        other : Moments
            Of the same number of features; left as it is.

        Returns
        -------
        Moments
            Itself.

        Raises
        ------
        ValueError
            If the numbers of features differ.
        """
        if self.count and other.count and len(self.mean) != len(other.mean):
            raise ValueError(
                f"other has {len(other.mean)} features, this has {len(self.mean)}: only moments "
                "of the same features merge"
            )
        self._add(other)
        return self

    def covariance(self, ddof: float = 1.0) -> Tensor:
        """Return the covariance of the rows seen so far.

        Parameters
        ----------
        ddof : float, default=1.0
            Subtracted from the count in the denominator.

        Returns
        -------
        Tensor of shape (n_features, n_features)
            ``scatter / (count - ddof)``, float64.

        Raises
        ------
        ValueError
            If no more than `ddof` rows have been seen.
        """
        if self.count <= ddof:
            raise ValueError(
                f"n_samples={self.count:g}: a covariance needs more than {ddof:g} row(s)"
            )
        return self.scatter / (self.count - ddof)

    def mapped(self, matrix: Tensor | NDArray[Any], offset: Tensor | NDArray[Any]) -> Moments:
        """Return the moments of the rows after the map x -> Ax + c.

        Parameters
        ----------
        matrix : Tensor or ndarray of shape (n_features_out, n_features)
            A.
        offset : Tensor or ndarray of shape (n_features_out,)
            The c.

        Returns
        -------
        Moments
            New ones; these are left as they are. Their `third` and `fourth` are None, because
            those of the mapped rows do not follow from these: for the bias-corrected IsoScore of
            mapped rows, gather the moments of the mapped rows themselves.
        """
        matrix = torch.as_tensor(matrix).to(self.mean)
        mean = matrix @ self.mean + torch.as_tensor(offset).to(self.mean)
        return self._of(self.count, mean, matrix @ self.scatter @ matrix.T)

    def second_moment(self) -> Tensor:
        """Return the mean outer product of the rows seen so far, mean included.

        Returns
        -------
        Tensor of shape (n_features, n_features)
            ``scatter / count + mean meanᵀ``, float64.

        Raises
        ------
        ValueError
            If no row has been seen.
        """
        return self.covariance(ddof=0) + torch.outer(self.mean, self.mean)

    def to_arrays(self) -> dict[str, NDArray[np.float64]]:
        """Return the state as NumPy arrays.

        Returns
        -------
        dict of str to ndarray
            ``count`` (0-dimensional), ``mean``, ``scatter`` and, where they are known, ``third``
            and ``fourth`` (0-dimensional), copies.
        """
        tensors = {
            "mean": self.mean,
            "scatter": self.scatter,
            "third": self.third,
            "fourth": self.fourth,
        }
        known = {name: value for name, value in tensors.items() if value is not None}
        arrays = {name: np.array(value.cpu().numpy()) for name, value in known.items()}
        return {"count": np.array(self.count), **arrays}

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[np.float64]]) -> Moments:
        """Make an instance from what :meth:`to_arrays` returned.

        Parameters
        ----------
        arrays : dict of str to ndarray
            ``count``, ``mean``, ``scatter`` and, both or neither, ``third`` and ``fourth``.
            Arrays saved by earlier versions lack these two: they are None then, and the
            bias-corrected IsoScore of the rows cannot be computed.

        Returns
        -------
        Moments
            With that state, on the CPU.

        Raises
        ------
        ValueError
            If the shapes do not fit together, or only one of ``third`` and ``fourth`` is given.
        """
        tensors = {
            name: torch.tensor(arrays[name], dtype=torch.float64)
            for name in ("mean", "scatter", "third", "fourth")
            if name in arrays
        }
        self = cls._of(float(arrays["count"]), **tensors)
        d = len(self.mean) if self.mean.ndim else 0
        if self.mean.ndim != 1 or self.scatter.shape != (d, d):
            raise ValueError(
                f"mean has shape {tuple(self.mean.shape)} and scatter "
                f"{tuple(self.scatter.shape)}: (d,) and (d, d) are needed"
            )
        higher = [value if value is None else value.shape for value in (self.third, self.fourth)]
        if higher not in ([None, None], [(d,), ()]):
            shown = ["missing" if shape is None else tuple(shape) for shape in higher]
            raise ValueError(
                f"third has shape {shown[0]} and fourth {shown[1]}: ({d},) and () are needed, or "
                "neither of them"
            )
        return self

    @classmethod
    def _of(
        cls,
        count: float,
        mean: Tensor,
        scatter: Tensor,
        third: Tensor | None = None,
        fourth: Tensor | None = None,
    ) -> Self:
        self = cls()
        self.count, self.mean, self.scatter = count, mean, scatter
        self.third, self.fourth = third, fourth
        return self

    def _add(self, other: Moments) -> None:
        if not other.count:
            return
        if not self.count:
            self.count, self.mean = other.count, other.mean.clone()
            self.scatter, self.third, self.fourth = other.scatter.clone(), other.third, other.fourth
            return
        device, total = self.mean.device, self.count + other.count
        share, between = other.count / total, self.count * other.count / total
        step, scatter = other.mean.to(device) - self.mean, other.scatter.to(device)
        if self.third is None or other.third is None or other.fourth is None:
            self.third = self.fourth = None
        else:
            parts = (
                _Part(self.count, self.scatter.trace(), self.third, self.fourth),
                _Part(
                    other.count, scatter.trace(), other.third.to(device), other.fourth.to(device)
                ),
            )
            self.third, self.fourth = _joint(*parts, step, self.scatter, scatter)
        self.scatter += scatter
        self.scatter.addr_(step, step, alpha=between)
        self.mean += step * share
        self.count = total

    def __len__(self) -> int:
        return len(self.mean)

    def __repr__(self) -> str:
        return f"Moments(count={self.count:g}, n_features={len(self.mean)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_arrays, (self.to_arrays(),)


class _Part(NamedTuple):
    """What the higher moments of some rows depend on; arrays or tensors."""

    n: float
    trace: Any
    third: Any
    fourth: Any


def _joint(
    first: _Part, second: _Part, step: Any, first_scatter: Any, second_scatter: Any
) -> tuple[Any, Any]:
    """Third and fourth moment of two sets of rows together; `step` leads between their means."""
    n = first.n + second.n
    trace = first.trace + second.trace + first.n * second.n / n * (step @ step) + _TINY
    step = step / trace**0.5
    third, fourth = _shifted(first, -second.n / n * step, first_scatter, trace)
    more = _shifted(second, first.n / n * step, second_scatter, trace)
    return third + more[0], fourth + more[1]


def _shifted(part: _Part, shift: Any, scatter: Any, trace: Any) -> tuple[Any, Any]:
    """Third and fourth moment of centred rows c plus a shift s, both in units of √trace.

    With n rows of scatter S they are Σ ‖c‖²c + tr(S) s + 2 S s + n‖s‖²s and
    Σ ‖c‖⁴ + 4 sᵀΣ ‖c‖²c + 4 sᵀS s + 2 tr(S)‖s‖² + n‖s‖⁴.
    """
    own, length = part.trace / trace, shift @ shift
    third, pull = own**1.5 * part.third, scatter @ shift / trace
    return (
        third + (own + part.n * length) * shift + 2 * pull,
        own**2 * part.fourth + 4 * (shift @ (third + pull)) + (2 * own + part.n * length) * length,
    )


@np.errstate(over="ignore", invalid="ignore")
def _array_moments(X: Tensor | NDArray[Any], weights: Tensor | None) -> Moments:
    """Moments of rows in memory, by symmetric products: half the work of whole ones."""
    d = X.shape[1]
    seen, mean, scatter = _Part(0.0, 0.0, np.zeros(d), 0.0), np.zeros(d), np.zeros((d, d))
    product, buffer = np.empty((d, d)), np.empty((min(len(X), _BLOCK), d))
    for start in range(0, len(X), _BLOCK):
        rows = _as_array(X[start : start + _BLOCK])
        counts = None if weights is None else weights[start : start + _BLOCK].cpu().numpy()
        block = buffer[: len(rows)]
        center, new = _center(rows, counts, block)
        if not new.n:
            continue
        np.matmul(block.T, block, out=product)  # NumPy makes a symmetric product of it
        step, n = center - mean, seen.n + new.n
        third, fourth = new.third, new.fourth
        if seen.n:
            third, fourth = _joint(seen, new, step, scatter, product)
            shift = torch.from_numpy(step)
            torch.from_numpy(scatter).addr_(shift, shift, alpha=seen.n * new.n / n)
        scatter += product
        mean += step * (new.n / n)
        seen = _Part(n, scatter.trace(), third, fourth)
    tensors = map(torch.as_tensor, (mean, scatter, seen.third, seen.fourth))
    return Moments._of(seen.n, *tensors)


def _as_array(X: Tensor | NDArray[Any]) -> NDArray[Any]:
    return X.detach().double().numpy() if isinstance(X, Tensor) else X


def _center(
    rows: NDArray[Any], weights: NDArray[np.float64] | None, out: NDArray[np.float64]
) -> tuple[NDArray[np.float64], _Part]:
    """Write the centred and weighted rows to `out`; give their mean and higher moments.

    A row is taken off first, so that the scatter of a constant column is exactly zero.
    """
    pivot = rows[0 if weights is None else weights.argmax()].astype(np.float64)
    count = float(len(rows)) if weights is None else float(weights.sum())
    out[...] = rows
    out -= pivot
    total = out.sum(axis=0) if weights is None else weights @ out
    offset = total / max(count, _TINY)
    out -= offset
    if weights is not None:
        out[weights == 0] = 0  # they may lie so far off that their norms overflow below
    norms = np.einsum("ij,ij->i", out, out)
    trace = norms.sum() if weights is None else weights @ norms
    norms /= trace + _TINY
    if weights is not None:
        roots = np.sqrt(weights)
        out *= roots[:, None]
        norms *= roots
    return pivot + offset, _Part(count, trace, norms @ out / np.sqrt(trace + _TINY), norms @ norms)


def _device_moments(X: Tensor, weights: Tensor | None) -> Moments:
    """Moments of a chunk on a device other than the CPU."""
    rows = X.detach().to(torch.float64)
    counts = rows.new_ones(len(rows)) if weights is None else weights.to(rows.device)
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
