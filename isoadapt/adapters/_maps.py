"""Fitted maps from embeddings to embeddings: NumPy in float64, small, without behaviour of fits."""

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy.spatial.distance import cdist
from scipy.special import ndtr

_BLOCK = 2048  # rows that stay in the processor's cache

Floats = NDArray[np.float64]


# Classes that an adapter folder may hold, by the names that stand in it, and their modules. A name
# stays when its class is renamed or moved, so that folders written before can be read.
STORABLE_MAPS = {
    "Affine": "isoadapt.adapters._maps:Affine",
    "ResidualMLP": "isoadapt.adapters._maps:ResidualMLP",
    "ClusterProjection": "isoadapt.adapters._maps:ClusterProjection",
    "FlowMap": "isoadapt.adapters._flow._map:FlowMap",
    "Block": "isoadapt.adapters._flow._map:Block",
    "Last": "isoadapt.adapters._flow._map:Last",
}


def map_class(name: str) -> Any:
    """Import the class of a map or of its part by its name in adapter folders; KeyError if none."""
    module, _, attribute = STORABLE_MAPS[name].partition(":")
    return getattr(import_module(module), attribute)


def map_name(value: Any) -> str | None:
    """Name in adapter folders of the class of a map or of its part; None if it has none."""
    place = f"{type(value).__module__}:{type(value).__qualname__}"
    return next((name for name, known in STORABLE_MAPS.items() if known == place), None)


class Map(Protocol):
    """A fitted map of rows: what every adapter keeps as ``map_``."""

    @property
    def n_features_out(self) -> int:
        """Width of the outputs."""

    def __call__(self, X: Floats) -> Floats:
        """Map rows of shape (n_samples, n_features) to (n_samples, n_features_out)."""


class InvertibleMap(Map, Protocol):
    """A map that can be undone."""

    def inverted(self) -> Callable[[Floats], Floats]:
        """Give the map back, from rows of outputs to rows of inputs."""


class Affine(NamedTuple):
    """The map z = Ah + c.

    Attributes
    ----------
    matrix : ndarray of shape (n_features_out, n_features)
        A.
    offset : ndarray of shape (n_features_out,)
        c.
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
        """Give the map back: z -> the shortest preimage of z, exact where A is invertible.

        Returns
        -------
        Affine
            With the pseudo-inverse of A.
        """
        rounding = max(self.matrix.shape) * np.finfo(np.float64).eps
        matrix = np.asarray(np.linalg.pinv(self.matrix, rtol=rounding), dtype=np.float64)
        return Affine(matrix, -matrix @ self.offset)

    def after(self, first: "Affine") -> "Affine":
        """Compose with the map that goes first.

        Parameters
        ----------
        first : Affine
            Applied before this one.

        Returns
        -------
        Affine
            ``h -> self(first(h))``.
        """
        return Affine(self.matrix @ first.matrix, self.matrix @ first.offset + self.offset)


class ResidualMLP(NamedTuple):
    """The map z = Ah + c + V gelu(Uh + u).

    Attributes
    ----------
    linear : Affine
        A and c.
    hidden : Affine
        U and u.
    readout : ndarray of shape (n_features, n_hidden)
        V.
    """

    linear: Affine
    hidden: Affine
    readout: Floats

    @property
    def n_features_out(self) -> int:
        """Width of the outputs."""
        return len(self.linear.matrix)

    def __call__(self, X: Floats) -> Floats:
        hidden = self.hidden(X)
        return self.linear(X) + (hidden * ndtr(hidden)) @ self.readout.T


class ClusterProjection(NamedTuple):
    """The map z = (I - VᵀV)(h - m), with the m and V of the cluster that h is nearest to.

    Attributes
    ----------
    centers : ndarray of shape (n_clusters, n_features)
        Whose Euclidean distance decides.
    means : ndarray of shape (n_clusters, n_features)
        m of each cluster.
    components : ndarray of shape (n_clusters, n_components, n_features)
        V of each cluster: orthonormal rows, or rows of zeros.
    """

    centers: Floats
    means: Floats
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
    """Find the centre nearest to each row, whatever other rows there are.

    Parameters
    ----------
    X : ndarray of shape (n_samples, n_features)
        Rows.
    centers : ndarray of shape (n_clusters, n_features)
        Centres.

    Returns
    -------
    ndarray of shape (n_samples,)
        Numbers of the centres; of equally near ones the first.
    """
    return np.asarray(cdist(X, centers, "sqeuclidean").argmin(axis=1))


def compose(maps: Iterable[Affine]) -> Affine:
    """Compose affine maps, in the order in which they are applied, into one in float64.

    Parameters
    ----------
    maps : iterable of Affine
        One or more, the first to be applied first: ``adapter.to_affine()`` of each step of a
        pipeline.

    Returns
    -------
    Affine
        The map that does it all at once; its ``inverted()`` undoes it all at once.

    Raises
    ------
    ValueError
        If a map does not take as many features as the one before it gives out.
    """
    first, *others = maps
    for step in others:
        if step.matrix.shape[1] != first.n_features_out:
            raise ValueError(
                f"a map takes {step.matrix.shape[1]} features, but the one before it gives out "
                f"{first.n_features_out}: compose maps in the order in which they are applied"
            )
        first = step.after(first)
    return first


def map_rows(
    function: Map | Callable[[Floats], Floats],
    X: NDArray[Any],
    dtype: DTypeLike = np.float64,
) -> NDArray[Any]:
    """Apply a map in float64, block by block.

    Parameters
    ----------
    function : Map or callable
        The map, or the way back; it leaves its argument as it is.
    X : ndarray of shape (n_samples, n_features)
        Rows of any float dtype.
    dtype : dtype, default=float64
        What the outputs are rounded to.

    Returns
    -------
    ndarray of shape (n_samples, n_features_out)
        Outputs.
    """
    first = function(np.asarray(X[:_BLOCK], dtype=np.float64))
    outputs = np.empty((len(X), *first.shape[1:]), dtype)
    outputs[:_BLOCK] = first
    for start in range(_BLOCK, len(X), _BLOCK):
        block = np.asarray(X[start : start + _BLOCK], dtype=np.float64)
        outputs[start : start + _BLOCK] = function(block)
    return outputs
