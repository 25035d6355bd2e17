"""An encoder with the adapters and the head that read its vectors, opened once for an export."""

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np

from isoadapt._utils.messages import warn
from isoadapt.adapters import Affine
from isoadapt.encoders._class_labels import class_labels
from isoadapt.encoders._classifier_head import read_head
from isoadapt.encoders._folder import transformer_folder
from isoadapt.encoders._opened import Opened
from isoadapt.encoders._pooling import HEAD_INPUT
from isoadapt.heads import LinearHead
from isoadapt.interop._exact import Exact
from isoadapt.interop._pipeline import Parts, take_apart
from isoadapt.interop._reference import Reference

_SAME = 1e-7  # relative difference of logits up to which they are the same


@dataclass(frozen=True)
class Served:
    """What an export writes: an encoder, the map of its adapters, and the logits of their head."""

    parts: Parts
    map_: Affine  # from the encoder's vectors to the adapted ones
    exact: Exact  # the encoder
    folder: Path | None  # the checkpoint that is read; None for the encoder of a pipeline
    assumed: bool  # whether the pooling is neither given nor recorded

    @classmethod
    def of(
        cls, model: Any, folder: str | os.PathLike[str] | None = None, pooling: str = "auto"
    ) -> "Served":
        """Open the checkpoint behind which adapters are exported, or else their own encoder."""
        parts = take_apart(model)
        map_ = parts.affine()
        if folder is None and parts.encoder is None:
            raise ValueError(
                "model begins with an adapter, but the graph needs the encoder too: pass a fitted "
                "AdaptedEncoder, or make_pipeline(encoder, adapter)"
            )
        if folder is None:
            return cls(parts, map_, Exact.of(cast(Any, parts.encoder)[1]), None, False)
        source = checkpoint(folder)
        encoder = parts.encoder_of(source)
        if pooling != "auto":
            layer = -1 if pooling == HEAD_INPUT else encoder.layer
            encoder.set_params(pooling=pooling, layer=layer)
        known = pooling != "auto" or parts.encoder is not None or parts.recorded is not None
        return cls(parts, map_, Exact.of(encoder), source, not known)

    @property
    def opened(self) -> Opened:
        """The encoder with its model."""
        return self.exact.opened

    def reference(self) -> Reference:
        """Return what the encoder gives for a few texts; raise unless the adapters fit to it."""
        parts, opened, exact = self.parts, self.opened, self.exact
        width, folder = parts.first().n_features_in_, str(opened.backbone.folder)
        if width != opened.width:
            pooling = exact.settings["pooling"]
            raise ValueError(
                f"the adapter has n_features_in_={width}, but vectors of the checkpoint "
                f"{folder!r} with pooling={pooling!r} have width {opened.width}: fit it to "
                f"vectors of TransformerEncoder({folder!r}, pooling={pooling!r}), or export a "
                "pipeline that begins with the encoder that it was fitted with"
            )
        if self.folder is not None and parts.encoder is not None:
            self._check_encoder(parts.encoder[1])
        if parts.recorded is not None:
            exact.check(parts.recorded, f"the record of the saved {type(parts.first()).__name__}")
        if self.assumed:
            self._warn_if_assumed()
        return exact.reference

    def _check_encoder(self, encoder: Any) -> None:
        """Raise unless the encoder of a pipeline gives the vectors of the checkpoint."""
        try:
            own = Exact.of(encoder)
        except OSError as error:
            if self.parts.recorded is not None:  # of its vectors
                return
            raise OSError(
                f"the pipeline's encoder cannot be loaded, so it cannot be checked that its "
                f"vectors are those of model_folder ({error}); if its folder was moved, set the "
                "new one with set_params(model=...) of the encoder, or pass the adapter alone"
            ) from error
        if not own.is_model_of(self.exact):
            self.exact.check(own.reference, f"the encoder with {own.opened.backbone.shown}")

    def _warn_if_assumed(self) -> None:
        """Warn unless the adapter has the checkpoint's head, which reads the head's input."""
        opened, head = self.opened, self.parts.last_head()
        if head is not None and opened.pooling.is_head_input:
            own = read_head(opened.backbone, head.classes_)
            if head.coef_.shape == own.coef_.shape and np.allclose(head.coef_, own.coef_):
                return
        warn(
            f"the adapter records no pooling, so it is exported for the {opened.describe()}; "
            "if it was fitted to other vectors, the exported vectors are wrong: pass a pipeline "
            "that begins with the encoder (on the command line --pooling)"
        )

    @cached_property
    def head(self) -> LinearHead:
        """The checkpoint's own head."""
        return read_head(self.opened.backbone)

    def logits(self, head: LinearHead) -> Affine:
        """Return the map from the encoder's vectors to logits of a head behind the adapters."""
        head, read = self.reordered(head), self.parts.read_by_head()
        if read.n_features_out != head.n_features_in_:
            raise ValueError(
                f"the adapter maps {read.matrix.shape[1]} features to {read.n_features_out}, but "
                f"the head takes {head.n_features_in_}: fit the adapter to the input of the "
                "checkpoint's head, and with a head of its own if it reduces the width"
            )
        return Affine(head.coef_, head.intercept_).after(read)

    def own_logits(self, width: int) -> Affine:
        """Return the checkpoint's logits as a map of vectors that begin with the head's input."""
        head, d = self.reordered(self.head), self.head.n_features_in_
        return Affine(head.coef_, head.intercept_).after(Affine(np.eye(d, width), np.zeros(d)))

    def reordered(self, head: LinearHead) -> LinearHead:
        """Return a head without classes whose outputs are in the order of the labels' ids."""
        own, config = self.head, self.opened.backbone.model.config
        kinds = {
            (each.classes_ is None, each.multi_label_, len(each.coef_)) for each in (head, own)
        }
        if head.classes_ is None and len(kinds) == 1:
            return head
        given, kept = (_by_id(each, config) for each in (head, own))
        if len(kinds) == 2 or given is None or kept is None:
            raise ValueError(
                f"the adapter's head is {head!r}, the checkpoint's {own!r}: both must predict the "
                "same classes, or as many values. Fit the adapter with the checkpoint's head or "
                "without one"
            )
        same = given.coef_.shape == kept.coef_.shape
        if not same or not np.allclose(given.coef_, kept.coef_, rtol=1e-3, atol=1e-6):
            warn(
                "the adapter's head is not the checkpoint's, so that labels can differ from the "
                "checkpoint's; LogitPreservingWhitening, fitted with the checkpoint's head "
                "(load_checkpoint(model)[1], or isoadapt fit --model), keeps them"
            )
        if config.num_labels < len(given.coef_):
            coef, intercept = given.coef_, given.intercept_
            return LinearHead(coef[1:] - coef[:1], intercept[1:] - intercept[:1])
        return given


def checkpoint(folder: Any) -> Path:
    """Return the folder of a checkpoint that an export reads; raise if it is none."""
    if not isinstance(folder, str | os.PathLike):
        raise TypeError(
            f"model_folder is a {type(folder).__name__}, but must be a folder: write a live "
            "model and its tokenizer by save_pretrained first"
        )
    source = Path(folder).expanduser()
    configs = (transformer_folder(source) / "config.json", source / "adapter_config.json")
    if not any(file.is_file() for file in configs):
        raise FileNotFoundError(
            f"model_folder={str(folder)!r} is not a folder with a config.json; pass one that "
            "save_pretrained wrote"
        )
    return source


def is_unchanged(logits: Affine, own: Affine) -> bool:
    """Return whether logits are those of the checkpoint's own head, but for rounding."""
    differences = [np.abs(new - old).max() for new, old in zip(logits, own, strict=True)]
    return bool(max(differences) <= _SAME * max(np.abs(each).max() for each in own))


def _by_id(head: LinearHead, config: Any) -> LinearHead | None:
    """Return a classifier's outputs in the order of the checkpoint's ids, if it has its labels."""
    classes = [] if head.classes_ is None else head.classes_.tolist()
    labels = class_labels(config, len(classes), classes)
    if not classes or {*labels} != {*classes}:
        return None
    order = [classes.index(label) for label in labels]
    return LinearHead(head.coef_[order], head.intercept_[order])
