"""Texts from files, the Hub and the package, similar pairs, and a small model."""

from isoadapt.datasets._bundled import (
    AcceptabilityCorpus,
    SimilarityPairs,
    load_general_sentences,
    load_similarity_pairs,
    make_acceptability,
    minilm_folder,
)
from isoadapt.datasets._hub import load_hub
from isoadapt.datasets._tables import load_table

__all__ = [
    "AcceptabilityCorpus",
    "SimilarityPairs",
    "load_general_sentences",
    "load_hub",
    "load_similarity_pairs",
    "load_table",
    "make_acceptability",
    "minilm_folder",
]
