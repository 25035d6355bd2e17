"""The coordinates in which a network is trained; the fitted map is in the embeddings' own."""

from typing import NamedTuple

import numpy as np

from isoadapt.adapters._closed_form import row_space
from isoadapt.adapters._linalg import descending_eigh
from isoadapt.adapters._maps import Affine, Floats
from isoadapt.geometry import Moments
from isoadapt.heads import LinearHead


class Coordinates(NamedTuple):
    """The coordinates in which a network is trained: z = Q network(P(h - μ)).

    Attributes
    ----------
    into : Affine
        h -> g = P(h - μ), the network's input.
    start : Affine
        g -> Qᵀh, where the network starts.
    out : ndarray of shape (d, d)
        The rotation Q from the network's output to adapted embeddings.
    """

    into: Affine
    start: Affine
    out: Floats

    def unwind(self, network: Affine) -> Affine:
        """Turn a map in these coordinates into one of embeddings.

        Parameters
        ----------
        network : Affine
            From g to the network's output.

        Returns
        -------
        Affine
            From embeddings to adapted embeddings.
        """
        outer = Affine(self.out, np.zeros(len(self.out)))
        return outer.after(network.after(self.into))


def raw_coordinates(d: int) -> Coordinates:
    """Take the embeddings as they are.

    Parameters
    ----------
    d : int
        Their width.

    Returns
    -------
    Coordinates
        The identity, three times.
    """
    identity = Affine(np.eye(d), np.zeros(d))
    return Coordinates(identity, identity, np.eye(d))


def whitened_coordinates(moments: Moments, head: LinearHead | None) -> Coordinates:
    """Whiten the input, and turn the output so that the head's directions come first.

    Turning keeps every penalty and logit but not Adam's step, which is taken entry by entry: so
    the task's gradient, however large, stays in the rows that the head sees and does not slow
    down the others.

    Parameters
    ----------
    moments : Moments
        Of the embeddings.
    head : LinearHead or None
        What reads the outputs.

    Returns
    -------
    Coordinates
        With inputs of unit variances; eigenvalues are clamped at 1e-7 of the largest.
    """
    mean, cov = moments.mean.numpy(), moments.covariance().numpy()
    seen, unseen = row_space(np.zeros((1, len(mean))) if head is None else head.coef_)
    unseen = unseen @ descending_eigh(unseen.T @ cov @ unseen)[1]
    turn = np.concatenate([seen, unseen], axis=1)
    eigenvalues, vectors = descending_eigh(turn.T @ cov @ turn)
    roots = np.sqrt(eigenvalues.clip(min=1e-7 * eigenvalues[0]))
    into = (vectors / roots) @ vectors.T @ turn.T
    start = Affine((vectors * roots) @ vectors.T, turn.T @ mean)
    return Coordinates(Affine(into, -into @ mean), start, turn)
