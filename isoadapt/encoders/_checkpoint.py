"""load_checkpoint: a fine-tuned checkpoint as an encoder and a head."""

import os
from typing import Any

import torch
from numpy.typing import ArrayLike

from isoadapt._utils.state import own_state
from isoadapt.encoders._class_labels import checkpoint_head
from isoadapt.encoders._pooling import HEAD_INPUT, PoolingSetting
from isoadapt.encoders._transformer import TransformerEncoder
from isoadapt.heads import LinearHead


@own_state(models=True)
def load_checkpoint(
    path: str | os.PathLike[str] | tuple[Any, Any],
    *,
    pooling: PoolingSetting = HEAD_INPUT,
    max_length: int | None = None,
    batch_tokens: int = 2048,
    device: str | torch.device = "auto",
    dtype: str = "auto",
    revision: str | None = None,
    trust_remote_code: bool = False,
    verbose: int = 0,
    y: "ArrayLike | None" = None,
) -> tuple[TransformerEncoder, LinearHead]:
    """Split a fine-tuned model for sequence classification into encoder and head.

    The head is the last linear layer of the model, and the embedding is the input of this layer.
    ``head.decision_function(encoder.transform(texts))`` therefore gives the model's own logits, or
    their difference if there are two classes. This is checked on one sentence.

    Parameters
    ----------
    path : str, path-like or tuple
        Folder, name on the Hugging Face Hub, or live ``(model, tokenizer)``. A PEFT folder
        (``adapter_config.json`` and ``adapter_model.safetensors``) is merged into its base model,
        which needs ``pip install "isoadapt[peft]"``.
    pooling : {"head_input", "readout"} or list, default="head_input"
        Pooling of the encoder, see :class:`TransformerEncoder`. Its first columns must be the
        input of the head. "readout" and lists add hidden states of the same pass.
    max_length, batch_tokens, device, dtype, revision, trust_remote_code, verbose : object
        Parameters of the encoder, see :class:`TransformerEncoder`.
    y : array-like of shape (n_samples,), default=None
        Labels that the head will be used with, which decide whether its classes are names or ids,
        see :doc:`/guide/heads`.

    Returns
    -------
    encoder : TransformerEncoder
        Encoder that maps texts to embeddings of shape (n, d) or, with more poolings, wider ones.
    head : LinearHead
        Head in float64 for the first d = ``head.n_features_in_`` columns. Its classes are the names
        in ``id2label``, or else the ids 0, 1, …. A model with one output, or one that
        was fine-tuned for regression, gives a regressor. A CrossEncoder of sentence-transformers
        whose one output w, b goes through a sigmoid gives a classifier of 0 and 1 with the rows
        -w/2 and w/2. A model with ``problem_type="multi_label_classification"`` gives a multi-label
        head, whose columns are in the order of the ids.

    Raises
    ------
    OSError
        If the checkpoint is not found, is incomplete or damaged.
    ValueError
        If the checkpoint has no linear classifier head of its own, if the head does not reproduce
        the model's logits, if `pooling` does not begin with the head's input, or if the labels in
        `y` are neither names nor ids of the classes, or may be either.

    Notes
    -----
    A head sorts its rows by label: its outputs are the model's logits in the order of ``classes_``,
    which differs from that of the ids if the names are not sorted.

    Examples
    --------
    >>> from isoadapt.encoders import load_checkpoint
    >>> encoder, head = load_checkpoint("path/to/checkpoint")  # doctest: +SKIP
    >>> head.predict(encoder.transform(["One text.", "Another."]))  # doctest: +SKIP
    array([1, 0])
    """
    encoder = TransformerEncoder(
        path,
        pooling=pooling,
        max_length=max_length,
        batch_tokens=batch_tokens,
        device=device,
        dtype=dtype,
        revision=revision,
        trust_remote_code=trust_remote_code,
        verbose=verbose,
    )
    head = checkpoint_head(encoder, y)
    if head is None:
        raise ValueError(
            f"pooling={pooling!r} does not begin with the input of a classifier head of "
            f"model={path!r}; choose 'head_input' or 'readout', or use TransformerEncoder"
        )
    return encoder, head
