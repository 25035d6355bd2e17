"""Adapters: estimators that are fitted to a matrix of embeddings and map it to another one."""

from typing import TYPE_CHECKING

from isoadapt._utils.lazy import lazy_names
from isoadapt.adapters._registry import (
    ADAPTERS as ADAPTERS,
    METHODS as METHODS,
    MODULES as MODULES,
    VARIANTS as VARIANTS,
    Variant as Variant,
)

if TYPE_CHECKING:
    from isoadapt.adapters._all_but_the_top import AllButTheTop
    from isoadapt.adapters._base import BaseAdapter as BaseAdapter
    from isoadapt.adapters._closed_form import MomentsAdapter as MomentsAdapter
    from isoadapt.adapters._cluster_isotropy import ClusterIsotropy
    from isoadapt.adapters._cosreg import CosRegAdapter
    from isoadapt.adapters._flow._adapter import FlowAdapter
    from isoadapt.adapters._isobn import IsoBN, isobn_scale as isobn_scale
    from isoadapt.adapters._isotropy_layer import IsotropyLayer
    from isoadapt.adapters._istar import IStarAdapter
    from isoadapt.adapters._logit_preserving import LogitPreservingWhitening
    from isoadapt.adapters._maps import (
        STORABLE_MAPS as STORABLE_MAPS,
        Affine,
        Floats as Floats,
        InvertibleMap as InvertibleMap,
        compose as compose,
        map_class as map_class,
        map_name as map_name,
    )
    from isoadapt.adapters._penalised import (
        PenalisedAdapter as PenalisedAdapter,
        comparable as comparable,
    )
    from isoadapt.adapters._penalty import PenaltyAdapter
    from isoadapt.adapters._spectrum_control import SpectrumControlAdapter
    from isoadapt.adapters._topological_entropy import TopologicalEntropyAdapter
    from isoadapt.adapters._training._checkpoint import Checkpoint as Checkpoint
    from isoadapt.adapters._training._engine import (
        TrainingInterrupted as TrainingInterrupted,
        fit_members as fit_members,
    )
    from isoadapt.adapters._training._memory import CPU_BYTES as CPU_BYTES
    from isoadapt.adapters._training._penalty import UnequalPenaltiesError as UnequalPenaltiesError
    from isoadapt.adapters._training._problem import Problem as Problem
    from isoadapt.adapters._whitening import Whitening

__all__ = [
    "Affine",
    "AllButTheTop",
    "ClusterIsotropy",
    "CosRegAdapter",
    "FlowAdapter",
    "IStarAdapter",
    "IsoBN",
    "IsotropyLayer",
    "LogitPreservingWhitening",
    "PenaltyAdapter",
    "SpectrumControlAdapter",
    "TopologicalEntropyAdapter",
    "Whitening",
]

if not TYPE_CHECKING:  # with __getattr__, a type checker would accept every attribute
    _MAPS = ["STORABLE_MAPS", "Affine", "Floats", "InvertibleMap"]
    _MAPS += ["compose", "map_class", "map_name"]
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            **MODULES,
            **dict.fromkeys(_MAPS, "isoadapt.adapters._maps"),
            "BaseAdapter": "isoadapt.adapters._base",
            "Checkpoint": "isoadapt.adapters._training._checkpoint",
            "CPU_BYTES": "isoadapt.adapters._training._memory",
            "MomentsAdapter": "isoadapt.adapters._closed_form",
            "PenalisedAdapter": "isoadapt.adapters._penalised",
            "PenaltyAdapter": "isoadapt.adapters._penalty",
            "Problem": "isoadapt.adapters._training._problem",
            "TrainingInterrupted": "isoadapt.adapters._training._engine",
            "UnequalPenaltiesError": "isoadapt.adapters._training._penalty",
            "comparable": "isoadapt.adapters._penalised",
            "fit_members": "isoadapt.adapters._training._engine",
            "isobn_scale": "isoadapt.adapters._isobn",
        },
    )
