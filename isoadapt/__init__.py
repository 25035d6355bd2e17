"""Measure and repair the anisotropy of fine-tuned transformer embeddings."""

from typing import TYPE_CHECKING

from isoadapt._utils.imports import lazy_names

if TYPE_CHECKING:
    from isoadapt.adapted import AdaptedEncoder
    from isoadapt.adapters import (
        AffineAdapter,
        AllButTheTop,
        ClusterIsotropy,
        CosRegAdapter,
        ExactIsotropyLayer,
        FlowAdapter,
        IsoBN,
        IsotropyLayer,
        IStarAdapter,
        LogitPreservingWhitening,
        PenaltyAdapter,
        SpectrumControlAdapter,
        TeacherReadout,
        TopologicalEntropyAdapter,
        Whitening,
    )
    from isoadapt.encoders import EmbeddingCache, TransformerEncoder, load_checkpoint
    from isoadapt.heads import LinearHead
    from isoadapt.novelty import NoveltyDetector

__all__ = [
    "AdaptedEncoder",
    "AffineAdapter",
    "AllButTheTop",
    "ClusterIsotropy",
    "CosRegAdapter",
    "EmbeddingCache",
    "ExactIsotropyLayer",
    "FlowAdapter",
    "IStarAdapter",
    "IsoBN",
    "IsotropyLayer",
    "LinearHead",
    "LogitPreservingWhitening",
    "NoveltyDetector",
    "PenaltyAdapter",
    "SpectrumControlAdapter",
    "TeacherReadout",
    "TopologicalEntropyAdapter",
    "TransformerEncoder",
    "Whitening",
    "load_checkpoint",
]

__version__ = "0.1.0"

_MODULES = ["adapted", "adapters", "cli", "datasets", "encoders", "finetune", "geometry", "heads"]
_MODULES += ["interop", "losses", "metrics", "model_selection", "novelty", "report"]

if not TYPE_CHECKING:  # with __getattr__, a type checker would accept every attribute
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            **{name: f"isoadapt.{name}" for name in _MODULES},
            **dict.fromkeys(__all__, "isoadapt.adapters"),
            "AdaptedEncoder": "isoadapt.adapted",
            "EmbeddingCache": "isoadapt.encoders",
            "LinearHead": "isoadapt.heads",
            "NoveltyDetector": "isoadapt.novelty",
            "TransformerEncoder": "isoadapt.encoders",
            "load_checkpoint": "isoadapt.encoders",
        },
    )
