"""Grid search over adapters, isotropy scorers, and the choice of a candidate by its scores."""

from isoadapt.model_selection._scorers import BestAboveFloor, make_isotropy_scorer
from isoadapt.model_selection._search import AdapterSearchCV
from isoadapt.model_selection._vector_scorers import (
    make_overlap_scorer,
    make_retrieval_scorer,
    make_similarity_scorer,
)

__all__ = [
    "AdapterSearchCV",
    "BestAboveFloor",
    "make_isotropy_scorer",
    "make_overlap_scorer",
    "make_retrieval_scorer",
    "make_similarity_scorer",
]
