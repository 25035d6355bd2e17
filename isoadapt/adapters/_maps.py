"""Fitted maps from embeddings to embeddings: NumPy in float64, small, without behaviour of fits."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

_CHUNK = 8192

Floats = NDArray[np.float64]


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

    def __call__(self, X: Floats) -> Floats:
        return X @ self.matrix.T + self.offset

    def inverse(self, Z: Floats) -> Floats:
        """Give the shortest preimage of each row.

        Parameters
        ----------
        Z : ndarray of shape (n_samples, n_features_out)
            Outputs.

        Returns
        -------
        ndarray of shape (n_samples, n_features)
            Inputs; exact where A is invertible.
        """
        return (Z - self.offset) @ np.linalg.pinv(self.matrix).T

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

    def __call__(self, X: Floats) -> Floats:
        hidden = self.hidden(X)
        return self.linear(X) + (hidden * ndtr(hidden)) @ self.readout.T


def map_rows(function: Affine | ResidualMLP, X: NDArray[Any]) -> Floats:
    """Apply a map in float64, chunk by chunk.

    Parameters
    ----------
    function : Affine or ResidualMLP
        The map.
    X : ndarray of shape (n_samples, n_features)
        Rows of any float dtype.

    Returns
    -------
    ndarray of shape (n_samples, n_features_out)
        Outputs in float64.
    """
    starts = range(0, max(len(X), 1), _CHUNK)
    parts = [function(X[start : start + _CHUNK].astype(np.float64)) for start in starts]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
