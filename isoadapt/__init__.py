"""Measure and repair the anisotropy of fine-tuned transformer embeddings."""

from isoadapt.adapted import AdaptedEncoder
from isoadapt.adapters import (
    AllButTheTop,
    ClusterIsotropy,
    CosRegAdapter,
    FlowAdapter,
    IsoBN,
    IsotropyLayer,
    IStarAdapter,
    LogitPreservingWhitening,
    PenaltyAdapter,
    SpectrumControlAdapter,
    TopologicalEntropyAdapter,
    Whitening,
)
from isoadapt.encoders import EmbeddingCache, TransformerEncoder, load_checkpoint
from isoadapt.heads import LinearHead

__all__ = [
    "AdaptedEncoder",
    "AllButTheTop",
    "ClusterIsotropy",
    "CosRegAdapter",
    "EmbeddingCache",
    "FlowAdapter",
    "IStarAdapter",
    "IsoBN",
    "IsotropyLayer",
    "LinearHead",
    "LogitPreservingWhitening",
    "PenaltyAdapter",
    "SpectrumControlAdapter",
    "TopologicalEntropyAdapter",
    "TransformerEncoder",
    "Whitening",
    "load_checkpoint",
]

__version__ = "0.1.0"
