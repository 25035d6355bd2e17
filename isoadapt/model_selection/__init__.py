"""Grid search over adapters, isotropy scorers, and the choice of a candidate by its scores."""

from isoadapt.model_selection._scorers import BestAboveFloor, make_isotropy_scorer
from isoadapt.model_selection._search import AdapterSearchCV

__all__ = ["AdapterSearchCV", "BestAboveFloor", "make_isotropy_scorer"]
