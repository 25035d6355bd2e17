"""The encoder of a candidate, which transforms all texts once, outside the folds, and the rest."""

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

from sklearn.base import BaseEstimator, clone
from sklearn.pipeline import Pipeline

from isoadapt._fit_rows import needs_general
from isoadapt._utils.containers import comparable
from isoadapt.adapted import AdaptedEncoder


class Candidate(NamedTuple):
    """An estimator that is not fitted, in two parts."""

    model: Any
    encoder: Pipeline | None  # its leading steps, if each transforms every row alone
    rest: Any  # what is fitted in each fold: a pipeline or an adapter; the model without an encoder
    key: Hashable  # equal for candidates of a search with equal encoders

    def put_together(self, encoder: Pipeline | None) -> Any:
        """Return the model, of which the rest and the given encoder are fitted."""
        if encoder is None:
            return self.rest
        if isinstance(self.model, Pipeline):
            self.model.steps = [*encoder.steps, *self.rest.steps]
        else:
            self.model.pipeline_ = Pipeline([*encoder.steps, ("adapter", self.rest)])
        return self.model


def make_candidate(estimator: BaseEstimator, parameters: Mapping[str, Any], y: Any) -> Candidate:
    """Return an estimator with the parameters; the labels y choose an AdaptedEncoder's head."""
    model = clone(estimator).set_params(**clone(dict(parameters), safe=False))
    adapted = type(model) is AdaptedEncoder and model.teacher is None  # a subclass may mix rows
    adapted = adapted and _transforms_row_by_row(model._encoder())
    pipeline = model._unfitted_pipeline(y) if adapted else model
    if adapted and needs_general(model.general, pipeline["adapter"], pipeline["encoder"]):
        return Candidate(model, None, model, None)
    steps = pipeline.steps[:-1] if isinstance(pipeline, Pipeline) else []
    n_steps = [*(_transforms_row_by_row(step) for _, step in steps), False].index(False)
    if not n_steps:
        return Candidate(model, None, model, None)
    names = [name for name, _ in steps[:n_steps]]
    own = {name for name in parameters if name.partition("__")[0] in names}
    key = *names, *((name, comparable(parameters[name])) for name in sorted(own))
    rest = pipeline[-1] if adapted else pipeline[n_steps:]
    return Candidate(model, pipeline[:n_steps], rest, key)


def _transforms_row_by_row(step: Any) -> bool:
    """Whether a step passes rows, or is an encoder, whose method `head` promises this."""
    return step is None or step == "passthrough" or callable(getattr(step, "head", None))
