"""The coordinates in which a network is trained; the fitted map is in the embeddings' own."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.extmath import svd_flip

from isoadapt.adapters._linalg import descending_eigh, oas_shrinkage, shrink
from isoadapt.adapters._maps import Affine, Floats
from isoadapt.adapters._row_space import row_space
from isoadapt.geometry import Moments, dead_dimensions
from isoadapt.heads import LinearHead

_CLAMP = 1e-7  # eigenvalues are raised to this share of the largest


class Coordinates(NamedTuple):
    """The coordinates in which a network is trained: z = s Q network(P(h - μ)).

    Attributes
    ----------
    into : Affine
        h -> g = P(h - μ), the network's input.
    start : Affine
        g -> Qᵀh / s, where the network starts.
    out : ndarray of shape (d, d)
        The rotation Q from the network's output to adapted embeddings.
    scale : float
        The unit of length s: the network and its learning rate do not depend on the scale of
        the embeddings.
    dead : ndarray of shape (d,)
        Whether an input has no variance. Such inputs are zero in training, so that no weight
        on them changes.
    deviations : ndarray of shape (d,) or None
        Standard deviations of the inputs where these are uncorrelated; None where they are not.
    n_read : int
        How many of the network's outputs the head reads: the first ones; 0 where it is not known.
    """

    into: Affine
    start: Affine
    out: Floats
    scale: float
    dead: NDArray[np.bool_]
    deviations: Floats | None = None
    n_read: int = 0

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
        outer = Affine(self.scale * self.out, np.zeros(len(self.out)))
        return outer.after(network.after(self.into))

    def inner_head(self, head: LinearHead) -> LinearHead:
        """Give the head that reads the network's outputs as `head` reads adapted embeddings.

        Parameters
        ----------
        head : LinearHead
            Reads adapted embeddings.

        Returns
        -------
        LinearHead
            With the same outputs.
        """
        return LinearHead(self.scale * (head.coef_ @ self.out), head.intercept_, head.classes_)

    def outer_head(self, head: LinearHead) -> LinearHead:
        """Undo :meth:`inner_head`.

        Parameters
        ----------
        head : LinearHead
            Reads the network's outputs.

        Returns
        -------
        LinearHead
            With the same outputs.
        """
        return LinearHead(head.coef_ @ self.out.T / self.scale, head.intercept_, head.classes_)


def raw_coordinates(moments: Moments) -> Coordinates:
    """Take the embeddings as they are, in units of their size.

    Parameters
    ----------
    moments : Moments
        Of the embeddings.

    Returns
    -------
    Coordinates
        Without centring or rotation; s is the size of the second moment.
    """
    d = len(moments)
    scale = _size(moments.second_moment().numpy())
    zeros = np.zeros(d)
    into, identity = Affine(np.eye(d) / scale, zeros), Affine(np.eye(d), zeros)
    return Coordinates(into, identity, np.eye(d), scale, np.zeros(d, dtype=bool))


def whitened_coordinates(moments: Moments, head: LinearHead | None) -> Coordinates:
    """Whiten the input, and turn the output so that the head's directions come first.

    Turning keeps every penalty and logit but not Adam's step, which is taken entry by entry: so
    the task's gradient, however large, stays in the rows of the head's row space and does not
    slow down the others. The inputs are the principal components, for the same reason: Adam
    would carry steps over from inputs with variance to directions without any.

    Parameters
    ----------
    moments : Moments
        Of the embeddings.
    head : LinearHead or None
        What reads the outputs.

    Returns
    -------
    Coordinates
        With uncorrelated inputs, divided by the roots of their shrunk variances: nearly all have
        unit variance where rows are many, and directions in which few rows hardly vary stay small.
        s is the largest standard deviation.
    """
    mean, cov = moments.mean.numpy(), moments.covariance().numpy()
    seen, unseen = row_space(np.zeros((1, len(mean))) if head is None else head.coef_)
    unseen = unseen @ descending_eigh(unseen.T @ cov @ unseen)[1]
    turn, _ = svd_flip(np.concatenate([seen, unseen], axis=1), None)  # fixes the signs
    eigenvalues, vectors = descending_eigh(turn.T @ cov @ turn)
    shrunk = shrink(eigenvalues, oas_shrinkage(moments))
    roots = np.sqrt(shrunk.clip(min=_CLAMP * shrunk[0]))
    into, scale = (vectors / roots).T @ turn.T, float(np.sqrt(eigenvalues[0]))
    return Coordinates(
        into=Affine(into, -into @ mean),
        start=Affine(vectors * (roots / scale), turn.T @ mean / scale),
        out=turn,
        scale=scale,
        dead=dead_dimensions(eigenvalues),
        deviations=np.sqrt(eigenvalues) / roots,
        n_read=0 if head is None else seen.shape[1],
    )


def _size(cov: Floats) -> float:
    """Root of the root mean square of the eigenvalues, a standard deviation."""
    largest = np.abs(cov).max()  # squares of small numbers would underflow
    return float(np.sqrt(largest * np.sqrt(((cov / largest) ** 2).sum() / len(cov))))
