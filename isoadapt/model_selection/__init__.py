"""Search: candidates trained together, scores of isotropy, and the choice of a candidate."""

from isoadapt.model_selection._scorers import BestAboveFloor, make_isotropy_scorer
from isoadapt.model_selection._search import AdapterSearchCV

__all__ = ["AdapterSearchCV", "BestAboveFloor", "make_isotropy_scorer"]
