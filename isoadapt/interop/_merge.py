"""Merging of an affine adapter into a checkpoint, and what exports into checkpoints share."""

import copy
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from isoadapt._utils.files import CHECKPOINT, TOKENIZER_FILES, atomic_folder, check_output_folder
from isoadapt._utils.messages import warn
from isoadapt._utils.state import own_state
from isoadapt.adapters import Affine
from isoadapt.adapters._maps import Floats, compose
from isoadapt.encoders import TransformerEncoder
from isoadapt.encoders._backbone import Backbone, eval_copy
from isoadapt.encoders._class_labels import class_labels
from isoadapt.encoders._classifier_head import applies_sigmoid, read_head
from isoadapt.encoders._folder import tokenizer_folder, transformer_folder
from isoadapt.encoders._kinds import holds_classifier
from isoadapt.encoders._models import quiet
from isoadapt.encoders._pooling import HEAD_INPUT, Pooling
from isoadapt.encoders._sentence import MODEL_FILE
from isoadapt.heads import LinearHead
from isoadapt.interop._loaders import CLASSIFIER, check_written, own_length
from isoadapt.interop._pipeline import Parts, affine, take_apart
from isoadapt.interop._reference import (
    SERVE,
    Reference,
    check_vectors,
    encoder_reference,
)
from isoadapt.interop._sentence_files import write_modules

_SENTENCE = re.compile(
    r"(modules|sentence_[\w-]+_config|config_sentence_transformers)\.json"
    r"|\d+_\w+/(config\.json|model\.safetensors)"
)
_ROUNDING = 1e-8  # relative size up to which a bias counts as zero


@own_state()
def merge_into_checkpoint(
    adapter: Any,
    model_folder: str | os.PathLike[str],
    out_folder: str | os.PathLike[str],
    *,
    overwrite: bool = False,
) -> Path:
    """Merge an affine adapter into a copy of a checkpoint, which works without isoadapt.

    For the adapter z = Ah + c and the head Wz + b, the classifier of the copy has the weights WA
    and the bias Wc + b, computed in float64. The copy is loaded with
    ``AutoModelForSequenceClassification.from_pretrained``. Its logits are those of encoder,
    adapter and head, at the cost of the original model. It is written in float32. Tokenizer and
    sentence-transformers files are copied unchanged. With the texts and logits in
    ``reference.json``, ``isoadapt check`` compares the copy where it is deployed.

    The adapter must have been fitted to the vectors that enter the last layer of the classifier
    of this checkpoint. This is checked for a pipeline that begins with an encoder, and for a
    saved adapter that records its encoder, by their vectors of a few texts: a copy or a renamed
    folder counts as the same checkpoint, and vectors of another data type pass.

    Parameters
    ----------
    adapter : adapter, Pipeline or AdaptedEncoder
        A fitted affine adapter, a pipeline of such adapters, or a fitted
        :class:`~isoadapt.AdaptedEncoder`. A pipeline may begin with a
        :class:`~isoadapt.TransformerEncoder` and end with a linear model. That linear model, or
        otherwise the head of the last adapter, replaces the classifier. If there is neither, the
        classifier of the checkpoint is used.
    model_folder : str or path-like
        The checkpoint of a model for sequence classification. A PEFT adapter is first merged into
        its base model, so that the copy does not need peft. Of a sentence-transformers folder
        with its transformer in a subfolder, only this transformer is copied.
    out_folder : str or path-like
        The folder to write. It appears only when it is complete.
    overwrite : bool, default=False
        Whether to replace a checkpoint in `out_folder` that isoadapt wrote. A folder that holds any
        other file or folder is never replaced.

    Returns
    -------
    Path
        The new folder.

    Raises
    ------
    FileNotFoundError
        If `model_folder` is not a checkpoint.
    FileExistsError
        If `out_folder` holds files and `overwrite` is false, if it holds files that may not be
        replaced, or if it is `model_folder`.
    NotFittedError
        If an adapter is not fitted.
    TypeError
        If a step of the pipeline is not an adapter.
    ValueError
        If `model_folder` has no classifier, for which there is
        :func:`~isoadapt.interop.to_sentence_transformer`. If an adapter is not affine or its width
        is not that of the head of the checkpoint, if it was fitted to other vectors than those that
        enter this head, if the two heads have different classes, or if a bias is needed but the
        architecture has none.
    OSError
        If the checkpoint of a pipeline's encoder cannot be loaded.

    Notes
    -----
    The head of a decoder such as GPT-2 has no bias. Only adapters that do not need a bias can be
    merged into it, such as :class:`~isoadapt.LogitPreservingWhitening`.

    The copy computes WAh in single precision, whereas adapters use double precision. If an
    adapter amplifies directions of low variance, as whitening without shrinkage does, the terms
    of this product are much larger than their sum, and logits can differ by more than rounding.

    Examples
    --------
    >>> from isoadapt.interop import merge_into_checkpoint
    >>> merge_into_checkpoint(adapter, "my-model", "my-model-merged")  # doctest: +SKIP
    >>> AutoModelForSequenceClassification.from_pretrained("my-model-merged")  # doctest: +SKIP
    """
    parts = take_apart(adapter)
    _refuse_readouts(parts)
    map_, head = parts.affine(), parts.last_head()
    source, target = check_folders(model_folder, out_folder, overwrite)
    if not holds_classifier(source):
        raise ValueError(
            f"model_folder={str(model_folder)!r} has no classifier to merge into: it was not saved "
            "from a model for sequence classification. isoadapt.interop.to_sentence_transformer "
            "writes the adapter behind an encoder without a classifier"
        )
    encoder = TransformerEncoder(source, pooling="head_input", device="cpu")
    model = encoder.open()
    own = read_head(model.backbone)
    tokenizer = model.backbone.tokenizer
    head = reordered(own if head is None else head, own, model.backbone.model.config)
    check_source(parts, encoder)
    check_width(map_, head)
    network = with_head(model.backbone, head, map_)
    place = tokenizer_folder(source)
    reference, length = encoder_reference(encoder), own_length(tokenizer)
    # The longest text is truncated differently if the tokenizer has another length.
    kept = slice(None) if length == model.length() else slice(-1)
    logits = head.outputs(map_(reference.vectors))[kept]
    merged = Reference(
        reference.texts[kept], None, logits, reference.adapted(map_).limit, {"max_length": length}
    )
    with quiet(), atomic_folder(target, overwrite, CHECKPOINT) as written:
        network.save_pretrained(written)
        copy_files(place, written, tokenizer, sentence=True)
        if place != source and model.pooling != Pooling((HEAD_INPUT,)):
            write_modules(written, [])  # with which a CrossEncoder reads its settings
            shutil.copyfile(source / MODEL_FILE, written / MODEL_FILE)
        check_written(written, merged._replace(loaders=[CLASSIFIER]), strict=False)
    return target


def check_folders(
    model_folder: str | os.PathLike[str], out_folder: str | os.PathLike[str], overwrite: bool
) -> tuple[Path, Path]:
    """Return the checkpoint's folder and the folder to write, after checking both."""
    source = Path(model_folder).expanduser()
    configs = (transformer_folder(source) / "config.json", source / "adapter_config.json")
    if not any(file.is_file() for file in configs):
        raise FileNotFoundError(
            f"model_folder={str(model_folder)!r} is not a folder with a config.json; pass one that "
            "save_pretrained wrote"
        )
    return source, check_output_folder(out_folder, overwrite, name="out_folder", model=source)


def check_source(parts: Parts, encoder: TransformerEncoder) -> None:
    """Raise unless the adapter was fitted to vectors of the encoder, as far as it is known."""
    model, width = encoder.open(), parts.first().n_features_in_
    folder = str(model.backbone.folder)
    if width != model.width:
        raise ValueError(
            f"the adapter has n_features_in_={width}, but vectors of the checkpoint "
            f"{folder!r} with pooling={encoder.pooling!r} have width {model.width}: fit it to "
            f"vectors of TransformerEncoder({folder!r}, pooling={encoder.pooling!r}), or export a "
            "pipeline that begins with the encoder that it was fitted with"
        )
    for reference, name in _sources(parts):
        check_vectors(reference, name, encoder)


def _sources(parts: Parts) -> Iterator[tuple[Reference, str]]:
    """Yield references of the first adapter's vectors, each with a description for messages."""
    if parts.encoder is not None:
        encoder = parts.encoder[1]
        live = not isinstance(encoder.model, str | os.PathLike)
        shown = f"a live {type(encoder.model[0]).__name__}" if live else repr(str(encoder.model))
        try:
            reference = encoder_reference(encoder)
        except OSError as error:
            raise OSError(
                f"the pipeline's encoder cannot be loaded, so it cannot be checked that its "
                f"vectors are those of model_folder ({error}); if its folder was moved, set the "
                "new one with set_params(model=...) of the encoder, or pass the adapter alone"
            ) from error
        yield reference, f"the encoder with model={shown}"
    if parts.recorded is not None:
        yield parts.recorded, f"the record of the saved {type(parts.first()).__name__}"


def _refuse_readouts(parts: Parts) -> None:
    for _, adapter in parts.adapters:
        if adapter.head_map_ is not adapter.map_:
            raise ValueError(
                f"adapter={adapter!r} predicts from the head's own input, not from its vectors, so "
                "there is nothing to merge into the head: use to_sentence_transformer for poolings "
                f"of the last layer, or {SERVE}"
            )


def reordered(head: LinearHead, own: LinearHead, config: Any) -> LinearHead:
    """Return a head without classes whose outputs are in the order of the checkpoint's labels."""
    kinds = {(each.classes_ is None, each.multi_label_) for each in (head, own)}
    if len(kinds) == 2 or (head.classes_ is None and len(head.coef_) != len(own.coef_)):
        raise ValueError(
            f"the adapter's head is {head!r}, the checkpoint's {own!r}: both must be classifiers, "
            "multi-label classifiers, or regressors with the same number of outputs. Fit the "
            "adapter with the checkpoint's own head or without a head"
        )
    if head.classes_ is None:
        return head
    given, kept = (_by_id(each, config) for each in (head, own))
    if given is None or kept is None or len(head.coef_) != len(own.coef_):
        raise ValueError(
            f"the adapter's head has the classes {head._known()}, the checkpoint {own._known()}: "
            "fit the adapter on the checkpoint's labels"
        )
    same = given.coef_.shape == kept.coef_.shape
    if not same or not np.allclose(given.coef_, kept.coef_, rtol=1e-3, atol=1e-6):
        warn(
            "the adapter's head is not the checkpoint's, so that labels can differ from the "
            "checkpoint's; to keep them, fit the adapter with the checkpoint's head: "
            "load_checkpoint(model)[1], or isoadapt fit --model"
        )
    if config.num_labels < len(given.coef_):
        coef, intercept = given.coef_, given.intercept_
        return LinearHead(coef[1:] - coef[:1], intercept[1:] - intercept[:1])
    return given


def _by_id(head: LinearHead, config: Any) -> LinearHead | None:
    """Return a classifier's outputs in the order of the checkpoint's ids, if it has its labels."""
    classes = cast(Any, head.classes_).tolist()
    labels = class_labels(config, len(classes), classes)
    if {*labels} != {*classes}:
        return None
    order = [classes.index(label) for label in labels]
    return LinearHead(head.coef_[order], head.intercept_[order])


def check_width(map_: Affine, head: LinearHead) -> None:
    if map_.n_features_out != head.n_features_in_:
        raise ValueError(
            f"the adapter returns {map_.n_features_out} features, but the head takes "
            f"{head.n_features_in_}: fit the adapter with a head, or without reducing the width"
        )


def read_by_head(parts: Parts, map_: Affine) -> Affine:
    """Return the map from the encoder's vectors to what the last head reads."""
    *before, last = (step for _, step in parts.adapters)
    if parts.head is not None or last.head_map_ is last.map_:
        return map_
    width = map_.matrix.shape[1]
    first = compose([Affine(np.eye(width), np.zeros(width)), *map(affine, before)])
    return cast(Any, last.head_map_).after(first)


def with_head(backbone: Backbone, head: LinearHead, map_: Affine) -> Any:
    """Return a shallow copy of the model whose classifier includes the adapter and the head."""
    old = cast(torch.nn.Linear, backbone.head)
    new = eval_copy(old)
    bias = head.coef_ @ map_.offset + head.intercept_
    terms = np.linalg.norm(head.coef_, axis=1) * np.linalg.norm(map_.offset)
    new.weight = _parameter(head.coef_ @ map_.matrix)
    if new.bias is not None:
        new.bias = _parameter(bias)
    elif (np.abs(bias) > _ROUNDING * (terms + np.abs(head.intercept_))).any():
        raise ValueError(
            f"the head of {type(backbone.model).__name__} has no bias, but this adapter needs one "
            f"(largest entry {np.abs(bias).max():.3g}): LogitPreservingWhitening on the "
            f"checkpoint's own head needs none; or {SERVE}"
        )
    return copied(backbone, {old: new})


def copied(backbone: Backbone, replace: dict[torch.nn.Module, torch.nn.Module]) -> Any:
    """Return a shallow copy of a model with a configuration of its own, which records a sigmoid."""
    network = eval_copy(backbone.model, replace)
    config = network.config = copy.deepcopy(network.config)  # save_pretrained changes it
    if config.num_labels == 1 and applies_sigmoid(backbone):
        config.sentence_transformers = {"activation_fn": "torch.nn.modules.activation.Sigmoid"}
    return network


def _parameter(values: Floats) -> torch.nn.Parameter:
    weights = torch.tensor(values, dtype=torch.float32)
    if not bool(weights.isfinite().all()):
        raise ValueError(
            f"the merged weights reach {np.abs(values).max():.3g}, beyond float32: increase the "
            f"adapter's shrinkage, or {SERVE}"
        )
    return torch.nn.Parameter(weights, requires_grad=False)


def copy_files(source: Path, target: Path, tokenizer: Any, *, sentence: bool) -> None:
    """Copy the files of the tokenizer and, if wanted, those of sentence-transformers."""
    own = set(tokenizer.vocab_files_names.values())  # may include rarer names
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source).as_posix()
        copied = name in own or TOKENIZER_FILES.fullmatch(name)
        if path.is_file() and (copied or (sentence and _SENTENCE.fullmatch(name))):
            (target / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(path, target / name)
