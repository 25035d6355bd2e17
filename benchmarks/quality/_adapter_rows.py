"""The rows of the table of adapters: all adapters and their controls."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from isoadapt import CosRegAdapter, IsotropyLayer, LinearHead
from isoadapt.adapters._heads import fit_head
from isoadapt.adapters._registry import VARIANTS

BASE = "no adapter"
PROBE = "probe"
NO_PENALTY = "same layer, no penalty"
NO_PENALTY_RAW = "same layer in raw coordinates, no penalty"
MINIBATCH = "IsotropyLayer, minibatch"
EXACT = "IsotropyLayer, exact"
ISTAR_UP = "IStarAdapter, lam=1"
ISTAR_DOWN = "IStarAdapter, lam=-1"
COSREG = "CosRegAdapter"
POLYNOMIAL = "SpectrumControlAdapter, polynomial"
EXPONENTIAL = "SpectrumControlAdapter, exponential"
SELECTED = "TopologicalEntropyAdapter, selected bars"
ALL_BARS = "TopologicalEntropyAdapter, all bars"
ISOBN = "IsoBN, head refit"
PRESERVING = "LogitPreservingWhitening"


class Unchanged(BaseEstimator):
    """The unchanged embeddings with the stored head, or with a head that is fitted again."""

    def __init__(self, head: LinearHead, refit: bool = False) -> None:
        self.head = head
        self.refit = refit

    def fit(self, X: NDArray[Any], y: NDArray[Any]) -> Self:
        self.head_ = fit_head("logistic", X, y) if self.refit else self.head
        return self

    def transform(self, X: NDArray[Any]) -> NDArray[Any]:
        return X

    def predict(self, X: NDArray[Any]) -> NDArray[Any]:
        return self.head_.predict(X)

    def predict_proba(self, X: NDArray[Any]) -> NDArray[Any]:
        return self.head_.predict_proba(X)


class Row(NamedTuple):
    """The name of a row, and a function from the stored head to its estimator."""

    name: str
    make: Callable[[Any], Any]

    def make_seeded(self, head: LinearHead, seed: int | None) -> Any:
        """Create the estimator; with a seed of None its random state is not set."""
        estimator = self.make(head)
        return estimator if seed is None else estimator.set_params(random_state=seed)

    def takes_seed(self) -> bool:
        """Return whether fits depend on the seed; closed forms and the exact solver do not."""
        params = self.make(None).get_params(deep=False)
        return "random_state" in params and params.get("solver") != "exact"


ROWS = (
    Row(BASE, Unchanged),
    Row("head refit only", lambda head: Unchanged(head, refit=True)),
    Row(NO_PENALTY, lambda head: IsotropyLayer(head, alpha=1.0)),
    Row(NO_PENALTY_RAW, lambda head: CosRegAdapter(head, lam=0.0)),
    *(Row(variant.name, variant.make) for variant in VARIANTS),
)


def choose_rows(wanted: Sequence[str] | None, rows: Sequence[Row], always: str) -> list[Row]:
    """Return the rows whose name contains one of the texts, and always the row named `always`."""
    if wanted is None:
        return list(rows)
    lowered = [text.lower() for text in wanted]
    unknown = [text for text in lowered if not any(text in row.name.lower() for row in rows)]
    if unknown:
        names = "; ".join(row.name for row in rows)
        raise ValueError(f"no row's name holds {unknown[0]!r}; the rows are: {names}")
    return [
        row
        for row in rows
        if row.name == always or any(text in row.name.lower() for text in lowered)
    ]
