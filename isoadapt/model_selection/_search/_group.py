"""Candidates of a search that can be trained together, and what they share on each fold."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from joblib import effective_n_jobs
from sklearn.base import BaseEstimator, clone
from sklearn.pipeline import Pipeline
from sklearn.utils.metaestimators import _safe_split
from sklearn.utils.validation import _check_method_params

from isoadapt._utils.devices import resolve_device
from isoadapt.adapted import AdaptedEncoder
from isoadapt.adapters._penalised import PenalisedAdapter
from isoadapt.adapters._together import Prepared, comparable, fit_together, limits, prepare
from isoadapt.adapters._training._checkpoint import Checkpoint

Candidates = Mapping[int, Mapping[str, Any]]
"""Parameters of candidates by their index in the search."""


class Fit(NamedTuple):
    """A candidate on a fold, both given by their indices."""

    candidate: int
    fold: int


@dataclass(frozen=True)
class FitData:
    """What all candidates share: the estimator, the rows and folds, and how fits are judged."""

    estimator: BaseEstimator  # an adapter, or a pipeline that ends in one
    X: Any
    y: Any
    folds: Sequence[tuple[Any, Any]]  # indices of the training and of the test rows
    scorers: Callable[..., Any]  # returns one score or a dict of scores
    options: Mapping[str, Any]  # further arguments of scikit-learn's _fit_and_score

    def make_estimator(self, parameters: Mapping[str, Any]) -> Any:
        """Return the estimator of a candidate, unfitted."""
        return clone(self.estimator).set_params(**clone(dict(parameters), safe=False))

    def reason_not_batched(self, estimator: Any) -> str | None:
        """Why an estimator must be fitted alone; None if it can be trained together with others."""
        adapter = _adapter(estimator)
        if isinstance(adapter, AdaptedEncoder):
            return (
                "an AdaptedEncoder inside a pipeline, or with an encoder or methods of its own, "
                "encodes the texts in every fit; search over the AdaptedEncoder alone, or give the "
                "encoder a cache"
            )
        if not isinstance(adapter, PenalisedAdapter):
            return f"{type(adapter).__name__} cannot be trained together with other candidates"
        if adapter._batch_key() is None:
            return "solver='exact' does not train in mini-batches"
        try:
            others = [name for name, own in self._step_params(estimator)[:-1] if own]
        except (KeyError, ValueError):  # a separate fit raises an error that says what is wrong
            return f"fit does not take the parameters {sorted(self.options['fit_params'])}"
        if others:
            return f"fit has parameters for other steps than the adapter: {others}"
        return None

    def adapter_params(self, fold: int) -> dict[str, Any]:
        """What the adapter's fit takes besides X and y, for the training rows of a fold."""
        own = self._step_params(self.estimator)[-1][1]
        return _check_method_params(self.X, own, indices=self.folds[fold][0])

    def _step_params(self, estimator: Any) -> list[tuple[str, dict[str, Any]]]:
        """Parameters of fit for each step; those of the adapter are last."""
        if not isinstance(estimator, Pipeline):
            return [("adapter", dict(self.options["fit_params"]))]
        routed = estimator._check_method_params(method="fit", props=self.options["fit_params"])
        found = []
        for name, _ in estimator.steps:
            own = routed.get(name, {})
            found.append((name, {**own.get("fit", {}), **own.get("fit_transform", {})}))
        return found


class Group:
    """Candidates that differ only in numbers, so that they can be trained together."""

    def __init__(self, data: FitData, candidates: Candidates, max_memory: int | None) -> None:
        self.data, self.candidates, self.max_memory = data, candidates, max_memory
        self.first = data.make_estimator(next(iter(candidates.values())))
        self.prepared: dict[Hashable, Prepared] = {}  # by fold and random state, without rows
        self.fitted_prefixes: dict[int, tuple[Any, Any]] = {}

    def n_processes(self, n_jobs: int | None) -> int:
        """Number of processes that train at once; 1 on a GPU, whose memory they would share."""
        on_cpu = resolve_device(_adapter(self.first).device).type == "cpu"
        return effective_n_jobs(n_jobs) if on_cpu else 1

    def limits(self) -> tuple[int, int]:
        """Number of fits, and of folds, that are trained together: as many as fit in memory."""
        estimators = map(self.data.make_estimator, self.candidates.values())
        n_splits = len({_split_key(each) for each in estimators})
        return limits(_adapter(self.first), self._rows(0)[0], self.max_memory, n_splits)

    def train(
        self,
        fits: Sequence[Fit],
        on_finished: Callable[[int], Any],
        checkpoint: Checkpoint | None,
    ) -> tuple[list[Any], list[BaseException | None]]:
        """Fitted estimators and, for each, None or the error of its training.

        After an interrupt, it is the error of all that are not complete.
        """
        estimators = [self.data.make_estimator(self.candidates[fit.candidate]) for fit in fits]
        shared: dict[Hashable, Prepared] = {}
        keys: list[Hashable] = []
        for fit, estimator in zip(fits, estimators, strict=True):
            key = fit.fold, _split_key(estimator)
            keys.append(key)
            if key not in shared:
                shared[key] = self._prepare(key, fit.fold, _adapter(estimator))
            if fit.fold in self.fitted_prefixes:
                estimator.steps[:-1] = self.fitted_prefixes[fit.fold][0].steps
        adapters = [_adapter(estimator) for estimator in estimators]
        prepared = [shared[key] for key in keys]
        return estimators, fit_together(adapters, prepared, on_finished, checkpoint)

    def _prepare(self, key: Hashable, fold: int, adapter: PenalisedAdapter) -> Prepared:
        """Training input for one fold and random state; between blocks it is kept without rows."""
        X, y = self._rows(fold)
        if key in self.prepared:
            return self.prepared[key].with_rows(X)
        params = self.data.adapter_params(fold)
        prepared = prepare(adapter, X, y, **params)
        self.prepared[key] = prepared.without_rows()
        return prepared

    def _rows(self, fold: int) -> tuple[Any, Any]:
        """Input of the adapter on a fold; the steps before it are fitted once per fold."""
        X, y = _safe_split(self.first, self.data.X, self.data.y, self.data.folds[fold][0])
        if not isinstance(self.first, Pipeline) or len(self.first) == 1:
            return X, y
        if fold not in self.fitted_prefixes:
            prefix = clone(self.first[:-1])
            self.fitted_prefixes[fold] = prefix, prefix.fit_transform(X, y)
        return self.fitted_prefixes[fold][1], y


def group_key(estimator: Any) -> Hashable:
    """Return a key that is equal for estimators that can be trained together."""
    prefix = comparable(estimator[:-1]) if isinstance(estimator, Pipeline) else None
    return prefix, _adapter(estimator)._batch_key()


def _adapter(estimator: Any) -> Any:
    """Adapter of an estimator: the last step of a pipeline, or the estimator itself."""
    return estimator[-1] if isinstance(estimator, Pipeline) else estimator


def _split_key(estimator: Any) -> Hashable:
    """Key of the random state, which determines the validation rows that each fold gets."""
    return comparable(_adapter(estimator).random_state)
