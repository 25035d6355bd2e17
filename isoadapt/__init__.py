"""Measure and repair the anisotropy of fine-tuned transformer embeddings."""

__version__ = "0.1.0"
