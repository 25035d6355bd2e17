"""Splitting a fine-tuned checkpoint into encoder and head."""

import os
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from isoadapt.encoders._backbone import Backbone
from isoadapt.encoders._batching import tokenize
from isoadapt.encoders._network import eval_copy
from isoadapt.encoders._pooling import HEAD_INPUT
from isoadapt.encoders._texts import Texts
from isoadapt.encoders._transformer import TransformerEncoder
from isoadapt.heads import LinearHead, MultiLabelHead

_PROBE = Texts(["A short sentence to probe the model."])


def load_checkpoint(
    path: str | os.PathLike[str] | tuple[Any, Any],
    *,
    max_length: int | None = None,
    batch_tokens: int = 2048,
    device: str | torch.device = "auto",
    dtype: str = "auto",
    revision: str | None = None,
    trust_remote_code: bool = False,
    verbose: int = 0,
) -> tuple[TransformerEncoder, LinearHead]:
    """Split a fine-tuned model for sequence classification into encoder and head.

    The head is the last linear layer, the embedding what enters it:
    ``head.decision_function(encoder.transform(texts))`` are the model's own logits (for two
    classes their difference). That is checked once, on one sentence.

    Parameters
    ----------
    path : str, path-like or tuple
        Folder, name on the Hugging Face Hub, or live ``(model, tokenizer)``. A folder of PEFT
        (``adapter_config.json`` and ``adapter_model.safetensors``) is merged into its base model,
        which needs ``pip install "isoadapt[peft]"``.
    max_length : int, default=None
        Tokens an input is truncated to; None: as many as tokenizer and model are made for.
    batch_tokens : int, default=2048
        Tokens in a batch, padding included.
    device : str or torch.device, default="auto"
        Where to compute.
    dtype : {"auto", "float32", "bfloat16", "float16"}, default="auto"
        Type to compute in; "auto" is "float32".
    revision : str, default=None
        Branch, tag or commit on the Hub.
    trust_remote_code : bool, default=False
        Whether code that comes with the checkpoint may run.
    verbose : int, default=0
        Above 0, the encoder shows a progress bar.

    Returns
    -------
    encoder : TransformerEncoder
        Texts to embeddings of shape (n, d).
    head : LinearHead
        In float64, d = ``head.n_features_in_``. Its classes are the label ids 0, 1, …; a model
        with one output, or one fine-tuned for regression, gives a regressor. A model with
        ``problem_type="multi_label_classification"`` gives a
        :class:`~isoadapt.heads.MultiLabelHead`: its weights serve adapters that need no labels,
        but it does not predict.

    Raises
    ------
    OSError
        If the checkpoint cannot be had, is incomplete or damaged.
    ValueError
        If the checkpoint has no linear classifier head of its own, or if it does not reproduce
        the model's logits.

    Notes
    -----
    Label ids are integers, as in the fine-tuning data; names where
    :func:`isoadapt.finetune.finetune_text_classifier` was given names. Else build a head:
    ``LinearHead(head.coef_, head.intercept_, classes=["bad", "good"])``. A head sorts its rows by
    label: where the names in ``id2label`` are not sorted, its outputs are the model's logits in
    another order, that of ``head.classes_``.

    Examples
    --------
    >>> from isoadapt.encoders import load_checkpoint
    >>> encoder, head = load_checkpoint("path/to/checkpoint")  # doctest: +SKIP
    >>> head.predict(encoder.transform(["One text.", "Another."]))  # doctest: +SKIP
    array([1, 0])
    """
    encoder = TransformerEncoder(
        path,
        pooling=HEAD_INPUT,
        max_length=max_length,
        batch_tokens=batch_tokens,
        device=device,
        dtype=dtype,
        revision=revision,
        trust_remote_code=trust_remote_code,
        verbose=verbose,
    )
    return encoder, read_head(encoder)


def read_head(encoder: TransformerEncoder) -> LinearHead:
    """Give the classifier head of an encoder's model.

    Parameters
    ----------
    encoder : TransformerEncoder
        Any encoder of a model for sequence classification; its pooling does not matter.

    Returns
    -------
    LinearHead
        The head, in float64.

    Raises
    ------
    ValueError
        As for :func:`load_checkpoint`.
    """
    encoder._validate_params()
    backbone = encoder._backbone()
    head, config = backbone.head, backbone.model.config
    if head is None:
        raise ValueError(
            f"model={encoder.model!r} has no classifier head ({type(backbone.model).__name__}); "
            "pass a model for sequence classification"
        )
    _check_logits(backbone, head, encoder.model)
    weights = head.state_dict()  # with the scale of add_isobn in it, where there is one
    coef = _float64(weights["weight"])
    intercept = _float64(weights["bias"]) if "bias" in weights else np.zeros(len(coef))
    if config.problem_type == "multi_label_classification":
        return MultiLabelHead(coef, intercept)
    regression = config.problem_type == "regression" or config.num_labels == 1
    classes: Any = np.arange(config.num_labels)
    if getattr(config, "isoadapt_label_names", False):  # fine-tuned here, on labels that are names
        classes = [config.id2label[label] for label in range(config.num_labels)]
    return LinearHead(coef, intercept, None if regression else classes)


def _float64(weights: Tensor) -> NDArray[np.float64]:
    return weights.detach().cpu().double().numpy()


@torch.inference_mode()
def _check_logits(backbone: Backbone, head: nn.Linear, model: Any) -> None:
    """Check that the head over the embedding gives the model's own logits."""
    tokens = tokenize(
        backbone.tokenizer,
        _PROBE,
        max_length=backbone.default_length,
        names=backbone.inputs,
        counts_positions=backbone.limit is not None,
    )
    batch = tokens.batch(0, 1).items()
    inputs = {name: x.to(backbone.model.device) for name, x in batch if name in backbone.inputs}
    logits = eval_copy(backbone.model)(**inputs).logits.float()
    embedding = backbone.headless(**inputs).logits
    error = float("inf")
    if embedding.shape == (1, head.in_features):
        error = float((head(embedding).float() - logits).abs().max())
    tolerance = 1e-4 if backbone.model.dtype == torch.float32 else 2e-2
    if not error <= tolerance * max(1.0, float(logits.abs().max())):
        raise ValueError(
            f"model={model!r} cannot be split: its last linear layer does not give the logits of "
            f"{type(backbone.model).__name__} (difference {error:.3g}); pass a model whose logits "
            "are linear in what enters its head"
        )


def encoder_head(encoder: TransformerEncoder) -> LinearHead | None:
    """Give the head that reads an encoder's embeddings, if its checkpoint has one.

    Parameters
    ----------
    encoder : TransformerEncoder
        Any encoder.

    Returns
    -------
    LinearHead or None
        None where the checkpoint has no classifier head, or the pooling is another.

    Raises
    ------
    ValueError
        As for :func:`load_checkpoint`, if there is a head but not a usable one.
    """
    encoder._validate_params()
    reads_embeddings = encoder._pooling(encoder._backbone()).modes == (HEAD_INPUT,)
    return read_head(encoder) if reads_embeddings else None
