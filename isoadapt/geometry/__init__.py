"""Measures of isotropy as torch functions of point clouds, and mergeable moments of rows."""

from isoadapt.geometry._chunks import (
    Chunked as Chunked,
    check_chunk as check_chunk,
    describe_chunks as describe_chunks,
    gather as gather,
    in_chunks as in_chunks,
    is_dask as is_dask,
    is_memmap as is_memmap,
    map_blocks as map_blocks,
    refuse_chunks as refuse_chunks,
)
from isoadapt.geometry._cosine import cosine_sum as cosine_sum, mean_cosine as mean_cosine
from isoadapt.geometry._dimension import two_nn as two_nn
from isoadapt.geometry._factored import (
    FactoredCovariance as FactoredCovariance,
    SquaredNorm as SquaredNorm,
)
from isoadapt.geometry._isoscore import (
    isoscore_from_covariance as isoscore_from_covariance,
    isoscore_star as isoscore_star,
)
from isoadapt.geometry._moments import Moments
from isoadapt.geometry._neighbours import (
    METRICS as METRICS,
    cosines as cosines,
    nearest_neighbours as nearest_neighbours,
    neighbour_counts as neighbour_counts,
)
from isoadapt.geometry._partition import (
    log_partition as log_partition,
    partition_dispersion as partition_dispersion,
    partition_isotropy as partition_isotropy,
)
from isoadapt.geometry._persistence import (
    Floats as Floats,
    Indices as Indices,
    edge_lengths as edge_lengths,
    p_log_p as p_log_p,
    persistence_bars,
    persistent_entropy,
    select_bars,
    selected_indices as selected_indices,
    spanning_parents as spanning_parents,
    to_numpy as to_numpy,
)
from isoadapt.geometry._spectrum import (
    anisotropy as anisotropy,
    cumulative_explained_variance as cumulative_explained_variance,
    effective_rank as effective_rank,
    spectrum as spectrum,
)
from isoadapt.geometry._spread import (
    DEAD as DEAD,
    LARGEST as LARGEST,
    SMALLEST as SMALLEST,
    dead_dimensions as dead_dimensions,
)
from isoadapt.geometry._unbiased import (
    corrected_score as corrected_score,
    norm_concentration as norm_concentration,
)

__all__ = ["Moments", "persistence_bars", "persistent_entropy", "select_bars"]
