"""Cluster-based isotropy enhancement: all-but-the-top within each cluster."""

from numbers import Integral
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.utils import Tags
from sklearn.utils._param_validation import Interval

from isoadapt.adapters._all_but_the_top import count_removed, expect_poor_score
from isoadapt.adapters._base import own_random_state
from isoadapt.adapters._closed_form import REFITTED, OnePassAdapter
from isoadapt.adapters._linalg import leading_components
from isoadapt.adapters._maps import ClusterProjection, Floats, nearest_center
from isoadapt.geometry import Moments
from isoadapt.heads import LinearHead

_STARTS = 5  # of k-means; the best is kept


class ClusterIsotropy(OnePassAdapter):
    """Subtract the mean and remove the leading principal components of each cluster.

    The embeddings are clustered by k-means; a new one belongs to the cluster whose centre is
    nearest. One cluster makes it :class:`AllButTheTop`. The map is not affine and cannot be
    undone. Where clusters or leading components tell the classes apart, as they do in many
    fine-tuned encoders, that is lost: look at the score.

    Equal rows count as one row of their summed weight and the order of rows does not matter, so
    that weight 2 is exactly a row given twice.

    Parameters
    ----------
    n_clusters : int, default=5
        How many clusters; no more are made than there are different rows. A row that is alone in
        its cluster is mapped to zero.
    n_components : int, default=None
        How many directions to remove from each cluster, fewer than n_features; None is
        n_features // 100, at least 1. Directions without variance in the cluster are not
        removed, so a cluster of n different rows loses at most n - 1.
    head : LinearHead, linear estimator, {"logistic", "ridge"} or None, default=None
        The head that predicts on the adapted embeddings, as in :class:`IsotropyLayer`; None
        makes a transformer only. "refit" fits the estimator or the named probe to the adapted
        embeddings, and in place of a frozen head a probe of its kind.
    head_training : {"refit", "frozen"}, default="refit"
        "refit" fits the head to the adapted embeddings (it needs y); "frozen" keeps it, though
        it was made for other embeddings.
    random_state : int, RandomState instance or None, default=None
        Seed of k-means. With None every fit draws its own.

    Attributes
    ----------
    map_ : ClusterProjection
        The fitted map, with centres, means and components of the clusters.
    head_ : LinearHead or None
        The head.

    References
    ----------
    S. Rajaee and M. T. Pilehvar (2021), "A cluster-based approach for improving isotropy in
    contextual embedding space".

    Examples
    --------
    >>> import numpy as np
    >>> from isoadapt import ClusterIsotropy
    >>> from isoadapt.metrics import isoscore
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(500, 8)) + 20 * rng.integers(0, 2, size=(500, 1))
    >>> adapter = ClusterIsotropy(n_clusters=2, random_state=0)
    >>> round(isoscore(X), 3), round(isoscore(adapter.fit_transform(X)), 3)
    (0.002, 0.919)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **REFITTED,
        "n_clusters": [Interval(Integral, 1, None, closed="left")],
        "n_components": [Interval(Integral, 1, None, closed="left"), None],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        n_clusters: int = 5,
        n_components: int | None = None,
        *,
        head: Any = None,
        head_training: str = "refit",
        random_state: Any = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.n_components = n_components
        self.head = head
        self.head_training = head_training
        self.random_state = random_state

    def _maps_affinely(self) -> bool:
        return False

    def _fit_rows(
        self, X: NDArray[Any], weights: NDArray[Any] | None, head: LinearHead | None
    ) -> dict[str, Any]:
        n_removed = count_removed(self.n_components, X.shape[1])
        rows, counts = merge_equal_rows(X, weights)
        centers = self._find_centers(rows, counts)
        nearest = nearest_center(rows, centers)
        used = np.unique(nearest)
        clusters = [Moments().update(rows[nearest == c], counts[nearest == c]) for c in used]
        means = np.stack([cluster.mean.numpy() for cluster in clusters])
        components = _components(clusters, n_removed)
        return {"map_": ClusterProjection(centers[used], means, components)}

    def _find_centers(self, rows: Floats, counts: Floats) -> Floats:
        rng = own_random_state(self.random_state)
        kmeans = KMeans(min(self.n_clusters, len(rows)), n_init=_STARTS, random_state=rng)
        return kmeans.fit(rows, sample_weight=counts).cluster_centers_

    def __sklearn_tags__(self) -> Tags:
        return expect_poor_score(super().__sklearn_tags__())


def merge_equal_rows(X: NDArray[Any], weights: NDArray[Any] | None) -> tuple[Floats, Floats]:
    """Merge equal rows.

    Parameters
    ----------
    X : ndarray of shape (n_samples, n_features)
        Rows.
    weights : ndarray of shape (n_samples,) or None
        How often each counts; rows of weight 0 are left out.

    Returns
    -------
    rows : ndarray of shape (n_distinct, n_features)
        In lexicographic order, float64.
    counts : ndarray of shape (n_distinct,)
        Summed weights.
    """
    if weights is not None:
        X, weights = X[weights > 0], weights[weights > 0]
    rows, inverse = np.unique(X.astype(np.float64), axis=0, return_inverse=True)
    return rows, np.bincount(inverse.ravel(), weights).astype(np.float64)


def _components(clusters: list[Moments], n_components: int) -> Floats:
    """Leading directions of each cluster; what counts as no variance is set by all of them."""
    whole = Moments()
    for cluster in clusters:
        whole.merge(cluster)
    scale = float(whole.covariance(ddof=0).trace())
    covs = [cluster.covariance(ddof=0).numpy() for cluster in clusters]
    return np.stack([leading_components(cov, n_components, scale) for cov in covs])
