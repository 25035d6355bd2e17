"""Loaded models: one process-wide store, so that clones and candidates never load twice."""

import inspect
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import nn

from isoadapt.encoders._network import (
    eval_copy,
    find_head,
    is_classifier,
    position_limit,
    without_head,
)
from isoadapt.encoders._pooling import read_json, transformer_folder

_CAPACITY = 2
_STORE: "OrderedDict[tuple[Any, ...], Backbone]" = OrderedDict()
_DOWNLOADED: dict[tuple[str, str | None, bool], Path] = {}
_LOCK = threading.RLock()
_FILES = (".json", ".safetensors", ".txt", ".model", ".py", ".jinja")
_UNLIMITED = 2**31


@dataclass(frozen=True)
class Backbone:
    """A model in evaluation mode with its tokenizer.

    Parameters
    ----------
    model : PreTrainedModel
        The whole model, its own head included.
    tokenizer : PreTrainedTokenizerBase
        Its tokenizer.
    head : nn.Linear or None
        The last Linear of its classifier.
    folder : Path or None
        Where it was loaded from; None for a live model.

    Attributes
    ----------
    headless : PreTrainedModel
        The classifier whose "logits" are the embedding.
    base : PreTrainedModel
        The model that gives hidden states.
    inputs : frozenset of str
        What the tokenizer names and the model takes.
    limit : int or None
        Tokens that the model has positions for; None if it needs no learned positions.
    default_length : int or None
        Tokens that both tokenizer and model are made for; None if neither says.
    n_layers : int
        Number of layers; there is one hidden state more.
    """

    model: Any
    tokenizer: Any
    head: nn.Linear | None
    folder: Path | None = None

    @cached_property
    def headless(self) -> Any:
        return without_head(self.model)

    @cached_property
    def base(self) -> Any:
        base = self.model.base_model
        return base.get_encoder() if self.model.config.is_encoder_decoder else base

    @cached_property
    def inputs(self) -> frozenset[str]:
        taken = set(inspect.signature(self.model.forward).parameters)
        return frozenset(taken & {"input_ids", *self.tokenizer.model_input_names})

    @cached_property
    def limit(self) -> int | None:
        return position_limit(self.model)

    @property
    def default_length(self) -> int | None:
        trained = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        lengths = (self.tokenizer.model_max_length, self.limit, trained)
        return min((n for n in lengths if n is not None and 0 < n < _UNLIMITED), default=None)

    @property
    def n_layers(self) -> int:
        return self.model.config.get_text_config().num_hidden_layers


def live_backbone(model: Any, tokenizer: Any) -> Backbone:
    """Wrap a model that the user holds; neither its mode nor its configuration changes.

    Parameters
    ----------
    model : PreTrainedModel
        The model.
    tokenizer : PreTrainedTokenizerBase
        Its tokenizer.

    Returns
    -------
    Backbone
        A shallow copy of the model in evaluation mode.
    """
    copied = eval_copy(model)
    return Backbone(copied, tokenizer, find_head(copied) if is_classifier(copied) else None)


def stored_backbone(
    model: str | os.PathLike[str],
    *,
    head: bool,
    revision: str | None,
    dtype: torch.dtype,
    device: torch.device,
    trust_remote_code: bool,
) -> Backbone:
    """Give the model of a folder or name from the store, loading it if need be.

    Parameters
    ----------
    model : str or path-like
        Folder, or name on the Hugging Face Hub.
    head : bool
        Whether a classifier head is needed; one that the checkpoint names is loaded anyway.
    revision : str or None
        Revision on the Hub.
    dtype : torch.dtype
        Type of the weights.
    device : torch.device
        Where to put them.
    trust_remote_code : bool
        Whether code that comes with the checkpoint may run.

    Returns
    -------
    Backbone
        The model.

    Raises
    ------
    OSError
        If the checkpoint cannot be had, is incomplete or damaged.
    ValueError
        If weights are missing or do not fit, or a head is needed and there is none.
    """
    with _LOCK:
        folder = Path(model).expanduser()
        if not folder.is_dir():
            folder = _download(str(model), revision, trust_remote_code)
        head = head or _names_classifier(folder)
        key = (fingerprint(folder), dtype, device, head, trust_remote_code)
        if key not in _STORE:
            while len(_STORE) >= _CAPACITY:
                _STORE.popitem(last=False)
            _STORE[key] = _load(folder, head, dtype, device, trust_remote_code)
        _STORE.move_to_end(key)
        return _STORE[key]


def release() -> None:
    """Forget every loaded model.

    At most two models are kept at a time, shared by all encoders; the next use loads again.

    Examples
    --------
    >>> from isoadapt.encoders import release
    >>> release()
    """
    with _LOCK:
        _STORE.clear()
        _DOWNLOADED.clear()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def fingerprint(folder: Path) -> tuple[Any, ...]:
    """Tell a checkpoint from any other by the names, sizes and times of its files.

    Parameters
    ----------
    folder : Path
        Where the checkpoint lies.

    Returns
    -------
    tuple
        Hashable; another one whenever a file changes.
    """
    files = []
    for place in (folder, *(entry for entry in folder.iterdir() if entry.is_dir())):
        for file in place.iterdir():
            if file.suffix in _FILES and file.is_file():
                stat = file.stat()
                files.append((str(file.relative_to(folder)), stat.st_size, stat.st_mtime_ns))
    return (os.path.realpath(folder), *sorted(files))


def _download(name: str, revision: str | None, code: bool) -> Path:
    from huggingface_hub import snapshot_download

    key = (name, revision, code)
    if key in _DOWNLOADED:
        return _DOWNLOADED[key]
    patterns = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
    try:
        with quiet():
            folder = snapshot_download(
                name,
                revision=revision,
                allow_patterns=[*patterns, "*.py"] if code else patterns,
                ignore_patterns=["onnx/*", "openvino/*"],
            )
    except (OSError, ValueError) as error:
        raise OSError(
            f"model={name!r} is no folder here, and it could not be had from the Hugging Face Hub "
            f"({type(error).__name__}: {str(error).strip().splitlines()[0]}); pass a folder made "
            "by save_pretrained, or check the name and the connection"
        ) from error
    _DOWNLOADED[key] = Path(folder)
    return _DOWNLOADED[key]


def _load(
    folder: Path, head: bool, dtype: torch.dtype, device: torch.device, code: bool
) -> Backbone:
    import transformers

    weights = transformer_folder(folder)
    _check_files(weights)
    kind = "AutoModelForSequenceClassification" if head else "AutoModel"
    read = getattr(transformers, kind).from_pretrained
    options = {"local_files_only": True, "trust_remote_code": code}
    with quiet(), torch.random.fork_rng(devices=[]):
        tokenizer = _explain(
            folder, lambda: transformers.AutoTokenizer.from_pretrained(weights, **options)
        )
        model, report = _explain(
            folder,
            lambda: read(
                weights, dtype=dtype, use_safetensors=True, output_loading_info=True, **options
            ),
        )
    _check_complete(folder, report["missing_keys"], head)
    model = model.to(device).eval()
    for weights in chain(model.parameters(), model.buffers()):
        weights.data = weights.data.clone()  # not a window on the file, which may be written to
    return Backbone(model, tokenizer, find_head(model) if head else None, folder)


def _names_classifier(folder: Path) -> bool:
    config = read_json(transformer_folder(folder) / "config.json") or {}
    names = config.get("architectures") or []
    return any("ForSequenceClassification" in name for name in names)


def _check_files(folder: Path) -> None:
    names = {file.name for file in folder.iterdir()} if folder.is_dir() else set()
    if "config.json" not in names:
        missing = "config.json"
    elif not any(name.endswith(".safetensors") for name in names):
        missing = "weights (*.safetensors; other formats can run code and are not read)"
    elif not any("tokenizer" in name or name.startswith("vocab") for name in names):
        missing = "a tokenizer (tokenizer.json, tokenizer_config.json or a vocabulary)"
    else:
        return
    raise FileNotFoundError(
        f"model={str(folder)!r} is a folder without {missing}; pass one made by save_pretrained "
        "of both the model and its tokenizer"
    )


def _explain(folder: Path, read: Callable[[], Any]) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        return read()
    except SafetensorError as error:
        for file in sorted(folder.rglob("*.safetensors")):
            try:
                safe_open(file, "pt")
            except SafetensorError:
                raise OSError(f"{file} is damaged ({error}); copy it again") from error
        raise OSError(f"the weights in {folder} are damaged ({error}); copy them again") from error
    except (OSError, RuntimeError, ValueError, KeyError, ImportError) as error:
        reason = str(error).strip()
        raise ValueError(
            f"model={str(folder)!r} cannot be loaded ({reason}); check that it was saved whole, "
            "by save_pretrained of both the model and its tokenizer"
        ) from error


def _check_complete(folder: Path, missing: set[str], head: bool) -> None:
    if not head:  # hidden states do not pass a pooler
        missing = {key for key in missing if "pooler" not in key.split(".")}
    if missing:
        shown = ", ".join(sorted(missing)[:4]) + (", …" if len(missing) > 4 else "")
        raise ValueError(
            f"model={str(folder)!r} has no weights for {shown}: they would be random numbers; "
            + (
                "pass a checkpoint saved from a fine-tuned AutoModelForSequenceClassification"
                if head
                else "pass a whole checkpoint"
            )
        )


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the loaders' bars and reports off the screen; leave their settings as they were."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    hub_silent = are_progress_bars_disabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
        if hub_silent:
            disable_progress_bars()
