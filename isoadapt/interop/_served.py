"""An encoder with the adapters and the head that read its vectors, opened once for an export."""

import copy
import os
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from isoadapt._utils.messages import warn
from isoadapt.adapters import Affine
from isoadapt.adapters._maps import Floats
from isoadapt.encoders._backbone import eval_copy
from isoadapt.encoders._class_labels import class_labels
from isoadapt.encoders._classifier_head import applies_sigmoid, read_head
from isoadapt.encoders._folder import transformer_folder
from isoadapt.encoders._opened import Opened
from isoadapt.encoders._pooling import HEAD_INPUT
from isoadapt.heads import LinearHead
from isoadapt.interop._exact import Exact
from isoadapt.interop._pipeline import Parts, take_apart
from isoadapt.interop._reference import SERVE, Reference

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
        if folder is not None:
            source = checkpoint(folder)
            known = pooling != "auto" or parts.encoder is not None or parts.recorded is not None
            return cls(parts, map_, Exact.of(parts.encoder_of(source, pooling)), source, not known)
        if parts.encoder is None:
            raise ValueError(
                "model begins with an adapter, but the graph needs its TransformerEncoder too: "
                "pass a fitted AdaptedEncoder, or make_pipeline(encoder, adapter); for vectors of "
                "another encoder, save_adapter and to_faiss write the adapter alone"
            )
        return cls(parts, map_, Exact.of(parts.encoder[1]), None, False)

    @property
    def opened(self) -> Opened:
        """The encoder with its model."""
        return self.exact.opened

    def reference(self) -> Reference:
        """Return what the encoder gives for a few texts; raise unless the adapters read that."""
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
                f"the pipeline's encoder cannot be loaded, so its vectors cannot be compared with "
                f"model_folder's ({error}); if its folder was moved, set the new one with "
                "set_params(model=...) of the encoder, or pass the adapter alone"
            ) from error
        if not own.is_same(self.exact):
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
        outputs, read = self.outputs(head), self.parts.read_by_head()
        if read.n_features_out != head.n_features_in_:
            raise ValueError(
                f"the adapter maps {read.matrix.shape[1]} features to {read.n_features_out}, but "
                f"the head takes {head.n_features_in_}: fit the adapter to the input of the "
                "checkpoint's head, and with a head of its own if it reduces the width"
            )
        return outputs.after(read)

    def own_logits(self, width: int) -> Affine:
        """Return the checkpoint's logits as a map of vectors that begin with the head's input."""
        outputs, d = self.outputs(self.head), self.head.n_features_in_
        return outputs.after(Affine(np.eye(d, width), np.zeros(d)))

    def outputs(self, head: LinearHead) -> Affine:
        """Return the outputs of a head, in the order of the checkpoint's labels, as a map."""
        heads, config = (head, self.head), self.opened.backbone.model.config
        kinds = {(each.classes_ is None, each.multi_label_, len(each.coef_)) for each in heads}
        if head.classes_ is None and len(kinds) == 1:
            return Affine(head.coef_, head.intercept_)
        given, own = (_by_id(each, config) for each in heads)
        if len(kinds) == 2 or given is None or own is None:
            raise ValueError(
                f"the adapter's head is {head!r}, the checkpoint's {self.head!r}: both must "
                "predict the same classes, or as many values. Fit the adapter with the "
                "checkpoint's head or without one"
            )
        same = given.matrix.shape == own.matrix.shape
        if not same or not np.allclose(given.matrix, own.matrix, rtol=1e-3, atol=1e-6):
            warn(
                "the adapter's head is not the checkpoint's, so that labels can differ from the "
                "checkpoint's; LogitPreservingWhitening, fitted with the checkpoint's head "
                "(load_checkpoint(model)[1], or isoadapt fit --model), keeps them"
            )
        if config.num_labels < given.n_features_out:  # one output is the difference of two
            return Affine(*(values[1:] - values[:1] for values in given))
        return given

    def classifier(self, reference: Reference) -> tuple[Any, Floats | None, bool]:
        """Return the network, its logits of texts (n, C), and whether they are the checkpoint's."""
        opened, vectors, head = self.opened, reference.vectors, self.parts.last_head()
        backbone = opened.backbone
        if backbone.head is None:
            return self.network(), None, True
        logits = self.own_logits(backbone.head.in_features)
        if not opened.pooling.is_head_input:  # the classifier reads other vectors than the adapters
            pooling = backbone.pooling(HEAD_INPUT)
            reader = replace(opened, pooling=pooling, max_length=opened.length())
            vectors = Exact(reader, {}).vectors(reference.texts)
        elif head is not None and not is_unchanged(new := self.logits(head), logits):
            return self.network(new), new(vectors), False
        return self.network(), logits(vectors), True

    def network(self, logits: Affine | None = None) -> Any:
        """Return a shallow copy of the model, with the logits of a map of its head's input."""
        backbone, replaced = self.opened.backbone, dict[nn.Module, nn.Module]()
        if logits is not None:
            old, new = cast(nn.Linear, backbone.head), as_linear(logits)
            if old.bias is None and not np.allclose(logits.offset, 0):
                raise ValueError(
                    f"the head of {type(backbone.model).__name__} has no bias, but this adapter "
                    f"needs one (largest entry {np.abs(logits.offset).max():.3g}): export an "
                    "adapter that leaves the logits as they are, such as "
                    f"LogitPreservingWhitening; or {SERVE}"
                )
            new.bias = None if old.bias is None else new.bias
            replaced[old] = new
        network = eval_copy(backbone.model, replaced)
        config = network.config = copy.deepcopy(network.config)  # save_pretrained changes it
        if config.num_labels == 1 and applies_sigmoid(backbone):
            config.sentence_transformers = {"activation_fn": "torch.nn.modules.activation.Sigmoid"}
        return network


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
    """Return whether logits equal the `own` ones of the checkpoint, but for rounding."""
    differences = [np.abs(new - old).max() for new, old in zip(logits, own, strict=True)]
    return bool(max(differences) <= _SAME * max(np.abs(each).max() for each in own))


def as_linear(map_: Affine) -> nn.Linear:
    """Return an affine map as a layer in float32."""
    layer = nn.Linear(map_.matrix.shape[1], map_.n_features_out, device="meta")
    for name, values in (("weight", map_.matrix), ("bias", map_.offset)):
        tensor = torch.tensor(values, dtype=torch.float32)
        setattr(layer, name, nn.Parameter(tensor, requires_grad=False))
    return layer


def _by_id(head: LinearHead, config: Any) -> Affine | None:
    """Return a classifier's outputs in the order of the checkpoint's ids, if it has its labels."""
    classes = [] if head.classes_ is None else head.classes_.tolist()
    labels = class_labels(config, len(classes), classes)
    if not classes or {*labels} != {*classes}:
        return None
    order = [classes.index(label) for label in labels]
    return Affine(head.coef_[order], head.intercept_[order])
