"""The coordinates in which an adapter is trained."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.extmath import svd_flip

from isoadapt.adapters._linalg import descending_eigh, oas_shrinkage, row_space, shrink
from isoadapt.adapters._maps import Affine, Floats
from isoadapt.geometry import Moments
from isoadapt.geometry._spread import dead_dimensions
from isoadapt.heads import LinearHead

_CLAMP = 1e-7  # smallest eigenvalue, relative to the largest


class Coordinates(NamedTuple):
    """The coordinates in which a network is trained, z = s Q network(P(h - μ))."""

    into: Affine  # h -> g = P(h - μ), the network's input
    start: Affine  # g -> Qᵀh / s, the network at the start of training
    out: Floats  # the rotation Q, (d, d), from the network's output to adapted embeddings
    scale: float  # s; makes network and learning rate independent of the scale of the embeddings
    # Whether each input has no variance, (d,). Such inputs are zero in training, so that the
    # weights on them do not change.
    dead: NDArray[np.bool_]
    deviations: Floats | None = None  # of the inputs, (d,), if these are uncorrelated; else None
    n_read: int = 0  # the head reads the first n_read outputs of the network; 0: not known

    def embedding_map(self, network: Affine) -> Affine:
        """Convert a map from g to the network's output into the map of embeddings."""
        outer = Affine(self.scale * self.out, np.zeros(len(self.out)))
        return outer.after(network.after(self.into))

    def inner_head(self, head: LinearHead) -> LinearHead:
        """Return the head on the network's outputs that equals `head` on adapted embeddings."""
        return head._with(self.scale * (head.coef_ @ self.out), head.intercept_)

    def outer_head(self, head: LinearHead) -> LinearHead:
        """Return the head on adapted embeddings that equals `head` on the network's outputs."""
        return head._with(head.coef_ @ self.out.T / self.scale, head.intercept_)


def raw_coordinates(moments: Moments) -> Coordinates:
    """Scale embeddings by s, the size of their second moment, without centring or rotation."""
    d, second = len(moments), moments.second_moment().numpy()
    largest = np.abs(second).max()  # squares of small numbers would underflow
    # The root of the root mean square of the eigenvalues has the unit of a standard deviation.
    scale = float(np.sqrt(largest * np.sqrt(((second / largest) ** 2).sum() / d)))
    zeros = np.zeros(d)
    into, identity = Affine(np.eye(d) / scale, zeros), Affine(np.eye(d), zeros)
    return Coordinates(into, identity, np.eye(d), scale, np.zeros(d, dtype=bool))


def whitened_coordinates(moments: Moments, head: LinearHead | None) -> Coordinates:
    """Whiten the input, and rotate the output so that the head's row space comes first."""
    # Adam takes its steps entry by entry. With the rotation, a large gradient of the task stays in
    # the rows of the head's row space and does not slow down the others. The inputs are principal
    # components for the same reason. With few rows, shrinkage keeps those of little variance small.
    mean, cov = moments.mean.numpy(), moments.covariance().numpy()
    inside, outside = row_space(np.zeros((1, len(mean))) if head is None else head.coef_)
    outside = outside @ descending_eigh(outside.T @ cov @ outside)[1]
    rotation, _ = svd_flip(np.concatenate([inside, outside], axis=1), None)  # fixes the signs
    eigenvalues, vectors = descending_eigh(rotation.T @ cov @ rotation)
    shrunk = shrink(eigenvalues, oas_shrinkage(moments))
    roots = np.sqrt(shrunk.clip(min=_CLAMP * shrunk[0]))
    into, scale = (vectors / roots).T @ rotation.T, float(np.sqrt(eigenvalues[0]))
    return Coordinates(
        into=Affine(into, -into @ mean),
        start=Affine(vectors * (roots / scale), rotation.T @ mean / scale),
        out=rotation,
        scale=scale,
        dead=dead_dimensions(eigenvalues),
        deviations=np.sqrt(eigenvalues) / roots,
        n_read=inside.shape[1],
    )
