"""Isotropy metrics of embeddings: matrices in, floats out.

Every function takes a matrix of shape (n_samples, n_features), as an array or a tensor, and
computes in float64. The metrics that depend on the covariance alone (:func:`isoscore`,
:func:`isoscore_star`, :func:`cumulative_explained_variance`, :func:`anisotropy` and
:func:`effective_rank`) also read embeddings larger than memory, chunk by chunk. An iterator can be
read only once: to compute several metrics of it, first collect its
:class:`~isoadapt.geometry.Moments` and pass these instead.
"""

from isoadapt.metrics._duplicates import Duplicates, find_duplicates
from isoadapt.metrics._isotropy_report import IsotropyReport, isotropy_report
from isoadapt.metrics._match_threshold import MatchThreshold, match_threshold
from isoadapt.metrics._neighbours import (
    HubnessReport,
    RetrievalReport,
    hubness,
    neighbour_overlap,
    retrieval_report,
    similarity_correlation,
)
from isoadapt.metrics._scores import (
    anisotropy,
    cumulative_explained_variance,
    effective_rank,
    isoscore,
    isoscore_star,
    mean_cosine_similarity,
    partition_dispersion,
    partition_isotropy,
    two_nn,
)

__all__ = [
    "Duplicates",
    "HubnessReport",
    "IsotropyReport",
    "MatchThreshold",
    "RetrievalReport",
    "anisotropy",
    "cumulative_explained_variance",
    "effective_rank",
    "find_duplicates",
    "hubness",
    "isoscore",
    "isoscore_star",
    "isotropy_report",
    "match_threshold",
    "mean_cosine_similarity",
    "neighbour_overlap",
    "partition_dispersion",
    "partition_isotropy",
    "retrieval_report",
    "similarity_correlation",
    "two_nn",
]
