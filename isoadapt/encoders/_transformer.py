"""TransformerEncoder: a frozen transformer as a scikit-learn transformer."""

import os
import pickle
import sys
from collections.abc import Callable
from functools import partial
from numbers import Integral
from typing import TYPE_CHECKING, Any, Self, cast

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

from isoadapt._utils.devices import resolve_device
from isoadapt.encoders._backbone import Backbone
from isoadapt.encoders._batching import (
    column_names,
    embed_batch,
    explained_failure,
    needs_equal_lengths,
    run_batches,
    to_device,
    token_budget,
    vector_width,
)
from isoadapt.encoders._cache import EmbeddingCache, Request, as_cache
from isoadapt.encoders._identity import encoder_identity, located, noted, variant
from isoadapt.encoders._models import (
    DTYPES,
    check_options,
    checked_live,
    stored_backbone,
)
from isoadapt.encoders._pooling import (
    HEAD_INPUT,
    READOUT,
    LayersPooling,
    Pooling,
    PoolingSetting,
    needs_head,
    several_layers,
)
from isoadapt.encoders._texts import Texts, as_texts
from isoadapt.encoders._tokenization import Tokens, cased, model_inputs, tokenize_blocks, truncation

if TYPE_CHECKING:
    from isoadapt.encoders._onnx import Deviation


class TransformerEncoder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Embed texts, or pairs of texts, with a frozen transformer.

    Nothing is trained, and ``fit`` may be omitted. The model is loaded on first use into a store
    that is shared by the whole process, so clones and grid candidates do not load it again; see
    :func:`isoadapt.encoders.release`. A checkpoint that changes on disk is loaded again.

    Parameters
    ----------
    model : str, path-like, tuple or SentenceTransformer
        A folder made by ``save_pretrained``, a name on the Hugging Face Hub, a live
        ``(model, tokenizer)``, or a live SentenceTransformer. Only safetensors weights inside the
        folder are read. The folder may be that of a PEFT adapter, which needs
        ``pip install "isoadapt[peft]"``. Its weights are read from this folder and from that of the
        base model that it names. A live model is shared by :func:`sklearn.base.clone`. It is never
        changed, not even its training mode, keeps its device and dtype, and cannot be pickled; a
        wrapper of ``torch.compile`` or DataParallel is left out, and quantised models are refused.
    pooling : {"auto", "head_input", "cls", "mean", "max", "readout"} or list, default="auto"
        How a vector is computed. "head_input" is the input of the last linear layer of the
        classifier head. "cls" is the hidden state of the first token. "mean" and "max" are the mean
        and the maximum over the hidden states of all tokens. "auto" is "head_input" if the
        checkpoint has a classifier head. Otherwise, "auto" follows the sentence-transformers files
        or modules of the checkpoint: Transformer and Pooling, then Normalize, Dense, LayerNorm and
        Dropout, the length and `truncate_dim`. Other modules, and settings that could change the
        vectors, raise an error. If there are no such files, "auto" is "mean".

        A list of pairs (pooling, layer), such as ``[("head_input", -1), ("mean", 2)]``, gives
        several poolings side by side from one pass; "head_input" can only be the first. "readout"
        is such a list for :class:`~isoadapt.TeacherReadout`: the head's input, if there is a head,
        then the mean of the last hidden state, of that at two thirds of the depth, and of the input
        of the first layer, "cls" of the last, and the mean at one third, as many as fit into 4,096
        columns. ``get_feature_names_out`` says which. Hidden states are those of the classifier's
        own pass.
    layer : int, default=-1
        Index of the hidden state for "cls", "mean" and "max". 0 is the input of the first layer
        and -1 the output of the last layer. "head_input" needs -1.
    max_length : int, default=None
        Number of tokens that an input is truncated to, special tokens included. None means as many
        as both tokenizer and model are made for.
    batch_tokens : int, default=2048
        Number of tokens in a batch, padding included. It is halved when the device runs out of
        memory. On a CPU, a batch has at most 512 tokens per thread, because larger batches do not
        fit into the caches and are slower.
    device : str or torch.device, default="auto"
        Device of the model. "auto" is "cuda" if it is available, else "cpu".
    dtype : {"auto", "float32", "bfloat16", "float16", "int8"}, default="auto"
        Data type of the computation. "auto" is "float32", because adapters amplify rounding errors.
        "int8", only with ``backend="onnx"``, is the fastest on a CPU and the least exact; see
        :meth:`deviation`.
    cache : str, path-like or EmbeddingCache, default=None
        Folder in which vectors are stored, so that no text is encoded twice, even by another
        process, or an :class:`EmbeddingCache`, which also sets a maximum size. Only vectors of
        checkpoints, given by folder or name, can be stored, and not those of live models.
    revision : str, default=None
        Branch, tag or commit on the Hub.
    trust_remote_code : bool, default=False
        Whether code that comes with the checkpoint may be executed.
    backend : {"torch", "onnx"}, default="torch"
        Library that runs the model. "onnx" is ONNX Runtime on the CPU, in "float32" or "int8", for
        checkpoints that can be exported. It needs ``pip install "isoadapt[onnx]"``.
    verbose : int, default=0
        If greater than 0, show a progress bar if the standard error stream is a terminal.

    Raises
    ------
    OSError
        On first use, if the checkpoint is not found, is incomplete or damaged.
    ValueError
        On first use, if weights are missing or quantised, if configuration or tokenizer do not fit
        them, if parameters do not fit, or if the model cannot be exported to ONNX.

    Warns
    -----
    UserWarning
        If the cosine between "int8" and float32 vectors of some built-in sentences has a mean below
        0.99 or a minimum below 0.95, or if an exported graph is damaged and is exported again.

    Notes
    -----
    Inputs that occur more than once are encoded once. Inputs are sorted by length and put into
    batches of `batch_tokens` tokens, so that there is little padding. On first use, a model is
    probed for the influence of padding. If padding changes the vectors of a text, as in FNet,
    ConvBERT and MobileBERT, a batch holds only texts of equal length. The vector of a text
    therefore does not depend on the other texts.

    ``fit`` notes the absolute paths of `model` and `cache`, by which a fitted encoder finds them
    from another working directory. They hold as long as they exist, and until the parameter is set.
    If the folder of a relative `model` does not exist any more, one of this name in the working
    directory is used if it is a copy; otherwise an error is raised.

    ``backend="onnx"`` exports the checkpoint on first use, which takes about ten seconds, and
    compares the graph with torch. The graph is stored under a digest of the checkpoint's content:
    in ``onnx`` in the folder of the cache or, without a cache, in ``isoadapt/onnx`` in
    ``$XDG_CACHE_HOME`` or ``~/.cache``. Anyone who can write to this folder can change the results.
    No code is loaded from it, and nothing is deleted in it. The telemetry of ONNX Runtime is turned
    off.

    With "int8", matrix products are computed with eight bits, except those inside attention.
    Weights are scaled by column, and their inputs by the range over the batch, so that a vector
    depends on the other texts in the batch. On average over texts the effect is small. But the head
    input of a fine-tuned classifier can change its direction completely if a text is near the
    decision boundary: of 1,043 CoLA sentences with a MiniLM, 2.6 % changed their label and the mean
    cosine was 0.977. See :meth:`deviation`.

    Examples
    --------
    >>> from isoadapt.encoders import TransformerEncoder
    >>> encoder = TransformerEncoder("path/to/model", pooling="mean", max_length=128)
    >>> encoder.transform(["One text.", "Another."])  # doctest: +SKIP
    array([[ 0.02, ...]], dtype=float32)
    """

    _parameter_constraints: dict[str, Any] = {  # noqa: RUF012 - scikit-learn's convention
        "model": "no_validation",
        "pooling": [StrOptions({"auto", HEAD_INPUT, READOUT, "cls", "mean", "max"}), list, tuple],
        "layer": [Integral],
        "max_length": [Interval(Integral, 1, None, closed="left"), None],
        "batch_tokens": [Interval(Integral, 1, None, closed="left")],
        "device": [str, torch.device],
        "dtype": [StrOptions(set(DTYPES))],
        "cache": [str, os.PathLike, EmbeddingCache, None],
        "revision": [str, None],
        "trust_remote_code": ["boolean"],
        "backend": [StrOptions({"torch", "onnx"})],
        "verbose": ["verbose"],
    }

    _noted: dict[str, Any] = {}  # noqa: RUF012 - replaced, never changed

    def __init__(
        self,
        model: Any,
        *,
        pooling: PoolingSetting = "auto",
        layer: int = -1,
        max_length: int | None = None,
        batch_tokens: int = 2048,
        device: str | torch.device = "auto",
        dtype: str = "auto",
        cache: str | os.PathLike[str] | EmbeddingCache | None = None,
        revision: str | None = None,
        trust_remote_code: bool = False,
        backend: str = "torch",
        verbose: int = 0,
    ) -> None:
        self.model = model
        self.pooling = pooling
        self.layer = layer
        self.max_length = max_length
        self.batch_tokens = batch_tokens
        self.device = device
        self.dtype = dtype
        self.cache = cache
        self.revision = revision
        self.trust_remote_code = trust_remote_code
        self.backend = backend
        self.verbose = verbose

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None) -> Self:
        """Check the texts and note the absolute paths of folders; nothing is learned.

        Parameters
        ----------
        X : sequence of str or of pairs of str
            Texts, as for :meth:`transform`.
        y : object, default=None
            Ignored.

        Returns
        -------
        TransformerEncoder
            The encoder itself.
        """
        as_texts(X)
        self._noted = noted(self.model, self.cache)
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; a model or cache that is set is looked for where it is then used."""
        if name in self._noted:
            self.__dict__["_noted"] = {k: v for k, v in self._noted.items() if k != name}
        super().__setattr__(name, value)

    def transform(self, X: Any) -> NDArray[np.float32]:
        """Embed texts.

        Parameters
        ----------
        X : sequence of str or of pairs of str
            List, tuple, 1-D array or Series of str. Pairs are a list of 2-tuples, an array of shape
            (n, 2) or a two-column DataFrame. The texts of a pair are joined into one input, and
            give one vector. For a vector of each text, pass the two columns in two calls.

        Returns
        -------
        ndarray of shape (n, d), float32
            One vector for each input.

        Raises
        ------
        TypeError
            If `X` holds anything but texts or pairs of texts.
        ValueError
            If `X` is empty.
        """
        from tqdm.auto import tqdm

        self._validate_params()
        texts, inverse = as_texts(X).unique()
        hidden = not (self.verbose and sys.stderr.isatty())
        with tqdm(total=len(texts), unit=" texts", desc="Encoding", disable=hidden) as bar:

            def opened() -> Callable[[Texts], NDArray[np.float32]]:
                backbone = self._outline()
                pooling = self._pooling(backbone)
                return lambda part: self._encode(part, backbone, pooling, bar.update)

            if self.cache is None:
                vectors = opened()(texts)
            else:
                cache, identify = as_cache(self._at("cache")), partial(encoder_identity, self)
                vectors = Request(cache, texts, identify, opened, bar.update).vectors()
        return vectors[inverse]

    def deviation(self, X: Any) -> "Deviation":
        """Measure the deviation of the vectors from those of torch in float32.

        Parameters
        ----------
        X : sequence of str or of pairs of str
            Texts, as for :meth:`transform`. A few hundred typical texts are enough.

        Returns
        -------
        Deviation
            Named tuple (mean_cosine, min_cosine, max_difference, n_texts): mean and smallest cosine
            between the two vectors of a text, largest norm of their difference relative to the norm
            in float32, and number of texts.

        Examples
        --------
        >>> from isoadapt.encoders import TransformerEncoder
        >>> encoder = TransformerEncoder("path/to/model", backend="onnx", dtype="int8")
        >>> encoder.deviation(["One text.", "Another."])  # doctest: +SKIP
        Deviation(mean_cosine=0.99..., min_cosine=0.98..., max_difference=0.1..., n_texts=2)
        """
        from isoadapt.encoders._onnx import compare_vectors

        exact = variant(self, backend="torch", dtype="float32")
        return compare_vectors(np.asarray(self.transform(X)), np.asarray(exact.transform(X)))

    def _encode(
        self, texts: Texts, backbone: Backbone, pooling: Pooling, progress: Callable[[int], Any]
    ) -> NDArray[np.float32]:
        """Compute the vectors (n, d) of distinct texts, without the cache."""
        max_length = self._length(texts, backbone, pooling)

        def read(part: Texts) -> Tokens:
            """Tokenise texts."""
            part = cased(part, backbone.tokenizer, pooling.lowercase)
            return model_inputs(backbone, part, max_length)

        embed, equal_lengths = self._embedder(backbone, pooling)
        vectors = np.empty((len(texts), vector_width(backbone, pooling)), dtype=np.float32)
        run_batches(
            tokenize_blocks(texts, read),
            embed,
            vectors,
            batch_tokens=token_budget(self.batch_tokens, backbone.model.device),
            equal_lengths=equal_lengths,
            progress=progress,
        )
        return vectors

    def _embedder(
        self, backbone: Backbone, pooling: Pooling
    ) -> tuple[Callable[[dict[str, Tensor]], Tensor], bool]:
        """Return the function that embeds a batch, and whether batches need rows of one length."""
        layer = backbone.hidden_state(self.layer)
        if self.backend == "onnx":
            from isoadapt.encoders._onnx import GraphSpec, graphs_folder, onnx_model

            graph = onnx_model(
                GraphSpec(pooling, layer, self.dtype == "int8"),
                outline=backbone,
                load=self._backbone,
                root=graphs_folder(self._at("cache")),
            )
            return graph, graph.equal_lengths
        torch.nn.ModuleList(pooling.steps).to(backbone.model.device)

        @torch.inference_mode()
        def embed(batch: dict[str, Tensor]) -> Tensor:
            with explained_failure(backbone, batch):
                batch = to_device(batch, backbone.model.device)
                return embed_batch(backbone, pooling, layer, batch)

        return embed, needs_equal_lengths(backbone, pooling)

    def _at(self, name: str) -> Any:
        """Return the model or the cache, by the absolute path that `fit` noted if it exists."""
        return located(getattr(self, name), *self._noted.get(name, ("", "")))

    def _validate_params(self) -> None:
        super()._validate_params()
        several_layers(self.pooling, self.layer)
        check_options(self.model, self.cache, self.backend, self.device, self.dtype)

    def _backbone(self) -> Backbone:
        """Return the model with its weights."""
        if not isinstance(self.model, str | os.PathLike):
            return checked_live(self.model, self.device, self.dtype)
        return self._stored(resolve_device("cpu" if self.backend == "onnx" else self.device))

    def _outline(self) -> Backbone:
        """Return the model, without weights if ONNX Runtime runs it."""
        return self._stored(torch.device("meta")) if self.backend == "onnx" else self._backbone()

    def _stored(self, device: torch.device) -> Backbone:
        """Return the model from the store."""
        return stored_backbone(
            self._at("model"),
            head=needs_head(self.pooling),
            revision=self.revision,
            dtype=DTYPES[self.dtype],
            device=device,
            trust_remote_code=self.trust_remote_code,
        )

    def _pooling(self, backbone: Backbone) -> Pooling:
        """Return the pooling of a model; raise ValueError if it does not have the head needed."""
        return backbone.pooling(self.pooling, self.layer)

    def _length(self, texts: Texts, backbone: Backbone, pooling: Pooling) -> int | None:
        """Return the number of tokens that texts are truncated to; None if there is no limit."""
        return truncation(texts, backbone, self.max_length, pooling.max_length)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Return the names of the columns.

        Parameters
        ----------
        input_features : array-like of str, default=None
            Ignored, because texts have no feature names.

        Returns
        -------
        ndarray of str
            ``"transformerencoder0"`` and so on. Columns of several hidden states are named by layer
            and pooling, such as ``"head_input_0"`` and ``"layer2_mean_17"``.
        """
        if several_layers(self.pooling) is None:
            return super().get_feature_names_out(input_features)
        backbone = self._outline()
        names = column_names(backbone, cast(LayersPooling, self._pooling(backbone)))
        return np.asarray(names, dtype=object)

    @property
    def _n_features_out(self) -> int:
        """Number of columns, for the names of output features."""
        backbone = self._outline()
        return vector_width(backbone, self._pooling(backbone))

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
