"""Folding an affine adapter into the classifier of a checkpoint."""

import copy
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from isoadapt._utils.folders import CHECKPOINT, atomic_folder, check_output_folder
from isoadapt.adapters import Affine, BaseAdapter, Floats, compose
from isoadapt.encoders import (
    HEAD_VECTORS,
    Backbone,
    TransformerEncoder,
    VectorSource,
    eval_copy,
    quiet,
    read_head,
    tokenizer_folder,
    transformer_folder,
    vector_source,
)
from isoadapt.heads import LinearHead, MultiLabelHead
from isoadapt.interop._adapter import SOURCE
from isoadapt.interop._pipeline import Parts, take_apart

_COPIED = re.compile(
    r"(tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab|modules"
    r"|sentence_bert_config|config_sentence_transformers)\.json|(vocab|merges)\.txt"
    r"|[^/]*\.(model|jinja)|\d+_\w+/(config\.json|model\.safetensors)"
)
_ROUNDING = 1e-8
_SERVE = "serve it with isoadapt.AdaptedEncoder instead"


def merge_into_checkpoint(
    adapter: Any,
    model_folder: str | os.PathLike[str],
    out_folder: str | os.PathLike[str],
    *,
    overwrite: bool = False,
) -> Path:
    """Fold an affine adapter into a copy of a checkpoint, which then needs no isoadapt.

    For z = Ah + c under the head Wz + b, the classifier of the copy gets the weights WA and the
    bias Wc + b, computed in float64. ``AutoModelForSequenceClassification.from_pretrained``
    loads it, and its logits are those of encoder, adapter and head, at no cost. The copy is
    written in float32; tokenizer and sentence-transformers files come along as they are.

    The adapter must have been fitted to the vectors that enter the last layer of this
    checkpoint's classifier. That is checked where it is known: of an encoder that a pipeline
    begins with, and of a saved adapter that records its encoder. A bare adapter, or one saved
    without that record, is taken on trust.

    Parameters
    ----------
    adapter : adapter, Pipeline or AdaptedEncoder
        A fitted affine adapter; a pipeline of such, which may begin with a
        :class:`~isoadapt.TransformerEncoder` and end with a linear model; or a fitted
        :class:`~isoadapt.AdaptedEncoder`. The last adapter's head is taken, fitted anew or
        trained along as it may be; without a head, the checkpoint's own.
    model_folder : str or path-like
        The checkpoint, for sequence classification. An adapter of PEFT is merged into its base
        model first, so that the copy needs no peft either.
        Of a sentence-transformers folder that keeps its transformer in a folder inside, that
        transformer is copied, without the other modules.
    out_folder : str or path-like
        Where the copy goes. It appears when it is whole.
    overwrite : bool, default=False
        Whether a checkpoint in it may be replaced that isoadapt or ``save_pretrained`` wrote. A
        folder with any other file in it is kept, and so is one in which a file was changed after
        isoadapt wrote it.

    Returns
    -------
    Path
        The new folder.

    Raises
    ------
    FileNotFoundError
        If `model_folder` is no checkpoint.
    FileExistsError
        If `out_folder` holds files and `overwrite` is false, or files that may not be replaced, or
        is `model_folder`.
    NotFittedError
        If an adapter is not fitted.
    TypeError
        If a step is no adapter.
    ValueError
        If an adapter is not affine or of another width than the checkpoint's head, if it was
        fitted to other vectors than the checkpoint's head input, if the heads have other classes,
        or if a bias is needed where the architecture has none.
    OSError
        If the checkpoint of a pipeline's encoder cannot be loaded.

    Notes
    -----
    A checkpoint is known by the weights in front of its last layer and by its tokenizer: a copy,
    or a folder with another name, is the same one. An encoder that computes in float16 or
    bfloat16, or by ONNX Runtime in float32, gives the same vectors up to rounding; "int8" vectors
    are refused.

    The head of a decoder such as GPT-2 has no bias. Only adapters that need none can be folded
    into it, such as :class:`~isoadapt.LogitPreservingWhitening`.

    The copy computes WAh in single precision, adapters in double. Where an adapter stretches
    directions of little variance, as whitening without shrinkage does, the products are much
    larger than the logits they sum up to, and logits may differ by more than rounding.

    Examples
    --------
    >>> from isoadapt.interop import merge_into_checkpoint
    >>> merge_into_checkpoint(adapter, "my-model", "my-model-merged")  # doctest: +SKIP
    >>> AutoModelForSequenceClassification.from_pretrained("my-model-merged")  # doctest: +SKIP
    """
    parts = take_apart(adapter)
    map_, head = compose(_affine(step) for _, step in parts.adapters), parts.last_head()
    source = Path(model_folder).expanduser()
    configs = (transformer_folder(source) / "config.json", source / "adapter_config.json")
    if not any(file.is_file() for file in configs):
        raise FileNotFoundError(
            f"model_folder={str(model_folder)!r} is no folder with a config.json; pass one made "
            "by save_pretrained of a model for sequence classification"
        )
    target = check_output_folder(out_folder, overwrite, name="out_folder")
    if target.exists() and target.samefile(source):
        raise FileExistsError(
            f"out_folder={str(out_folder)!r} is model_folder, which is kept; choose another"
        )
    encoder = TransformerEncoder(source, pooling="head_input", device="cpu")
    own = read_head(encoder)
    _check_kinds(own if head is None else head, own)
    backbone = encoder._backbone()
    head = _in_order(own if head is None else head, own, backbone.model.config)
    _check_widths(map_, head, own)
    for vectors, name in _sources(parts):
        _check_vectors(vectors, name, backbone)
    network = _with_head(backbone, head, map_)
    with quiet(), atomic_folder(target, overwrite, CHECKPOINT) as written:
        network.save_pretrained(written)
        _copy_files(tokenizer_folder(source), written, backbone.tokenizer)
    return target


def _sources(parts: Parts) -> Iterator[tuple[VectorSource, str]]:
    """Identify the vectors that the first adapter reads, and say who tells of them."""
    if parts.encoder is not None:
        encoder = parts.encoder[1]
        yield _encoder_source(encoder), f"the encoder with model={_shown(encoder.model)}"
    first = parts.first()
    if hasattr(first, SOURCE):
        yield getattr(first, SOURCE), f"the record of the saved {type(first).__name__}"


def _shown(model: Any) -> str:
    named = isinstance(model, str | os.PathLike)
    return repr(os.fspath(model)) if named else f"a live {type(model[0]).__name__}"


def _encoder_source(encoder: TransformerEncoder) -> VectorSource:
    try:
        return vector_source(encoder)
    except OSError as error:
        raise OSError(
            f"the pipeline's encoder cannot be loaded, so whether its vectors are those of "
            f"model_folder is not known ({error}); if its folder was moved, name the new one by "
            "set_params(model=...) of the encoder, or pass the adapter alone"
        ) from error


def _check_vectors(vectors: VectorSource, name: str, backbone: Backbone) -> None:
    """Refuse vectors other than the checkpoint's head input."""
    folder = str(backbone.folder)
    way_out = (
        f"fit the adapter to TransformerEncoder({folder!r}, {HEAD_VECTORS}).transform(texts), or "
        f"{_SERVE}"
    )
    if vectors.kind not in (HEAD_VECTORS, None):
        raise ValueError(
            f"the adapter reads vectors with {vectors.kind} ({name}), but the last layer of the "
            f"classifier in model_folder={folder!r} reads those with {HEAD_VECTORS}: {way_out}"
        )
    if not vectors.is_of(backbone):
        raise ValueError(
            f"the adapter reads vectors of another checkpoint ({name}) than "
            f"model_folder={folder!r}, with other weights or another tokenizer: merge it into its "
            f"own checkpoint or a copy of that, or {way_out}"
        )


def _affine(adapter: BaseAdapter) -> Affine:
    if not hasattr(adapter, "to_affine"):
        raise ValueError(
            f"adapter={adapter!r} is no affine map z = Ah + c, which alone can be folded into a "
            f"linear head; fit one that is (those with to_affine), or {_SERVE}"
        )
    return adapter.to_affine()


def _check_kinds(head: LinearHead, own: LinearHead) -> None:
    """Refuse to put a softmax or a regression where a multi-label head was, and the reverse."""
    if isinstance(head, MultiLabelHead) != isinstance(own, MultiLabelHead):
        raise ValueError(
            f"the adapter's head is {head!r}, the checkpoint's {own!r}: only one of them is a "
            "multi-label head. Fit the adapter with the checkpoint's own head or with none; if "
            "its outputs are the logits of labels, its head is "
            "isoadapt.heads.MultiLabelHead(coef, intercept)"
        )


def _in_order(head: LinearHead, own: LinearHead, config: Any) -> LinearHead:
    """Return the outputs of a head in the order of the checkpoint's labels, without the labels."""
    if head.classes_ is None or own.classes_ is None:
        if (head.classes_ is None) != (own.classes_ is None) or len(head.coef_) != len(own.coef_):
            raise ValueError(
                f"the adapter's head is {head!r}, the checkpoint's {own!r}: both must be "
                "classifiers, or regressors with as many outputs"
            )
        return head
    rows = {label: row for row, label in enumerate(head.classes_.tolist())}
    numbers = list(range(config.num_labels))
    names = [config.id2label[number] for number in numbers]
    known = own.classes_.tolist()
    for labels in (numbers, names) if known == numbers else (names,):
        if set(labels) == set(rows) and len(labels) == len(rows):
            order = [rows[label] for label in labels]
            return LinearHead(head.coef_[order], head.intercept_[order])
    raise ValueError(
        f"the adapter's head knows the classes {list(rows)}, the checkpoint {known} "
        f"(by name {names}): fit the adapter on the checkpoint's labels"
    )


def _check_widths(map_: Affine, head: LinearHead, own: LinearHead) -> None:
    if map_.matrix.shape[1] != own.n_features_in_:
        raise ValueError(
            f"the adapter takes n_features_in_={map_.matrix.shape[1]}, but the checkpoint's head "
            f"reads embeddings of width {own.n_features_in_}: fit the adapter on embeddings of "
            "this checkpoint, as load_checkpoint gives them"
        )
    if map_.n_features_out != head.n_features_in_:
        raise ValueError(
            f"the adapter gives out {map_.n_features_out} features, but the head reads "
            f"{head.n_features_in_}: fit the adapter with a head, or keep the width"
        )


def _with_head(backbone: Backbone, head: LinearHead, map_: Affine) -> Any:
    """Copy a model shallowly, with another classifier."""
    old = cast(torch.nn.Linear, backbone.head)
    new = eval_copy(old)
    weight, bias = head.coef_ @ map_.matrix, head.coef_ @ map_.offset + head.intercept_
    new.weight = _parameter(weight)
    if new.bias is not None:
        new.bias = _parameter(bias)
    elif not _is_rounding(bias, head, map_):
        raise ValueError(
            f"the head of {type(backbone.model).__name__} has no bias, but this adapter needs one "
            f"(largest entry {np.abs(bias).max():.3g}): LogitPreservingWhitening on the "
            f"checkpoint's own head needs none; or {_SERVE}"
        )
    network = eval_copy(backbone.model, {old: new})
    network.config = copy.deepcopy(backbone.model.config)  # save_pretrained writes to it
    return network


def _is_rounding(bias: Floats, head: LinearHead, map_: Affine) -> bool:
    """Whether a bias is zero but for the rounding of its terms."""
    terms = np.linalg.norm(head.coef_, axis=1) * np.linalg.norm(map_.offset)
    return bool((np.abs(bias) <= _ROUNDING * (terms + np.abs(head.intercept_))).all())


def _parameter(values: Floats) -> torch.nn.Parameter:
    weights = torch.tensor(values, dtype=torch.float32)
    if not bool(weights.isfinite().all()):
        raise ValueError(
            f"the merged weights reach {np.abs(values).max():.3g}, beyond float32: raise the "
            f"adapter's shrinkage, or {_SERVE}"
        )
    return torch.nn.Parameter(weights, requires_grad=False)


def _copy_files(source: Path, target: Path, tokenizer: Any) -> None:
    """Copy what belongs to the tokenizer and to sentence-transformers."""
    own = set(tokenizer.vocab_files_names.values())  # such as bpe.codes, which few classes have
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source).as_posix()
        if path.is_file() and (name in own or _COPIED.fullmatch(name)):
            (target / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(path, target / name)
