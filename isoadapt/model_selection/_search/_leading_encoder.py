"""The encoder of a searched estimator, which transforms all texts once, outside the folds."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from sklearn.base import clone
from sklearn.pipeline import Pipeline

from isoadapt._utils.messages import warn
from isoadapt.adapted import AdaptedEncoder
from isoadapt.adapters._together import comparable
from isoadapt.encoders import TransformerEncoder
from isoadapt.encoders._checkpoint import encoder_head
from isoadapt.heads import LinearHead


def leading_encoder(estimator: Any) -> LeadingEncoder:
    """Return the leading encoder of an estimator, of which there may be none."""
    if isinstance(estimator, AdaptedEncoder) and _encodes_row_by_row(estimator):
        return EncoderOfAdapted(estimator)
    return LeadingEncoder(estimator)


class LeadingEncoder:
    """Leading encoders, if any, of a pipeline, which transform all rows once, outside the folds."""

    def __init__(self, estimator: Any) -> None:
        self.estimator, self.n_steps = estimator, 0
        if isinstance(estimator, Pipeline):
            is_leading = [_transforms_row_by_row(step) for _, step in estimator.steps[:-1]]
            self.n_steps = [*is_leading, False].index(False)
        self.names = [name for name, _ in estimator.steps[: self.n_steps]] if self.n_steps else []
        self.rest = estimator[self.n_steps :] if self.n_steps else estimator
        self.cached: tuple[Any, Any, Any] | None = None

    def split_params(self, parameters: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Split parameters into those of the leading steps and the others."""
        own = {name for name in parameters if name.partition("__")[0] in self.names}
        return (
            {name: value for name, value in parameters.items() if name in own},
            {name: value for name, value in parameters.items() if name not in own},
        )

    def groups(self, candidates: Sequence[Mapping[str, Any]]) -> list[list[int]]:
        """Indices of the candidates, grouped by equal parameters of the leading steps."""
        found: dict[Any, list[int]] = {}
        for number, parameters in enumerate(candidates):
            found.setdefault(self._key(parameters), []).append(number)
        return list(found.values())

    def transform(self, parameters: Mapping[str, Any], X: Any, y: Any) -> Any:
        """Transform all rows by the leading steps; the last result is cached."""
        if not self.n_steps:
            return X
        key = self._key(parameters)
        if self.cached is None or self.cached[0] != key:
            self.cached = None  # free it first: only one copy is held
            own = clone(self.split_params(parameters)[0], safe=False)
            encoder = self._make_encoder(own)
            for name, step in encoder.steps:
                if not _transforms_row_by_row(step):
                    raise ValueError(
                        f"param_grid sets {name}={step!r} in place of an encoder, which transforms "
                        "all rows outside the folds, while other steps must be fitted inside them: "
                        "use GridSearchCV, or add the step behind the encoder"
                    )
            self.cached = key, encoder, encoder.fit(X, y).transform(X)
        return self.cached[2]

    def other_params(self, parameters: Mapping[str, Any], y: Any) -> dict[str, Any]:
        """Return the parameters of a candidate for `rest`."""
        return self.split_params(parameters)[1]

    def fit_params(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the fit of `rest` takes, from what the fit of the estimator is given."""
        return dict(given)

    def fit(
        self, parameters: Mapping[str, Any], X: Any, y: Any, fit_params: Mapping[str, Any]
    ) -> Any:
        """Fit the estimator to all rows, reusing their cached embeddings."""
        rows = self.transform(parameters, X, y)
        estimator = clone(self.estimator).set_params(**clone(dict(parameters), safe=False))
        rest = estimator[self.n_steps :] if self.n_steps else estimator
        if y is None:
            rest.fit(rows, **fit_params)
        else:
            rest.fit(rows, y, **fit_params)
        if self.cached is None:
            return rest
        estimator.steps = [*self.cached[1].steps, *rest.steps]
        return estimator

    def _make_encoder(self, parameters: Mapping[str, Any]) -> Pipeline:
        return clone(self.estimator[: self.n_steps]).set_params(**parameters)

    def _key(self, parameters: Mapping[str, Any]) -> Any:
        own = self.split_params(parameters)[0]
        return tuple((name, comparable(own[name])) for name in sorted(own))


class EncoderOfAdapted(LeadingEncoder):
    """Encoder of an AdaptedEncoder; the rest is a pipeline with its adapter alone."""

    def __init__(self, estimator: AdaptedEncoder) -> None:
        self.estimator, self.n_steps, self.names = estimator, 1, ["encoder"]
        self.rest = Pipeline([("adapter", estimator._adapter())])
        self.cached: tuple[Any, Any, Any] | None = None
        self.heads: dict[Any, LinearHead | None] = {}  # of the checkpoints
        self.messages: set[str] = set()  # warnings about heads that were given

    def other_params(self, parameters: Mapping[str, Any], y: Any) -> dict[str, Any]:
        """Return the parameters of a candidate for `rest`, with the head that its adapter uses."""
        own = self.split_params(parameters)[1]
        model = clone(self.estimator).set_params(**clone(dict(parameters), safe=False))
        if "adapter" in own and own["adapter"] is None:
            own["adapter"] = model._adapter()
        given = model._adapter().head
        head = self._resolve(model, parameters, y).head
        return own if head is given else {**own, "adapter__head": head}

    def fit_params(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the fit of `rest` takes, from what the fit of the estimator is given."""
        return {f"adapter__{name}": value for name, value in given.items()}

    def fit(
        self, parameters: Mapping[str, Any], X: Any, y: Any, fit_params: Mapping[str, Any]
    ) -> AdaptedEncoder:
        """Fit the estimator to all rows, reusing their cached embeddings."""
        rows = self.transform(parameters, X, y)
        model = clone(self.estimator).set_params(**clone(dict(parameters), safe=False))
        encoder = self.cached[1]["encoder"] if self.cached else model._encoder()
        adapter = self._resolve(model, parameters, y)
        return model._fit_adapter(encoder, adapter, rows, y, fit_params)

    def _make_encoder(self, parameters: Mapping[str, Any]) -> Pipeline:
        model = clone(self.estimator).set_params(**parameters)
        return Pipeline([("encoder", clone(model._encoder()))])

    def _resolve(self, model: AdaptedEncoder, parameters: Mapping[str, Any], y: Any) -> Any:
        """Return the adapter with its head; each warning about it is given once."""
        key = self._key(parameters)

        def read_head() -> LinearHead | None:
            if key not in self.heads:
                self.heads[key] = encoder_head(model._encoder(), y)
            return self.heads[key]

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            adapter = model._adapter_with_head(read_head, y)
        for each in caught:
            if str(each.message) not in self.messages:
                self.messages.add(str(each.message))
                warn(each.message, each.category)
        return adapter


def _encodes_row_by_row(estimator: AdaptedEncoder) -> bool:
    """Whether an AdaptedEncoder is its encoder, row by row, followed by its adapter alone."""
    unchanged = all(
        getattr(type(estimator), name) is getattr(AdaptedEncoder, name)
        for name in ("fit", "transform", "score")
    )
    alone = unchanged and estimator.teacher is None
    return alone and _transforms_row_by_row(estimator._encoder())


def _transforms_row_by_row(step: Any) -> bool:
    """Whether a step needs no fit and the transform of a row does not depend on the other rows.

    The tag `requires_fit` answers only the first question, so only TransformerEncoder and steps
    that pass rows through are accepted.
    """
    if step is None or step == "passthrough":
        return True
    return getattr(type(step), "transform", None) is TransformerEncoder.transform
