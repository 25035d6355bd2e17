"""Export of an adapter and its encoder as one folder for transformers and sentence-transformers."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from torch import nn

from isoadapt._utils.files import CHECKPOINT, atomic_folder, check_output_folder
from isoadapt._utils.imports import import_optional
from isoadapt._utils.state import own_state
from isoadapt.encoders._classifier_head import head_path
from isoadapt.encoders._kinds import encoder_class
from isoadapt.encoders._models import quiet
from isoadapt.encoders._opened import Opened
from isoadapt.encoders._pooling import HEAD_INPUT, Normalize
from isoadapt.interop._card import sentence_card
from isoadapt.interop._loaders import CLASSIFIER, SENTENCES, check_written
from isoadapt.interop._reference import SERVE
from isoadapt.interop._served import Served, as_linear
from isoadapt.interop._written import Module, pooling_modules, write_checkpoint, write_sentence


@own_state(models=True)
def to_sentence_transformer(
    adapter: Any,
    model_folder: str | os.PathLike[str],
    out_folder: str | os.PathLike[str],
    *,
    normalize: bool = False,
    overwrite: bool = False,
) -> Path:
    """Write an affine adapter and its encoder as a sentence-transformers model.

    ``SentenceTransformer(out_folder)`` gives the adapted vectors. If the checkpoint is a
    classifier, the folder is also one for ``AutoModelForSequenceClassification`` and
    ``pipeline("text-classification")``, over the same copy of the transformer's weights. Neither
    needs isoadapt. The folder is loaded and compared with encoder and adapter before it appears.
    With the texts and outputs in ``reference.json``, ``isoadapt check`` repeats this elsewhere.

    The modules are Transformer, Pooling, a Dense with its activation (and a LayerNorm) for each
    layer in front of the classifier if the adapter reads the classifier's input, a Dense for the
    adapter z = Ah + c, and Normalize on request. If the adapter reads other hidden layers, the
    classifier's input beside others, or layers of a teacher, the module is one short file of code,
    which runs with ``SentenceTransformer(out_folder, trust_remote_code=True)``, and
    ``encode(texts, output_value=None)`` then gives vectors and logits of one pass.

    Parameters
    ----------
    adapter : adapter, Pipeline or AdaptedEncoder
        A fitted affine adapter, a pipeline of such adapters, or a fitted
        :class:`~isoadapt.AdaptedEncoder`. A pipeline may begin with a
        :class:`~isoadapt.TransformerEncoder`, whose pooling and maximum length are used, and may
        end with a linear model. Without an encoder, a saved adapter's record of them is used or,
        if there is none, ``TransformerEncoder(model_folder)``, and a warning says so: the adapter
        itself knows only the width of the vectors.
    model_folder : str or path-like
        The checkpoint of a classifier or of an encoder, or a sentence-transformers folder that
        :class:`~isoadapt.TransformerEncoder` reads. A PEFT adapter is merged into its base model.
        Its own code may run, and is copied, if the encoder has ``trust_remote_code=True``.
    out_folder : str or path-like
        The folder to write, which is returned. It appears only when it is complete.
    normalize : bool, default=False
        Whether to scale the adapted vectors to unit length. Cosines do not depend on it.
    overwrite : bool, default=False
        Whether to replace a checkpoint in `out_folder` that isoadapt wrote. A folder that holds any
        other file or folder is never replaced.

    Raises
    ------
    ImportError
        If sentence-transformers is not installed or, for a file of code, older than 6.0.
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
        If an adapter is not affine or was fitted to other vectors, if sentence-transformers cannot
        compute them, if the head does not fit the classifier, or if the written folder gives
        another prediction or nearest neighbour for a checked text, or a cosine or relative logit
        that differs by more than 0.01.
    OSError
        If the checkpoint of a pipeline's encoder cannot be loaded.

    Warns
    -----
    UserWarning
        If the pooling is assumed, because there is neither an encoder nor a record, and the head is
        not the checkpoint's. If vectors or logits of the folder differ by more than the rounding of
        float32, which the adapter amplifies; the card holds the figures.

    See Also
    --------
    export_onnx : Write one graph with vectors and logits, which needs no torch.
    merge_into_checkpoint : Write an adapter that changes predictions into the classifier alone.

    Notes
    -----
    The classifier stays as it is, unless the adapter's head reads its input and the adapter changes
    its logits. Then the adapter is merged into it, as by
    :func:`~isoadapt.interop.merge_into_checkpoint`.

    The folder is written in float32. If `model_folder` was saved in half precision, transformers
    computes its logits in half precision by default, and these differ slightly.

    SentenceTransformer and tokenizer get the maximum length of the encoder, so that a pipeline with
    ``truncation=True`` reads the same tokens. A decoder whose tokenizer has no padding token gets
    one, because batches need it.

    For an empty text and a tokenizer that has no token for it, see
    :doc:`/guide/sentence_transformers`.

    Examples
    --------
    >>> from isoadapt.interop import to_sentence_transformer
    >>> to_sentence_transformer(adapter, "my-classifier", "my-model")  # doctest: +SKIP
    >>> SentenceTransformer("my-model").encode(["One text."])  # doctest: +SKIP
    >>> pipeline("text-classification", "my-model")("One text.")  # doctest: +SKIP
    """
    served = Served.of(adapter, model_folder)
    return write_sentence_folder(served, out_folder, normalize=normalize, overwrite=overwrite)


def write_sentence_folder(
    served: Served, out_folder: str | os.PathLike[str], *, normalize: bool, overwrite: bool
) -> Path:
    """Write a folder for sentence-transformers and, of a classifier, for transformers."""
    found = import_optional("sentence_transformers", feature="to_sentence_transformer", extra="st")
    opened, folder = served.opened, cast(Path, served.folder)
    target = check_output_folder(out_folder, overwrite, name="out_folder", model=folder)
    readout = not computes(opened)
    if readout and int(found.__version__.partition(".")[0]) < 6:
        raise ImportError(
            f"the vectors of {opened.describe()} need a folder with code, which runs unasked in "
            f"sentence-transformers {found.__version__}: install 6.0 or later, or write one graph "
            "with isoadapt.interop.export_onnx (isoadapt export --onnx)"
        )
    source = served.reference()
    modules = [] if readout else _modules(opened, as_linear(served.map_), normalize)
    network, logits, kept = served.classifier(source)
    changes = _padding(opened, network.config)
    with quiet(), atomic_folder(target, overwrite, CHECKPOINT) as written:
        code = write_checkpoint(written, served, network, changes)
        write_sentence(written, modules, served, source, normalize)
        loaders = [SENTENCES] if logits is None else [SENTENCES, CLASSIFIER]
        reference = source.adapted(served.map_, normalize)
        reference = reference._replace(logits=logits, loaders=loaders, padded=True)
        check = check_written(written, reference, code)
        card = sentence_card(served, target.name, reference, modules, check, kept, code)
        (written / "README.md").write_text(card, "utf-8")
    return target


def computes(model: Opened) -> bool:
    """Return whether sentence-transformers can compute the vectors, which are of the last layer."""
    pooling, last = model.pooling, (-1, model.backbone.n_layers)
    apart = all(mode != HEAD_INPUT and layer in last for mode, layer in pooling.parts)
    return pooling.is_head_input or apart


def _modules(model: Opened, adapter: nn.Linear, normalize: bool) -> list[Module]:
    """Return the modules that follow the transformer."""
    backbone, pooling = model.backbone, model.pooling
    width, config = backbone.hidden_size, backbone.model.config
    reads_encoder = bool(encoder_class(config.model_type)) or not config.is_encoder_decoder
    other = "fit the adapter to vectors with pooling='mean', or " if reads_encoder else ""
    try:
        if config.is_encoder_decoder and (pooling.is_head_input or not reads_encoder):
            raise ValueError("the decoder follows the encoder")
        if pooling.is_head_input:
            pooling, width = head_path(backbone)
        adapt = nn.Identity(), adapter, nn.Identity(), *[Normalize()] * normalize
        return list(pooling_modules(replace(pooling, steps=(*pooling.steps, *adapt)), width))
    except ValueError as error:
        raise ValueError(
            f"sentence-transformers cannot compute the {model.describe()} of "
            f"{type(backbone.model).__name__}: {error}; {other}{SERVE}"
        ) from error


def _padding(model: Opened, config: Any) -> dict[str, Any]:
    """Return settings of the tokenizer for length and padding; `config` gets a padding token."""
    backbone, max_length = model.backbone, model.length()
    tokenizer = backbone.tokenizer
    changes: dict[str, Any] = {} if max_length is None else {"model_max_length": max_length}
    if tokenizer.pad_token is None:
        numbers = (config.pad_token_id, tokenizer.eos_token_id, 0)
        number = next(number for number in numbers if number is not None)
        changes["pad_token"] = tokenizer.convert_ids_to_tokens(number)
    if backbone.limit is not None:  # padding on the left would shift the learned positions
        changes["padding_side"] = "right"
    if config.pad_token_id is None:
        token = changes.get("pad_token", tokenizer.pad_token)
        config.pad_token_id = tokenizer.convert_tokens_to_ids(token)
    return changes
