"""Measure and repair the anisotropy of fine-tuned transformer embeddings."""

from isoadapt.adapters import IsotropyLayer, LogitPreservingWhitening, Whitening
from isoadapt.heads import LinearHead

__all__ = ["IsotropyLayer", "LinearHead", "LogitPreservingWhitening", "Whitening"]

__version__ = "0.1.0"
