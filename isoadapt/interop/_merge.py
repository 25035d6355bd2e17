"""Merging of an affine adapter into the classifier of a checkpoint."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from isoadapt._utils.files import CHECKPOINT, atomic_folder, check_output_folder
from isoadapt._utils.state import own_state
from isoadapt.encoders._kinds import holds_classifier
from isoadapt.encoders._models import quiet
from isoadapt.encoders._pooling import HEAD_INPUT
from isoadapt.interop._loaders import CLASSIFIER, check_written, own_length
from isoadapt.interop._served import Served, checkpoint, is_unchanged
from isoadapt.interop._written import write_checkpoint


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
    ``AutoModelForSequenceClassification.from_pretrained``. It gives the logits of encoder, adapter
    and head at the cost of the original model. It is written in float32. Tokenizer and
    sentence-transformers files are copied unchanged. With the texts and logits in
    ``reference.json``, ``isoadapt check`` compares the copy where it is deployed. The copy holds no
    adapted vectors: an adapter that leaves the logits as they are, such as
    :class:`~isoadapt.LogitPreservingWhitening`, is refused, because its merge would repair nothing.

    The adapter must have been fitted to the input of the checkpoint's head. This is checked for a
    pipeline that begins with an encoder, and for a saved adapter that records its encoder, by their
    vectors of a few texts: a copy of the checkpoint counts as the same, and so do vectors of
    another data type.

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
        The folder to write, which is returned. It appears only when it is complete.
    overwrite : bool, default=False
        Whether to replace a checkpoint in `out_folder` that isoadapt wrote. A folder that holds any
        other file or folder is never replaced.

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
        there is :func:`~isoadapt.interop.to_sentence_transformer`. If an adapter is not affine or
        was fitted to other vectors than the head's input, if the two heads have different classes,
        if a bias is needed but the architecture has none, or if the copy gives another prediction
        for a checked text.
    OSError
        If the checkpoint of a pipeline's encoder cannot be loaded.

    Notes
    -----
    The head of a decoder such as GPT-2 has no bias. Only adapters that do not need a bias can be
    merged into it, such as :class:`~isoadapt.IsoBN` without a head of its own. For an empty text
    and a tokenizer without a token for it, see :doc:`/guide/sentence_transformers`.

    The copy computes WAh in single precision, adapters in double precision. If an adapter amplifies
    directions of low variance, as whitening without shrinkage does, logits can therefore differ by
    more than rounding.

    Examples
    --------
    >>> from isoadapt.interop import merge_into_checkpoint
    >>> merge_into_checkpoint(adapter, "my-model", "my-model-merged")  # doctest: +SKIP
    >>> AutoModelForSequenceClassification.from_pretrained("my-model-merged")  # doctest: +SKIP
    """
    source = checkpoint(model_folder)
    target = check_output_folder(out_folder, overwrite, name="out_folder", model=source)
    if not holds_classifier(source):
        raise ValueError(
            f"model_folder={str(model_folder)!r} has no classifier to merge into: it was not saved "
            "from a model for sequence classification. isoadapt.interop.to_sentence_transformer "
            "writes the adapter behind an encoder without a classifier"
        )
    served = Served.of(adapter, source, HEAD_INPUT)
    map_, backbone = served.map_, served.opened.backbone
    logits = served.logits(served.parts.last_head() or served.head)
    if is_unchanged(logits, served.own_logits(map_.matrix.shape[1])):
        raise ValueError(
            f"{type(served.parts.adapters[-1][1]).__name__} leaves the logits of the checkpoint as "
            "they are, so a merge would write the old weights and repair nothing. What it repairs "
            "are the vectors: isoadapt.interop.to_sentence_transformer, or export_onnx, writes "
            "them beside the same classifier (on the command line, isoadapt export without --merge)"
        )
    # transformers truncates to the tokenizer's length, whatever a CrossEncoder's settings say.
    length, limit = own_length(backbone.tokenizer), backbone.limit
    exact = served.exact.truncated(length and min(length, limit or length))
    reference = replace(served, exact=exact).reference()
    network = served.network(logits)
    kept = slice(None) if length == exact.settings["max_length"] else slice(-1)  # not the longest
    merged = reference.adapted(map_)._replace(
        texts=reference.texts[kept],
        vectors=None,
        logits=logits(reference.vectors)[kept],
        settings={"max_length": length},
        loaders=[CLASSIFIER],
    )
    with quiet(), atomic_folder(target, overwrite, CHECKPOINT) as written:
        code = write_checkpoint(written, served, network, {}, sentence=True)
        check_written(written, merged, code)
    return target
