"""Isotropy metrics of embeddings: matrices in, floats out.

Every function takes a matrix of shape (n_samples, n_features), as an array or a tensor, and
computes in float64. The metrics that depend on the covariance alone (:func:`isoscore`,
:func:`isoscore_star`, :func:`cumulative_explained_variance`, :func:`anisotropy` and
:func:`effective_rank`) also read embeddings larger than memory, chunk by chunk. An iterator can be
read only once: to compute several metrics of it, first collect its
:class:`~isoadapt.geometry.Moments` and pass these instead.
"""

from isoadapt.metrics._isotropy_report import (
    IsotropyReport,
    isotropy_report,
    spectral_figures as spectral_figures,
    two_nn_or_nan as two_nn_or_nan,
)
from isoadapt.metrics._neighbours import (
    HubnessReport,
    RetrievalReport,
    hubness,
    neighbour_overlap,
    reciprocal_ranks as reciprocal_ranks,
    retrieval_report,
    similarity_correlation,
)
from isoadapt.metrics._references import NEXT_STEPS as NEXT_STEPS, REFERENCES as REFERENCES
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
    "HubnessReport",
    "IsotropyReport",
    "RetrievalReport",
    "anisotropy",
    "cumulative_explained_variance",
    "effective_rank",
    "hubness",
    "isoscore",
    "isoscore_star",
    "isotropy_report",
    "mean_cosine_similarity",
    "neighbour_overlap",
    "partition_dispersion",
    "partition_isotropy",
    "retrieval_report",
    "similarity_correlation",
    "two_nn",
]
