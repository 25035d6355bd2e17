"""TransformerEncoder: a frozen transformer as a scikit-learn transformer."""

import os
import pickle
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.utils import Tags
from tqdm.auto import tqdm

from isoadapt._utils.devices import resolve_device
from isoadapt._utils.messages import shows_progress
from isoadapt._utils.sklearn_private import Interval, StrOptions, _fit_context
from isoadapt._utils.state import own_state
from isoadapt.encoders._aligned import Aligned
from isoadapt.encoders._cache import EmbeddingCache, Request
from isoadapt.encoders._folder import checkpoint_folder, sentence_modules
from isoadapt.encoders._identity import Identity, checkpoint_identity
from isoadapt.encoders._kept import kept_vectors
from isoadapt.encoders._kinds import holds_classifier
from isoadapt.encoders._library import READOUT_KIND, open_library
from isoadapt.encoders._models import DTYPES, checked_live, load_backbone, stored
from isoadapt.encoders._opened import Opened
from isoadapt.encoders._pooling import (
    EXPORTED,
    HEAD_INPUT,
    OF_STATES,
    READOUT,
    PoolingSetting,
    needs_head,
    several_layers,
)
from isoadapt.encoders._texts import Texts, as_texts
from isoadapt.heads import LinearHead


@dataclass(eq=False, repr=False)
class TransformerEncoder(TransformerMixin, BaseEstimator):
    """Embed texts, or pairs of texts, with a frozen transformer.

    Nothing is trained, and ``fit`` may be omitted. The model is loaded on first use into a store
    that is shared by the whole process, so clones and grid candidates do not load it again; see
    :func:`isoadapt.encoders.release`. A checkpoint that changes on disk is loaded again.

    Parameters
    ----------
    model : str, path-like, tuple or SentenceTransformer
        A folder made by ``save_pretrained``, a name on the Hugging Face Hub, a live
        ``(model, tokenizer)``, or a live SentenceTransformer. Only safetensors weights inside the
        folder are read. The folder may hold a PEFT adapter, which needs
        ``pip install "isoadapt[peft]"`` and is merged into the base model that it names. A live
        model is shared by :func:`sklearn.base.clone`. It is never changed, not even its training
        mode, keeps its device and dtype, and cannot be pickled. A wrapper of ``torch.compile`` or
        DataParallel is ignored, and quantised models are refused.
    pooling : str or list, default="auto"
        How a vector is computed. "head_input" is the input of the last linear layer of the
        classifier head. "cls" is the hidden state of the first token. "mean" and "max" are the mean
        and the maximum over the hidden states of all tokens. "auto" is "head_input" if the
        checkpoint has a classifier head. Otherwise, "auto" follows the sentence-transformers files
        or modules of the checkpoint: Transformer and Pooling, then Normalize, Dense, LayerNorm and
        Dropout, the length and `truncate_dim`. A model with other modules or settings is computed
        by sentence-transformers itself, ``pip install "isoadapt[st]"``. If there are no such files,
        "auto" is "mean". "exported" are the adapted vectors in a folder that
        :func:`~isoadapt.interop.to_sentence_transformer` wrote, also beside a classifier. A
        file of code in a local folder needs `trust_remote_code` only if it is not this version's.

        A list of pairs (pooling, layer), such as ``[("head_input", -1), ("mean", 2)]``, gives
        several poolings side by side from one pass; "head_input" can only be the first. "readout"
        is such a list for :class:`~isoadapt.TeacherReadout`: the head's input, if there is a head,
        then the mean of the last hidden state, of that at two thirds of the depth, and of the input
        of the first layer, "cls" of the last, and the mean at one third, as many as fit into 4,096
        columns. ``get_feature_names_out`` names them. An AdaptedEncoder with a teacher sets another
        value, which holds the teacher's last layers.
    layer : int, default=-1
        Index of the hidden state for "cls", "mean" and "max". 0 is the input of the first layer
        and -1 the output of the last layer. "head_input" needs -1.
    max_length : int, default=None
        Number of tokens that an input is truncated to, special tokens included. None means as many
        as both tokenizer and model are made for.
    batch_tokens : int, default=2048
        Number of tokens in a batch, padding included. It is halved when the device runs out of
        memory. On a CPU, a batch has at most 512 tokens per thread, which suits its caches. If
        torch has an even number of threads, two batches of many texts are computed at a time, each
        with half of the threads.
    device : str or torch.device, default="auto"
        Device of the model. "auto" is "cuda" if it is available, else "cpu".
    dtype : {"auto", "float32", "bfloat16", "float16"}, default="auto"
        Data type of the computation. "auto" is "float32", because adapters amplify rounding errors.
    cache : str, path-like or EmbeddingCache, default=None
        Folder in which vectors are stored, so that no text is encoded twice, even by another
        process, or an :class:`EmbeddingCache`, which also sets a maximum size. Vectors of live
        models cannot be stored.
    revision : str, default=None
        Branch, tag or commit on the Hub.
    trust_remote_code : bool, default=False
        Whether code that comes with the checkpoint may be executed.
    verbose : int, default=0
        If greater than 0, show a progress bar if the standard error stream is a terminal.

    Raises
    ------
    OSError
        On first use, if the checkpoint is not found, is incomplete or damaged.
    ValueError
        On first use, if weights are missing or quantised, if configuration or tokenizer do not fit
        them, or if parameters do not fit.

    Notes
    -----
    Inputs that occur more than once are encoded once. Batches hold inputs of similar length, so
    that there is little padding. On first use, a model is probed for the influence of padding. If
    padding changes the vectors of a text, as in FNet, ConvBERT and MobileBERT, a batch holds only
    texts of equal length. The vector of a text therefore does not depend on the other texts.

    ``fit`` notes the absolute path of a folder, by which a fitted encoder finds it from another
    working directory, as long as it exists and `model` is not set again.

    An encoder of another kind, such as one of images, can take the place of this one in
    :class:`~isoadapt.AdaptedEncoder` and in searches, see :doc:`/guide/encoders_of_your_own`.

    Examples
    --------
    >>> from isoadapt.encoders import TransformerEncoder
    >>> encoder = TransformerEncoder("path/to/model", pooling="mean", max_length=128)
    >>> encoder.transform(["One text.", "Another."])  # doctest: +SKIP
    array([[ 0.02, ...]], dtype=float32)
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "model": "no_validation",
        "pooling": [
            StrOptions({"auto", HEAD_INPUT, EXPORTED, READOUT, *OF_STATES}),
            list,
            tuple,
            Aligned,
        ],
        "layer": [Integral],
        "max_length": [Interval(Integral, 1, None, closed="left"), None],
        "batch_tokens": [Interval(Integral, 1, None, closed="left")],
        "device": [str, torch.device],
        "dtype": [StrOptions(set(DTYPES))],
        "cache": [str, os.PathLike, EmbeddingCache, None],
        "revision": [str, None],
        "trust_remote_code": ["boolean"],
        "verbose": ["verbose"],
    }

    _noted = cast(tuple[Any, str], ("", ""))  # by ``fit``: `model` and its absolute path

    model: Any
    _: KW_ONLY
    pooling: PoolingSetting = "auto"
    layer: int = -1
    max_length: int | None = None
    batch_tokens: int = 2048
    device: str | torch.device = "auto"
    dtype: str = "auto"
    cache: str | os.PathLike[str] | EmbeddingCache | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    verbose: int = 0

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None) -> Self:
        """Check texts X and note the absolute path of the folder; y is ignored, nothing learned."""
        as_texts(X)
        if isinstance(self.model, str | os.PathLike):
            self._noted = (self.model, str(Path(self.model).expanduser().absolute()))
        return self

    @own_state(models=True)
    def transform(self, X: Any) -> NDArray[np.float32]:
        """Embed texts as vectors (n, d) in float32, one for each input.

        Parameters
        ----------
        X : sequence of str or of pairs of str
            List, tuple, 1-D array or Series of str. Pairs are a list of 2-tuples, an array of shape
            (n, 2) or a two-column DataFrame. The texts of a pair are joined into one input, and
            give one vector. For a vector of each text, pass the two columns in two calls.

        Raises
        ------
        TypeError
            If `X` holds anything but texts or pairs of texts.
        ValueError
            If `X` is empty.
        """
        self._validate_params()
        texts, inverse = as_texts(X).unique()
        hidden = not shows_progress(self.verbose)
        with tqdm(total=len(texts), unit=" texts", desc="Encoding", disable=hidden) as bar:

            def opened() -> Callable[[Texts], NDArray[np.float32]]:
                return partial(self.open().encode, progress=bar.update)

            cache = self.cache
            if cache is None:
                vectors = kept_vectors(self.identity, texts, lambda rows: opened()(rows))
            else:
                cache = cache if isinstance(cache, EmbeddingCache) else EmbeddingCache(cache)
                vectors = Request(cache, texts, self.identity, opened, bar.update).vectors()
        return vectors[inverse]

    @own_state(models=True)
    def open(self) -> Opened:
        """Check the parameters, and return the loaded model with tokenizer, pooling and head.

        The result does not follow later changes of the parameters. If only sentence-transformers
        can compute the model, it has no parts such as a tokenizer, and raises ValueError for them.
        """
        self._validate_params()
        source = self._source()
        library = open_library(source, self) if self.pooling in ("auto", EXPORTED) else None
        if library is not None:
            return cast(Opened, library)  # which has its methods, and refuses the rest
        if isinstance(source, Path):
            head = needs_head(self.pooling) or holds_classifier(source)
            settings = DTYPES[self.dtype], resolve_device(self.device), self.trust_remote_code
            backbone = stored(load_backbone, source, head, *settings)
        else:
            backbone = checked_live(source, self.device, self.dtype)
        pooling = backbone.pooling(self.pooling, self.layer)
        return Opened(backbone, pooling, self.max_length, self.batch_tokens)

    def identity(self) -> Identity:
        """Return what determines the vectors: the content of files and the settings.

        The model is not loaded. Encoders of equal checkpoints with equal settings have equal
        identities. A live model is identified by the object, in this process only.
        """
        self._validate_params()
        length = self.max_length and int(self.max_length)
        pooling = several_layers(self.pooling) or self.pooling
        settings = (pooling, int(self.layer), length, DTYPES[self.dtype], self.trust_remote_code)
        source = self._source()
        if isinstance(source, Path):
            return checkpoint_identity(source).with_settings(*settings)
        return Identity(b"").with_settings(id(source), *settings)

    def head(self, y: ArrayLike | None = None) -> LinearHead | None:
        """Return the classifier head in float64, or None if the first columns are not its input.

        `y` (n_samples,) are labels that it will be used with, see
        :func:`~isoadapt.encoders.load_checkpoint`.
        """
        return self.open().head(y)

    def _location(self) -> Any:
        """Return the folder that `fit` noted, if it exists and `model` is the same, or `model`."""
        model, path = self._noted
        return path if model == self.model and os.path.isdir(path) else self.model

    def _source(self) -> Any:
        """Return the live model, or the folder of the checkpoint, downloaded if necessary."""
        model = self._location()
        if not isinstance(model, str | os.PathLike):
            return model
        return checkpoint_folder(model, self.revision, self.trust_remote_code)

    def _variant(self, **params: Any) -> Self:
        """Return an encoder of the same model with other parameters."""
        return clone(self).set_params(model=self._location(), **params)

    def _validate_params(self) -> None:
        super()._validate_params()
        several_layers(self.pooling, self.layer)
        if self.cache == "":
            raise ValueError("cache='' is not a folder; pass the path of a folder, or cache=None")
        if not isinstance(self.model, str | os.PathLike) and self.cache is not None:
            raise ValueError(
                "cache needs the files of a checkpoint, but model is a live model; save it and its "
                "tokenizer to a folder with save_pretrained and pass model=folder, or choose "
                "cache=None"
            )

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Return the names of the columns, ``"transformerencoder0"`` and so on.

        Columns of several hidden states are named by layer and pooling, such as ``"head_input_0"``
        and ``"layer2_mean_17"``. `input_features` is ignored, because texts have none.
        """
        opened = self.open()
        several = several_layers(self.pooling) or isinstance(self.pooling, Aligned)
        plain = [f"transformerencoder{column}" for column in range(opened.width)]
        return np.array(opened.names if several else plain, dtype=object)

    def __sklearn_clone__(self) -> Self:
        new = type(self)(**self.get_params(deep=False))
        if hasattr(self, "_sklearn_output_config"):  # set by set_output
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


def has_unread_export(encoder: Any) -> bool:
    """Whether the folder of a classifier has adapted vectors too, and no parameter says which."""
    if not isinstance(encoder, TransformerEncoder) or encoder.pooling != "auto":
        return False
    opened = encoder.open()
    folder = opened.backbone.folder if opened.pooling.is_head_input else None
    kinds = {} if folder is None else dict(sentence_modules(folder))
    return not {"Pooling", READOUT_KIND}.isdisjoint(kinds)
