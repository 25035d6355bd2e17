"""Merging of an affine adapter into the classifier of a checkpoint."""

import os
from pathlib import Path
from typing import Any

from isoadapt._utils.folders import CHECKPOINT, atomic_folder
from isoadapt.adapters._maps import compose
from isoadapt.encoders import TransformerEncoder
from isoadapt.encoders._checkpoint import read_head
from isoadapt.encoders._models import names_classifier, quiet, tokenizer_folder
from isoadapt.encoders._vectors import HEAD_VECTORS
from isoadapt.interop._checkpoint import (
    affine,
    check_folders,
    check_kinds,
    check_vectors,
    check_widths,
    copy_files,
    reordered,
    sources,
    with_head,
)
from isoadapt.interop._pipeline import take_apart


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
    sentence-transformers files are copied unchanged.

    The adapter must have been fitted to the vectors that enter the last layer of the classifier
    of this checkpoint. This is checked for a pipeline that begins with an encoder, and for a
    saved adapter that records its encoder. It cannot be checked for other adapters.

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
        Whether to replace a checkpoint in `out_folder` that was written by isoadapt or
        ``save_pretrained``. A folder that holds any other file, or a file that was changed after
        isoadapt wrote it, is never replaced.

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
        architecture has none. If a file that would be copied is a link to a file outside
        `model_folder`, other than the links in the cache of the Hugging Face Hub.
    OSError
        If the checkpoint of a pipeline's encoder cannot be loaded.

    Notes
    -----
    A checkpoint is identified by the weights before its last layer and by its tokenizer, so that
    a copy or a renamed folder counts as the same checkpoint. Vectors computed in float16 or
    bfloat16, or by ONNX Runtime in float32, are accepted, since they differ only by rounding.
    "int8" vectors are not accepted.

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
    map_, head = compose(affine(step) for _, step in parts.adapters), parts.last_head()
    source, target = check_folders(model_folder, out_folder, overwrite)
    if not names_classifier(source):
        raise ValueError(
            f"model_folder={str(model_folder)!r} has no classifier to merge into: it was not saved "
            "from a model for sequence classification. isoadapt.interop.to_sentence_transformer "
            "writes the adapter behind an encoder without a classifier"
        )
    encoder = TransformerEncoder(source, pooling="head_input", device="cpu")
    own = read_head(encoder)
    check_kinds(own if head is None else head, own)
    backbone = encoder._backbone()
    head = reordered(own if head is None else head, own, backbone.model.config)
    check_widths(map_, head, own)
    for vectors, name in sources(parts):
        check_vectors(vectors, name, backbone, HEAD_VECTORS, "the inputs of the last layer")
    network = with_head(backbone, head, map_)
    with quiet(), atomic_folder(target, overwrite, CHECKPOINT) as written:
        network.save_pretrained(written)
        copy_files(tokenizer_folder(source), written, backbone.tokenizer, sentence=True)
    return target
