"""Measure and repair the anisotropy of fine-tuned transformer embeddings."""

from isoadapt.adapted import AdaptedEncoder
from isoadapt.adapters import IsotropyLayer, LogitPreservingWhitening, Whitening
from isoadapt.encoders import TransformerEncoder, load_checkpoint
from isoadapt.heads import LinearHead

__all__ = [
    "AdaptedEncoder",
    "IsotropyLayer",
    "LinearHead",
    "LogitPreservingWhitening",
    "TransformerEncoder",
    "Whitening",
    "load_checkpoint",
]

__version__ = "0.1.0"
