"""Adapters: estimators that are fitted to a matrix of embeddings and map it to another one."""

from typing import TYPE_CHECKING

from isoadapt._utils.imports import lazy_names
from isoadapt.adapters._registry import MODULES

if TYPE_CHECKING:
    from isoadapt.adapters._affine import AffineAdapter
    from isoadapt.adapters._all_but_the_top import AllButTheTop
    from isoadapt.adapters._cluster_isotropy import ClusterIsotropy
    from isoadapt.adapters._cosreg import CosRegAdapter
    from isoadapt.adapters._exact_isotropy_layer import ExactIsotropyLayer
    from isoadapt.adapters._flow._adapter import FlowAdapter
    from isoadapt.adapters._isobn import IsoBN
    from isoadapt.adapters._isotropy_layer import IsotropyLayer
    from isoadapt.adapters._istar import IStarAdapter
    from isoadapt.adapters._logit_preserving import LogitPreservingWhitening
    from isoadapt.adapters._maps import Affine
    from isoadapt.adapters._penalty import PenaltyAdapter
    from isoadapt.adapters._spectrum_control import SpectrumControlAdapter
    from isoadapt.adapters._teacher_readout import TeacherReadout
    from isoadapt.adapters._topological_entropy import TopologicalEntropyAdapter
    from isoadapt.adapters._whitening import Whitening

__all__ = [
    "Affine",
    "AffineAdapter",
    "AllButTheTop",
    "ClusterIsotropy",
    "CosRegAdapter",
    "ExactIsotropyLayer",
    "FlowAdapter",
    "IStarAdapter",
    "IsoBN",
    "IsotropyLayer",
    "LogitPreservingWhitening",
    "PenaltyAdapter",
    "SpectrumControlAdapter",
    "TeacherReadout",
    "TopologicalEntropyAdapter",
    "Whitening",
]

if not TYPE_CHECKING:  # with __getattr__, a type checker would accept every attribute
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            **MODULES,
            "Affine": "isoadapt.adapters._maps",
            "AffineAdapter": "isoadapt.adapters._affine",
            "PenaltyAdapter": "isoadapt.adapters._penalty",
        },
    )
