"""Fitted maps of embeddings, small NumPy objects in float64."""

from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy.spatial.distance import cdist

from isoadapt.geometry._chunks import check_chunk

_BLOCK = 2048  # rows that fit into the processor's cache

Floats = NDArray[np.float64]


class Map(Protocol):
    """Interface of the fitted map ``map_`` of an adapter."""

    @property
    def n_features_out(self) -> int:
        """Width of the outputs."""

    def __call__(self, X: Floats) -> Floats:
        """Map rows of shape (n_samples, n_features) to (n_samples, n_features_out)."""


class Affine(NamedTuple):
    """Affine map z = Ah + c.

    Attributes
    ----------
    matrix : ndarray of shape (n_features_out, n_features)
        The matrix A, float64.
    offset : ndarray of shape (n_features_out,)
        The offset c, float64.
    """

    matrix: Floats
    offset: Floats

    @property
    def n_features_out(self) -> int:
        """Width of the outputs."""
        return len(self.matrix)

    def __call__(self, X: Floats) -> Floats:
        Z = X @ self.matrix.T
        Z += self.offset
        return Z

    def inverted(self) -> "Affine":
        """Return the inverse or, for a singular matrix, the map to preimages of smallest norm."""
        rounding = max(self.matrix.shape) * np.finfo(np.float64).eps
        matrix = np.asarray(np.linalg.pinv(self.matrix, rtol=rounding), dtype=np.float64)
        return Affine(matrix, -matrix @ self.offset)

    def after(self, first: "Affine") -> "Affine":
        """Return the composition ``h -> self(first(h))`` with a map that is applied first."""
        return Affine(self.matrix @ first.matrix, self.matrix @ first.offset + self.offset)


class ClusterProjection(NamedTuple):
    """The map z = (I - VᵀV)(h - m), with m and V of the cluster whose centre is nearest to h."""

    centers: Floats  # (n_clusters, n_features)
    means: Floats  # m of each cluster, (n_clusters, n_features)
    # V of each cluster, (n_clusters, n_components, n_features): orthonormal rows or rows of zeros
    components: Floats

    @property
    def n_features_out(self) -> int:
        """Width of the outputs."""
        return self.means.shape[1]

    def __call__(self, X: Floats) -> Floats:
        nearest = nearest_center(X, self.centers)
        Z = X - self.means[nearest]
        for cluster in np.unique(nearest):
            rows, components = nearest == cluster, self.components[cluster]
            Z[rows] -= (Z[rows] @ components.T) @ components
        return Z


def nearest_center(X: Floats, centers: Floats) -> NDArray[np.intp]:
    """Return the index (n_samples,) of the nearest centre of each row, whatever the others are."""
    return np.asarray(cdist(X, centers, "sqeuclidean").argmin(axis=1))


def compose(maps: Iterable[Affine]) -> Affine:
    """Compose affine maps, which are applied in this order."""
    return reduce(lambda first, then: then.after(first), maps)


def map_rows(
    function: Map | Callable[[Floats], Floats], X: NDArray[Any], dtype: DTypeLike = np.float64
) -> NDArray[Any]:
    """Apply a map, which must not change its argument, to X in float64, block by block."""
    if isinstance(function, Affine) and X.dtype == dtype == np.float64:  # which needs no copies
        return function(X)
    first = function(np.asarray(X[:_BLOCK], dtype=np.float64))
    outputs = np.empty((len(X), *first.shape[1:]), dtype)
    outputs[:_BLOCK] = first
    for start in range(_BLOCK, len(X), _BLOCK):
        block = np.asarray(X[start : start + _BLOCK], dtype=np.float64)
        outputs[start : start + _BLOCK] = function(block)
    return outputs


def map_block(block: Any, map_: Map) -> NDArray[Any]:
    """Apply a map to a block of a dask array, which may be empty."""
    rows = check_chunk(block)
    return map_rows(map_, rows, rows.dtype)
