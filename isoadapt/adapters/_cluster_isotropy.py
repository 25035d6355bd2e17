"""Cluster-based isotropy enhancement: all-but-the-top within each cluster."""

from dataclasses import KW_ONLY, dataclass
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
from sklearn.cluster import KMeans

from isoadapt._utils.sklearn_private import Interval
from isoadapt.adapters._all_but_the_top import resolve_n_components
from isoadapt.adapters._base import make_random_state
from isoadapt.adapters._closed_form import OnePassAdapter, RefittedHead
from isoadapt.adapters._linalg import leading_components
from isoadapt.adapters._maps import ClusterProjection, nearest_center
from isoadapt.adapters._rows import Sample
from isoadapt.geometry import Moments
from isoadapt.heads import LinearHead

_N_INIT = 5  # runs of k-means; the best is kept


@dataclass(eq=False, repr=False)
class ClusterIsotropy(RefittedHead, OnePassAdapter):
    """Subtract the mean and remove the leading principal components of each cluster.

    The embeddings are clustered by k-means, for which equal rows are merged into one with their
    summed weight. A new row belongs to the cluster with the nearest centre. With one cluster, this
    is :class:`AllButTheTop`. The map is neither affine nor invertible. In many fine-tuned encoders,
    the clusters or the leading components separate the classes, and removing them removes this
    information: check the score.

    Parameters
    ----------
    n_clusters : int, default=5
        Number of clusters, reduced to the number of distinct rows if there are fewer. A row that
        is alone in its cluster is mapped to zero.
    n_components : int, default=None
        Number of directions to remove from each cluster, less than n_features. None is
        n_features // 100, at least 1. Directions without variance in the cluster are not removed,
        so at most n - 1 directions are removed from a cluster of n distinct rows.
    <head>
    random_state : int, RandomState instance or None, default=None
        Seed of k-means. With None, every fit draws a new seed.

    Attributes
    ----------
    map_ : ClusterProjection
        The fitted map, with the centres, means and components of the clusters.
    <common>

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
    >>> adapter, other = ClusterIsotropy(2, random_state=0).fit(X[:250]), X[250:]
    >>> round(isoscore(other), 3), round(isoscore(adapter.transform(other)), 3)
    (0.002, 0.87)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_clusters": [Interval(Integral, 1, None, closed="left")],
        "n_components": [Interval(Integral, 1, None, closed="left"), None],
        "random_state": ["random_state"],
    }

    _affine: ClassVar[bool] = False
    _invertible: ClassVar[bool] = False
    _poor_score: ClassVar[bool] = True

    n_clusters: int = 5
    n_components: int | None = None
    _: KW_ONLY
    random_state: Any = None

    def _fit_rows(self, rows: Sample, moments: Moments, head: LinearHead | None) -> dict[str, Any]:
        n_removed = resolve_n_components(self.n_components, rows.X.shape[1])
        weights = np.ones(len(rows.X)) if rows.weights is None else rows.weights
        positive = weights > 0
        X, inverse = np.unique(rows.X[positive].astype(np.float64), axis=0, return_inverse=True)
        counts = np.bincount(inverse.ravel(), weights[positive])
        rng = make_random_state(self.random_state)
        kmeans = KMeans(min(self.n_clusters, len(X)), n_init=_N_INIT, random_state=rng)
        centers = kmeans.fit(X, sample_weight=counts).cluster_centers_
        nearest = nearest_center(X, centers)
        used = np.unique(nearest)
        clusters = [Moments().update(X[nearest == c], counts[nearest == c]) for c in used]
        means = np.stack([cluster.mean.numpy() for cluster in clusters])
        covs = [cluster.covariance(ddof=0).numpy() for cluster in clusters]
        total = float(moments.covariance(ddof=0).trace())
        components = np.stack([leading_components(cov, n_removed, total) for cov in covs])
        return {"map_": ClusterProjection(centers[used], means, components)}
