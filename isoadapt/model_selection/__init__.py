"""Comparison of adapters, grid search over adapters, and scorers of isotropy and of use."""

from isoadapt.model_selection._compare._compare_adapters import compare_adapters
from isoadapt.model_selection._compare._comparison import Comparison
from isoadapt.model_selection._compare._uses import Outliers, Search, Similarity, Use
from isoadapt.model_selection._scorers import (
    make_isotropy_scorer,
    make_overlap_scorer,
    make_retrieval_scorer,
    make_similarity_scorer,
)
from isoadapt.model_selection._search._adapter_search import AdapterSearchCV
from isoadapt.model_selection._search._best_above_floor import BestAboveFloor

__all__ = [
    "AdapterSearchCV",
    "BestAboveFloor",
    "Comparison",
    "Outliers",
    "Search",
    "Similarity",
    "Use",
    "compare_adapters",
    "make_isotropy_scorer",
    "make_overlap_scorer",
    "make_retrieval_scorer",
    "make_similarity_scorer",
]
