"""TransformerEncoder: a frozen transformer as a scikit-learn transformer."""

import os
import pickle
import sys
from numbers import Integral
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    _fit_context,
)
from sklearn.utils import Tags
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor

from isoadapt._torch import resolve_device
from isoadapt.encoders._batching import run_batches, tokenize
from isoadapt.encoders._models import Backbone, live_backbone, stored_backbone
from isoadapt.encoders._pooling import HEAD_INPUT, Pooling, sentence_pooling
from isoadapt.encoders._texts import Texts, as_texts

_DTYPES = {
    "auto": torch.float32,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_CPU_TOKENS_PER_THREAD = 512


class TransformerEncoder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Embed texts, or pairs of texts, with a frozen transformer.

    Nothing is trained and ``fit`` may be skipped. The model is loaded on first use into a store
    that the whole process shares, so clones and grid candidates never load it twice; see
    :func:`isoadapt.encoders.release`. A checkpoint that changes on disk is loaded anew.

    Parameters
    ----------
    model : str, path-like or tuple
        A folder made by ``save_pretrained``, a name on the Hugging Face Hub, or a live
        ``(model, tokenizer)``. Only safetensors weights are read. A live model is shared by
        :func:`sklearn.base.clone`, never changed (not even its training mode), stays on its
        device in its dtype, and cannot be pickled.
    pooling : {"auto", "head_input", "cls", "mean", "max"}, default="auto"
        What the vector is. "head_input": what enters the last linear layer of the classifier
        head. "cls", "mean", "max": the first token's hidden state, or the mean or maximum over
        all tokens. "auto": "head_input" if the checkpoint has a classifier head, else what its
        sentence-transformers files say (modes, normalisation, length), else "mean".
    layer : int, default=-1
        The hidden state that "cls", "mean" and "max" read: 0 is what enters the first layer, -1
        the last one. "head_input" needs -1.
    max_length : int, default=None
        Tokens an input is truncated to, special tokens included. None: as many as both the
        tokenizer and the model are made for.
    batch_tokens : int, default=2048
        Tokens in a batch, padding included. Halved when the device runs out of memory. A CPU
        takes at most 512 a thread, for what does not stay in its caches is slower.
    device : str or torch.device, default="auto"
        "auto" is "cuda" where there is one, else "cpu".
    dtype : {"auto", "float32", "bfloat16", "float16"}, default="auto"
        Type to compute in; "auto" is "float32", for adapters amplify rounding.
    revision : str, default=None
        Branch, tag or commit on the Hub.
    trust_remote_code : bool, default=False
        Whether code that comes with the checkpoint may run.
    verbose : int, default=0
        Above 0, show a progress bar if the standard error stream is a terminal.

    Raises
    ------
    OSError
        On first use, if the checkpoint cannot be had, is incomplete or damaged.
    ValueError
        On first use, if weights are missing, or the parameters do not fit the model.

    Notes
    -----
    Inputs that occur more than once are encoded once. They are sorted by length and put into
    batches of `batch_tokens` tokens, so there is little padding.

    Examples
    --------
    >>> from isoadapt.encoders import TransformerEncoder
    >>> encoder = TransformerEncoder("path/to/model", pooling="mean", max_length=128)
    >>> encoder.transform(["One text.", "Another."])  # doctest: +SKIP
    array([[ 0.02, ...]], dtype=float32)
    """

    _parameter_constraints: dict[str, Any] = {  # noqa: RUF012 - scikit-learn's convention
        "model": "no_validation",
        "pooling": [StrOptions({"auto", HEAD_INPUT, "cls", "mean", "max"})],
        "layer": [Integral],
        "max_length": [Interval(Integral, 1, None, closed="left"), None],
        "batch_tokens": [Interval(Integral, 1, None, closed="left")],
        "device": [str, torch.device],
        "dtype": [StrOptions(set(_DTYPES))],
        "revision": [str, None],
        "trust_remote_code": ["boolean"],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        model: Any,
        *,
        pooling: str = "auto",
        layer: int = -1,
        max_length: int | None = None,
        batch_tokens: int = 2048,
        device: str | torch.device = "auto",
        dtype: str = "auto",
        revision: str | None = None,
        trust_remote_code: bool = False,
        verbose: int = 0,
    ) -> None:
        self.model = model
        self.pooling = pooling
        self.layer = layer
        self.max_length = max_length
        self.batch_tokens = batch_tokens
        self.device = device
        self.dtype = dtype
        self.revision = revision
        self.trust_remote_code = trust_remote_code
        self.verbose = verbose

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None) -> Self:
        """Check the texts; there is nothing to learn.

        Parameters
        ----------
        X : sequence of str or of pairs of str
            As for :meth:`transform`.
        y : object, default=None
            Ignored.

        Returns
        -------
        TransformerEncoder
            The encoder itself.
        """
        as_texts(X)
        return self

    def transform(self, X: Any) -> NDArray[np.float32]:
        """Embed texts.

        Parameters
        ----------
        X : sequence of str or of pairs of str
            List, tuple, 1-D array or Series of str; or pairs: list of 2-tuples, array of shape
            (n, 2) or two-column DataFrame.

        Returns
        -------
        ndarray of shape (n, d), float32
            One vector an input.

        Raises
        ------
        TypeError
            If `X` holds anything but texts or pairs of texts.
        ValueError
            If `X` is empty.
        """
        self._validate_params()
        texts, inverse = as_texts(X).unique()
        backbone = self._backbone()
        return self._encode(texts, backbone, self._pooling(backbone))[inverse]

    def _encode(self, texts: Texts, backbone: Backbone, pooling: Pooling) -> NDArray[np.float32]:
        from tqdm.auto import tqdm

        tokens = tokenize(
            backbone.tokenizer,
            texts.lower() if pooling.lowercase else texts,
            max_length=self._length(texts, backbone, pooling),
            names=backbone.inputs,
            counts_positions=backbone.limit is not None,
        )

        @torch.inference_mode()
        def embed(batch: dict[str, Tensor]) -> Tensor:
            batch = {name: values.to(backbone.model.device) for name, values in batch.items()}
            return _embed(backbone, pooling, self._layer(backbone), batch)

        vectors = np.empty((len(texts), _width(backbone, pooling)), dtype=np.float32)
        hidden = not (self.verbose and sys.stderr.isatty())
        with tqdm(total=len(texts), unit=" texts", desc="Encoding", disable=hidden) as bar:
            run_batches(
                tokens,
                embed,
                vectors,
                batch_tokens=_budget(self.batch_tokens, backbone.model.device),
                equal_lengths=_needs_equal_lengths(backbone, pooling),
                progress=bar.update,
            )
        return vectors

    def _backbone(self) -> Backbone:
        if isinstance(self.model, str | os.PathLike):
            return stored_backbone(
                self.model,
                head=self.pooling == HEAD_INPUT,
                revision=self.revision,
                dtype=_DTYPES[self.dtype],
                device=resolve_device(self.device),
                trust_remote_code=self.trust_remote_code,
            )
        return _live(self.model, self.device, self.dtype)

    def _pooling(self, backbone: Backbone) -> Pooling:
        if self.pooling in ("cls", "mean", "max"):
            return Pooling((self.pooling,))
        if backbone.head is not None:
            if self.layer != -1:
                raise ValueError(
                    f"layer={self.layer}: the input of the classifier head follows the last "
                    "layer; choose layer=-1, or pooling='cls', 'mean' or 'max'"
                )
            return Pooling((HEAD_INPUT,))
        if self.pooling == HEAD_INPUT:
            raise ValueError(
                f"pooling='head_input': {type(backbone.model).__name__} has no classifier head; "
                "pass a model for sequence classification, or choose 'cls', 'mean' or 'max'"
            )
        found = None if backbone.folder is None else sentence_pooling(backbone.folder)
        return Pooling(("mean",)) if found is None else found

    def _layer(self, backbone: Backbone) -> int:
        """Give the index of the hidden state, -1 for the last."""
        n = backbone.n_layers
        if not -n - 1 <= self.layer <= n:
            raise ValueError(
                f"layer={self.layer}: the model has {n} layers, so choose from 0 (what enters the "
                f"first) to {n}, or from -{n + 1} to -1"
            )
        return -1 if self.layer == n else self.layer

    def _length(self, texts: Texts, backbone: Backbone, pooling: Pooling) -> int | None:
        if self.max_length is None:
            lengths = (pooling.max_length, backbone.default_length)
            return min((length for length in lengths if length is not None), default=None)
        if backbone.limit is not None and self.max_length > backbone.limit:
            raise ValueError(
                f"max_length={self.max_length}, but the model has positions for {backbone.limit} "
                f"tokens; choose at most {backbone.limit}, or None"
            )
        special = backbone.tokenizer.num_special_tokens_to_add(pair=texts.second is not None)
        if self.max_length <= special:
            raise ValueError(
                f"max_length={self.max_length} leaves no room for text beside {special} special "
                f"tokens; choose {special + 1} or more"
            )
        return self.max_length

    @property
    def _n_features_out(self) -> int:
        backbone = self._backbone()
        return _width(backbone, self._pooling(backbone))

    def __sklearn_clone__(self) -> Self:
        new = type(self)(**self.get_params(deep=False))
        if hasattr(self, "_sklearn_output_config"):  # what set_output left
            new._sklearn_output_config = dict(self._sklearn_output_config)
        return new

    def __getstate__(self) -> dict[str, Any]:
        if not isinstance(self.model, str | os.PathLike):
            raise pickle.PicklingError(
                "a TransformerEncoder around a live model cannot be pickled; save the model and "
                "its tokenizer to a folder with save_pretrained and pass model=folder"
            )
        return super().__getstate__()

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        tags.transformer_tags.preserves_dtype = []
        tags.requires_fit = False
        return tags


def _embed(backbone: Backbone, pooling: Pooling, layer: int, batch: dict[str, Tensor]) -> Tensor:
    inputs = {name: values for name, values in batch.items() if name in backbone.inputs}
    if pooling.modes == (HEAD_INPUT,):
        return backbone.headless(**inputs).logits
    output = backbone.base(**inputs, output_hidden_states=layer != -1)
    hidden = output.last_hidden_state if layer == -1 else output.hidden_states[layer]
    return pooling(hidden.float(), batch["attention_mask"])


def _budget(batch_tokens: int, device: torch.device) -> int:
    if device.type != "cpu":
        return batch_tokens
    return min(batch_tokens, _CPU_TOKENS_PER_THREAD * torch.get_num_threads())


def _width(backbone: Backbone, pooling: Pooling) -> int:
    if backbone.head is not None and pooling.modes == (HEAD_INPUT,):
        return backbone.head.in_features
    return backbone.model.config.get_text_config().hidden_size * len(pooling.modes)


def _needs_equal_lengths(backbone: Backbone, pooling: Pooling) -> bool:
    """Say whether the model could take padding for text, or text for padding."""
    own, tokenizers = backbone.model.config.pad_token_id, backbone.tokenizer.pad_token_id
    if own is None:
        return pooling.modes == (HEAD_INPUT,)
    return own != tokenizers


def _live(model: Any, device: str | torch.device, dtype: str) -> Backbone:
    if not (isinstance(model, tuple) and len(model) == 2 and isinstance(model[0], torch.nn.Module)):
        hint = "; a live model needs its tokenizer" if isinstance(model, torch.nn.Module) else ""
        raise TypeError(
            f"model is a {type(model).__name__}{hint}; pass a folder, a name on the Hugging Face "
            "Hub, or a tuple (model, tokenizer)"
        )
    backbone = live_backbone(*model)
    if device != "auto" and resolve_device(device).type != backbone.model.device.type:
        raise ValueError(
            f"device={str(device)!r}, but the live model is on {backbone.model.device}; move it, "
            "or choose device='auto'"
        )
    if dtype != "auto" and _DTYPES[dtype] != backbone.model.dtype:
        raise ValueError(
            f"dtype={dtype!r}, but the live model is in {backbone.model.dtype}; convert it, or "
            "choose dtype='auto'"
        )
    return backbone
