"""Adapters: maps of embeddings, fitted on matrices alone."""

from isoadapt.adapters._all_but_the_top import AllButTheTop
from isoadapt.adapters._closed_form import LogitPreservingWhitening, Whitening
from isoadapt.adapters._cluster_isotropy import ClusterIsotropy
from isoadapt.adapters._cosreg import CosRegAdapter
from isoadapt.adapters._flow import FlowAdapter
from isoadapt.adapters._isobn import IsoBN
from isoadapt.adapters._isotropy_layer import IsotropyLayer
from isoadapt.adapters._istar import IStarAdapter
from isoadapt.adapters._spectrum_control import SpectrumControlAdapter
from isoadapt.adapters._topological_entropy import TopologicalEntropyAdapter

__all__ = [
    "AllButTheTop",
    "ClusterIsotropy",
    "CosRegAdapter",
    "FlowAdapter",
    "IStarAdapter",
    "IsoBN",
    "IsotropyLayer",
    "LogitPreservingWhitening",
    "SpectrumControlAdapter",
    "TopologicalEntropyAdapter",
    "Whitening",
]
