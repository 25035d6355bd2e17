"""Merging of an affine adapter into a checkpoint, and what exports into checkpoints share."""

import copy
import os
import re
import shutil
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from isoadapt._utils.files import CHECKPOINT, TOKENIZER_FILES, atomic_folder, check_output_folder
from isoadapt._utils.messages import warn
from isoadapt._utils.state import own_state
from isoadapt.adapters import Affine
from isoadapt.encoders import TransformerEncoder
from isoadapt.encoders._backbone import Backbone, eval_copy
from isoadapt.encoders._class_labels import class_labels
from isoadapt.encoders._classifier_head import applies_sigmoid, read_head
from isoadapt.encoders._folder import base_folder, read_object, tokenizer_folder, transformer_folder
from isoadapt.encoders._kinds import holds_classifier
from isoadapt.encoders._models import quiet
from isoadapt.encoders._opened import Opened
from isoadapt.heads import LinearHead
from isoadapt.interop._loaders import CLASSIFIER, check_written, own_length
from isoadapt.interop._pipeline import Parts, take_apart
from isoadapt.interop._reference import SERVE, Reference, check_vectors, encoder_reference
from isoadapt.interop._sentence_files import write_json

_SENTENCE = re.compile(
    r"(modules|sentence_[\w-]+_config|config_sentence_transformers)\.json"
    r"|\d+_\w+/(config\.json|model\.safetensors)"
)
_SAME = 1e-7  # relative difference of logits up to which they are the same


@own_state(models=True)
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
    ``reference.json``, ``isoadapt check`` compares the copy where it is deployed. The copy holds no
    adapted vectors: an adapter that leaves the logits as they are, such as
    :class:`~isoadapt.LogitPreservingWhitening`, is refused, because its merge would repair nothing.

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
        with its transformer in a subfolder, only this transformer is copied. Its own code may run,
        and is copied, if the pipeline's encoder has ``trust_remote_code=True``.
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
        If `model_folder` has no classifier, or the adapter leaves its logits as they are, for which
        there is :func:`~isoadapt.interop.to_sentence_transformer`. If an adapter is not affine, if
        it was fitted to other vectors than those that enter the head of the checkpoint, if the two
        heads have different classes, if a bias is needed but the architecture has none, or if the
        copy gives another prediction for a checked text.
    OSError
        If the checkpoint of a pipeline's encoder cannot be loaded.

    Notes
    -----
    The head of a decoder such as GPT-2 has no bias. Only adapters that do not need a bias can be
    merged into it, such as :class:`~isoadapt.IsoBN` without a head of its own. If its tokenizer has
    no token for an empty text, write the special one that `stand_in` in ``reference.json`` names.

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
    map_ = parts.affine()
    source, target = check_folders(model_folder, out_folder, overwrite)
    if not holds_classifier(source):
        raise ValueError(
            f"model_folder={str(model_folder)!r} has no classifier to merge into: it was not saved "
            "from a model for sequence classification. isoadapt.interop.to_sentence_transformer "
            "writes the adapter behind an encoder without a classifier"
        )
    trusted = parts.trust_remote_code
    encoder = TransformerEncoder(
        source, pooling="head_input", device="cpu", trust_remote_code=trusted
    )
    model = encoder.open()
    tokenizer = model.backbone.tokenizer
    logits = logits_map(parts, model)
    if is_unchanged(logits, own_logits(model, map_.matrix.shape[1])):
        raise ValueError(
            f"{type(parts.adapters[-1][1]).__name__} leaves the logits of the checkpoint as they "
            "are, so a merge would write the old weights and repair nothing. What it repairs are "
            "the vectors: isoadapt.interop.to_sentence_transformer, or export_onnx, writes them "
            "beside the same classifier (on the command line, isoadapt export without --merge)"
        )
    check_source(parts, encoder)
    network = with_head(model.backbone, logits)
    # transformers truncates to the tokenizer's length, whatever a CrossEncoder's settings say.
    length, limit = own_length(tokenizer), model.backbone.limit
    encoder.set_params(max_length=length and min(length, limit or length))
    reference = encoder_reference(encoder)
    kept = slice(None) if length == encoder.open().length() else slice(-1)  # not the longest text
    merged = Reference(
        reference.texts[kept],
        None,
        logits(reference.vectors)[kept],
        reference.adapted(map_).limit,
        {"max_length": length},
        [CLASSIFIER],
        stand_in=reference.stand_in,
    )
    with quiet(), atomic_folder(target, overwrite, CHECKPOINT) as written:
        network.save_pretrained(written)
        copy_files(tokenizer_folder(source), written, tokenizer, sentence=True)
        code = copy_code(source, written, trusted)
        check_written(written, merged, code)
    return target


def check_folders(
    model_folder: str | os.PathLike[str], out_folder: str | os.PathLike[str], overwrite: bool
) -> tuple[Path, Path]:
    """Return the checkpoint's folder and the folder to write, after checking both."""
    if not isinstance(model_folder, str | os.PathLike):
        raise TypeError(
            f"model_folder is a {type(model_folder).__name__}, but must be a folder: write a live "
            "model and its tokenizer by save_pretrained first"
        )
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
    if parts.encoder is not None:
        try:
            reference = encoder_reference(parts.encoder[1])
        except OSError as error:
            raise OSError(
                f"the pipeline's encoder cannot be loaded, so it cannot be checked that its "
                f"vectors are those of model_folder ({error}); if its folder was moved, set the "
                "new one with set_params(model=...) of the encoder, or pass the adapter alone"
            ) from error
        shown = parts.encoder[1].open().backbone.shown
        check_vectors(reference, f"the encoder with {shown}", encoder)
    if parts.recorded is not None:
        name = f"the record of the saved {type(parts.first()).__name__}"
        check_vectors(parts.recorded, name, encoder)


def reordered(head: LinearHead, own: LinearHead, config: Any) -> LinearHead:
    """Return a head without classes whose outputs are in the order of the checkpoint's labels."""
    kinds = {(each.classes_ is None, each.multi_label_, len(each.coef_)) for each in (head, own)}
    if head.classes_ is None and len(kinds) == 1:
        return head
    given, kept = (_by_id(each, config) for each in (head, own))
    if len(kinds) == 2 or given is None or kept is None:
        raise ValueError(
            f"the adapter's head is {head!r}, the checkpoint's {own!r}: both must predict the same "
            "classes, or as many values. Fit the adapter with the checkpoint's head or without one"
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


def _by_id(head: LinearHead, config: Any) -> LinearHead | None:
    """Return a classifier's outputs in the order of the checkpoint's ids, if it has its labels."""
    classes = [] if head.classes_ is None else head.classes_.tolist()
    labels = class_labels(config, len(classes), classes)
    if not classes or {*labels} != {*classes}:
        return None
    order = [classes.index(label) for label in labels]
    return LinearHead(head.coef_[order], head.intercept_[order])


def logits_map(parts: Parts, model: Opened) -> Affine:
    """Return the map from vectors that begin with the head's input to the checkpoint's logits."""
    own, head, read = read_head(model.backbone), parts.last_head(), parts.read_by_head()
    head = reordered(own if head is None else head, own, model.backbone.model.config)
    if read.n_features_out != head.n_features_in_:
        raise ValueError(
            f"the adapter maps {read.matrix.shape[1]} features to {read.n_features_out}, but the "
            f"head takes {head.n_features_in_}: fit the adapter to the input of the checkpoint's "
            "head, and with a head of its own if it reduces the width"
        )
    return Affine(head.coef_, head.intercept_).after(read)


def own_logits(model: Opened, width: int) -> Affine:
    """Return the checkpoint's logits as a map of vectors of a width that begin with their input."""
    own = read_head(model.backbone)
    head, d = reordered(own, own, model.backbone.model.config), own.n_features_in_
    return Affine(head.coef_, head.intercept_).after(Affine(np.eye(d, width), np.zeros(d)))


def is_unchanged(logits: Affine, own: Affine) -> bool:
    """Return whether logits are those of the checkpoint's own head, but for rounding."""
    differences = [np.abs(new - old).max() for new, old in zip(logits, own, strict=True)]
    return bool(max(differences) <= _SAME * max(np.abs(each).max() for each in own))


def with_head(backbone: Backbone, logits: Affine) -> Any:
    """Return a shallow copy of the model with the logits of a map of the head's input."""
    old, new = cast(torch.nn.Linear, backbone.head), as_linear(logits)
    if old.bias is None:
        new.bias = None
    if old.bias is None and not np.allclose(logits.offset, 0):
        raise ValueError(
            f"the head of {type(backbone.model).__name__} has no bias, but this adapter needs one "
            f"(largest entry {np.abs(logits.offset).max():.3g}): export an adapter that leaves the "
            f"logits as they are, such as LogitPreservingWhitening; or {SERVE}"
        )
    return copied(backbone, {old: new})


def copied(backbone: Backbone, replace: dict[torch.nn.Module, torch.nn.Module]) -> Any:
    """Return a shallow copy of a model with a configuration of its own, which records a sigmoid."""
    network = eval_copy(backbone.model, replace)
    config = network.config = copy.deepcopy(network.config)  # save_pretrained changes it
    if config.num_labels == 1 and applies_sigmoid(backbone):
        config.sentence_transformers = {"activation_fn": "torch.nn.modules.activation.Sigmoid"}
    return network


def as_linear(map_: Affine) -> torch.nn.Linear:
    """Return an affine map as a layer in float32."""
    layer = torch.nn.Linear(map_.matrix.shape[1], map_.n_features_out, device="meta")
    for name, values in (("weight", map_.matrix), ("bias", map_.offset)):
        tensor = torch.tensor(values, dtype=torch.float32)
        setattr(layer, name, torch.nn.Parameter(tensor, requires_grad=False))
    return layer


def copy_files(source: Path, target: Path, tokenizer: Any, *, sentence: bool) -> None:
    """Copy the files of the tokenizer and, if wanted, those of sentence-transformers."""
    own = set(tokenizer.vocab_files_names.values())  # may include rarer names
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source).as_posix()
        copied = name in own or TOKENIZER_FILES.fullmatch(name)
        if path.is_file() and (copied or (sentence and _SENTENCE.fullmatch(name))):
            (target / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(path, target / name)


def copy_code(source: Path, target: Path, trusted: bool) -> bool:
    """Copy the code that a written checkpoint names; return whether it names any that may run.

    Code that may not run is not named either, since the folder is checked without it.
    """
    files = (target / "config.json", target / "tokenizer_config.json")
    named = [file for file in files if "auto_map" in read_object(file)]
    if not trusted:
        for file in named:
            write_json(file, {k: v for k, v in read_object(file).items() if k != "auto_map"})
        return False
    for folder in (transformer_folder(base_folder(source) or source), tokenizer_folder(source)):
        for code in folder.glob("*.py") if named else ():
            shutil.copyfile(code, target / code.name)
    return bool(named)
