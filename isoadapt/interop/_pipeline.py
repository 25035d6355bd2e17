"""The parts of a model to save, merge or export: encoder, adapters and final linear model."""

from pathlib import Path
from typing import Any, NamedTuple, cast

from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from isoadapt._utils.messages import shown
from isoadapt.adapted import AdaptedEncoder
from isoadapt.adapters import Affine
from isoadapt.adapters._base import BaseAdapter
from isoadapt.adapters._maps import compose
from isoadapt.encoders import TransformerEncoder
from isoadapt.encoders._class_labels import with_checkpoint_names
from isoadapt.encoders._pooling import HEAD_INPUT
from isoadapt.heads import LinearHead
from isoadapt.interop._reference import SERVE, Reference

RECORD = "_reference"  # attribute of a loaded adapter: of its vectors, if one was saved


class Parts(NamedTuple):
    """The steps of a model with their names: encoder, adapters and final linear model."""

    encoder: tuple[str, TransformerEncoder] | None
    adapters: list[tuple[str, BaseAdapter]]
    head: tuple[str, LinearHead] | None

    def first(self) -> BaseAdapter:
        """Return the adapter that reads the embeddings."""
        return self.adapters[0][1]

    def affine(self) -> Affine:
        """Return the map of all adapters; raise ValueError if one of them is not affine."""
        return compose(_affine(adapter) for _, adapter in self.adapters)

    @property
    def recorded(self) -> Reference | None:
        """The reference of the encoder that the adapter was fitted with, if it was saved."""
        return vars(self.first()).get(RECORD)

    @property
    def trust_remote_code(self) -> bool:
        """Whether the encoder may run code that comes with a checkpoint."""
        return self.encoder is not None and self.encoder[1].trust_remote_code

    def encoder_of(self, folder: Path, pooling: str = "auto") -> TransformerEncoder:
        """Return an encoder of a checkpoint, set as that whose vectors the adapters read."""
        known = {} if self.recorded is None else self.recorded.settings
        if self.encoder is not None:
            known = self.encoder[1].get_params()
        names = ("pooling", "layer", "max_length")
        settings = {name: known[name] for name in names if name in known}
        if pooling != "auto":
            settings |= {"pooling": pooling} | ({"layer": -1} if pooling == HEAD_INPUT else {})
        code = self.trust_remote_code  # which no record can say
        return TransformerEncoder(folder, device="cpu", trust_remote_code=code, **settings)

    def steps(self) -> list[tuple[str, Any]]:
        """Return all steps."""
        return [step for step in (self.encoder, *self.adapters, self.head) if step is not None]

    def last_head(self) -> LinearHead | None:
        """Return the head that reads the adapted embeddings."""
        return self.adapters[-1][1].head_ if self.head is None else self.head[1]

    def read_by_head(self) -> Affine:
        """Return the map from the encoder's vectors to what the last head reads."""
        *before, last = (adapter for _, adapter in self.adapters)
        map_ = last.head_map_ if self.head is None else last.map_
        return compose([*map(_affine, before), cast(Affine, map_)])


def _affine(adapter: BaseAdapter) -> Affine:
    """Return the map of an adapter; raise ValueError if it is not affine."""
    if not hasattr(adapter, "to_affine"):
        raise ValueError(
            f"adapter={adapter!r} is not an affine map z = Ah + c, and only those can be written "
            f"into a checkpoint; use an adapter with to_affine, or {SERVE}"
        )
    return adapter.to_affine()


def take_apart(model: Any) -> Parts:
    """Split an adapter, a Pipeline or an AdaptedEncoder into its parts, and check their types."""
    steps = _named_steps(model)
    encoder = head = None
    if steps and isinstance(steps[0][1], TransformerEncoder):
        encoder = steps.pop(0)
    if len(steps) > 1 and not isinstance(steps[-1][1], BaseAdapter):
        name, last = steps.pop()
        head = name, last if isinstance(last, LinearHead) else LinearHead.from_estimator(last)
    for _, step in steps:
        if callable(getattr(step, "head", None)):
            raise TypeError(
                f"adapter holds the encoder {shown(step)}, but only a TransformerEncoder is saved "
                "or exported: pass the adapter alone, pipeline_[1:] of an AdaptedEncoder, which "
                "adapts vectors of the encoder, or save both with joblib.dump"
            )
        if not isinstance(step, BaseAdapter):
            raise TypeError(
                f"adapter: {step!r} is not an adapter of isoadapt; pass an adapter, a Pipeline of "
                "adapters, an AdaptedEncoder or the best_estimator_ of a search, and use "
                "joblib.dump for other estimators"
            )
        check_is_fitted(step)
    if not steps:
        raise TypeError(
            "adapter is a Pipeline without an adapter; pass an adapter, or a Pipeline with one"
        )
    return Parts(encoder, steps, head)


def _named_steps(model: Any) -> list[tuple[str, Any]]:
    """List the steps, also of nested pipelines, without passthrough steps."""
    if isinstance(model, AdaptedEncoder):
        check_is_fitted(model)
        named = with_checkpoint_names(model.pipeline_["adapter"], model.class_names)
        model = Pipeline([*model.pipeline_.steps[:-1], ("adapter", named)])
    if not isinstance(model, Pipeline):
        return [("adapter", model)]
    found = []
    for name, step in model.steps:
        if isinstance(step, Pipeline | AdaptedEncoder):
            found += [(f"{name}-{inner}", each) for inner, each in _named_steps(step)]
        elif step not in (None, "passthrough"):
            found.append((name, step))
    return found
