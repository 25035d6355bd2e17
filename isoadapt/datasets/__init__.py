"""Labelled texts from files, the Hub and a generated corpus, similar pairs, and a small model."""

from isoadapt.datasets._bundled import (
    AcceptabilityCorpus,
    SimilarityPairs,
    load_similarity_pairs,
    make_acceptability,
    minilm_folder,
)
from isoadapt.datasets._hub import load_hub
from isoadapt.datasets._tables import load_table

__all__ = [
    "AcceptabilityCorpus",
    "SimilarityPairs",
    "load_hub",
    "load_similarity_pairs",
    "load_table",
    "make_acceptability",
    "minilm_folder",
]
