"""Weighted count, mean and scatter of a stream of rows."""

from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

_BLOCK = 2048  # rows that stay in the processor's cache
_CHUNK = 8192  # rows at a time on other devices


class Moments:
    """Count, mean and scatter of rows, updated chunk by chunk and mergeable.

    Everything is kept in float64 on the device of the first rows, whatever their dtype, by the
    pairwise update of Chan, Golub and LeVeque (1983), which does not lose digits to a large mean.

    Attributes
    ----------
    count : float
        Sum of the weights.
    mean : Tensor of shape (n_features,)
        Weighted mean.
    scatter : Tensor of shape (n_features, n_features)
        Weighted sum of the outer products of the centred rows.

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

    def update(self, X: Tensor | ArrayLike, weights: Tensor | NDArray[Any] | None = None) -> Self:
        """Take in more rows.

        Parameters
        ----------
        X : Tensor or array-like of shape (n_samples, n_features)
            Rows.
        weights : Tensor or ndarray of shape (n_samples,), default=None
            Frequency weights, zero or more: weight 2 counts a row twice.

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
                self._add(*_tensor_moments(X[start : start + _CHUNK], part))
        else:
            self._add(*_array_moments(X, weights))
        return self

    def merge(self, other: "Moments") -> Self:
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
        self._add(other.count, other.mean, other.scatter)
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

    def mapped(self, matrix: Tensor | NDArray[Any], offset: Tensor | NDArray[Any]) -> "Moments":
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
            New ones; these are left as they are.
        """
        matrix = torch.as_tensor(matrix).to(self.mean)
        result = Moments()
        result.count = self.count
        result.mean = matrix @ self.mean + torch.as_tensor(offset).to(self.mean)
        result.scatter = matrix @ self.scatter @ matrix.T
        return result

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
            ``count`` (0-dimensional), ``mean`` and ``scatter``, copies.
        """
        return {
            "count": np.array(self.count),
            "mean": self.mean.cpu().numpy().copy(),
            "scatter": self.scatter.cpu().numpy().copy(),
        }

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[np.float64]]) -> "Moments":
        """Make an instance from what :meth:`to_arrays` returned.

        Parameters
        ----------
        arrays : dict of str to ndarray
            ``count``, ``mean`` and ``scatter``.

        Returns
        -------
        Moments
            With that state, on the CPU.

        Raises
        ------
        ValueError
            If the shapes do not fit together.
        """
        self = cls()
        self.count = float(arrays["count"])
        self.mean = torch.tensor(arrays["mean"], dtype=torch.float64)
        self.scatter = torch.tensor(arrays["scatter"], dtype=torch.float64)
        if self.mean.ndim != 1 or self.scatter.shape != (len(self.mean), len(self.mean)):
            raise ValueError(
                f"mean has shape {tuple(self.mean.shape)} and scatter "
                f"{tuple(self.scatter.shape)}: (d,) and (d, d) are needed"
            )
        return self

    def _add(self, count: float, mean: Tensor, scatter: Tensor) -> None:
        if not count:
            return
        if not self.count:
            self.count, self.mean, self.scatter = count, mean.clone(), scatter.clone()
            return
        total = self.count + count
        step = mean.to(self.mean.device) - self.mean
        self.scatter += scatter.to(self.mean.device)
        self.scatter.addr_(step, step, alpha=self.count * count / total)
        self.mean += step * (count / total)
        self.count = total

    def __len__(self) -> int:
        return len(self.mean)

    def __repr__(self) -> str:
        return f"Moments(count={self.count:g}, n_features={len(self.mean)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_arrays, (self.to_arrays(),)


def _array_moments(
    X: Tensor | NDArray[Any], weights: Tensor | None
) -> tuple[float, Tensor, Tensor]:
    """Moments of rows in memory, by symmetric products: half the work of whole ones."""
    count, mean = 0.0, np.zeros(X.shape[1])
    scatter = np.zeros((X.shape[1], X.shape[1]))
    buffer = np.empty((min(len(X), _BLOCK) + 1, X.shape[1]))
    for start in range(0, len(X), _BLOCK):
        rows = _as_array(X[start : start + _BLOCK])
        part = None if weights is None else weights[start : start + _BLOCK].cpu().numpy()
        block = buffer[: len(rows) + 1]
        more, center = _center(rows, part, block[:-1])
        if not more:
            continue
        step = center - mean
        block[-1] = np.sqrt(count * more / (count + more)) * step  # what lies between the blocks
        scatter += block.T @ block  # NumPy makes a symmetric product of it
        count += more
        mean += step * (more / count)
    return count, torch.from_numpy(mean), torch.from_numpy(scatter)


def _as_array(X: Tensor | NDArray[Any]) -> NDArray[Any]:
    return X.detach().double().numpy() if isinstance(X, Tensor) else X


def _center(
    rows: NDArray[Any], weights: NDArray[np.float64] | None, out: NDArray[np.float64]
) -> tuple[float, NDArray[np.float64]]:
    """Write the centred and weighted rows to `out`; give their count and mean.

    A row is taken off first, so that the scatter of a constant column is exactly zero.
    """
    pivot = rows[0 if weights is None else weights.argmax()].astype(np.float64)
    count = float(len(rows)) if weights is None else float(weights.sum())
    np.subtract(rows, pivot, out=out, dtype=np.float64, casting="unsafe")
    total = out.sum(axis=0) if weights is None else weights @ out
    offset = total / max(count, np.finfo(np.float64).tiny)
    out -= offset
    if weights is not None:
        out *= np.sqrt(weights)[:, None]
    return count, pivot + offset


def _tensor_moments(X: Tensor, weights: Tensor | None) -> tuple[float, Tensor, Tensor]:
    """Moments of a chunk on a device other than the CPU."""
    rows = X.detach().to(torch.float64)
    counts = rows.new_ones(len(rows)) if weights is None else weights.to(rows.device)
    pivot, count = rows[counts.argmax()], float(counts.sum())
    centred = rows - pivot
    offset = counts @ centred / max(count, torch.finfo(torch.float64).tiny)
    centred = (centred - offset) * counts.sqrt()[:, None]
    return count, pivot + offset, centred.T @ centred
