"""Loaded models: one process-wide store, so that clones and candidates never load twice."""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from isoadapt._utils.errors import reason
from isoadapt.encoders._backbone import Backbone
from isoadapt.encoders._folder import (
    read_object,
    sentence_modules,
    transformer_folder,
    weight_files,
)
from isoadapt.encoders._network import find_last_linear
from isoadapt.encoders._peft import (
    CONFIG,
    MERGE,
    check_adapter,
    check_base,
    is_classifier_adapter,
    label_options,
    merged,
    read_adapter,
    saved_weights,
)

_CAPACITY = 2
_STORE: "OrderedDict[tuple[Any, ...], Backbone]" = OrderedDict()
_GRAPHS: "OrderedDict[tuple[Any, ...], Any]" = OrderedDict()  # ready to run, of the ONNX backend
_DOWNLOADED: dict[tuple[str, str | None, bool], Path] = {}
_LOCK = threading.RLock()
_OBJECTS = [f"{name}config.json" for name in ("", "generation_", "tokenizer_")]
_OBJECTS += ["special_tokens_map.json", "added_tokens.json", "model.safetensors.index.json"]
_FILES = (".json", ".safetensors", ".txt", ".model", ".codes", ".tokenizer", ".py", ".jinja")


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
        Where to put them. "meta": nowhere, they are not even read.
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
        folder = checkpoint_folder(model, revision, trust_remote_code)
        head = head or names_classifier(folder)
        key = (fingerprint(folder), dtype, device, head, trust_remote_code)
        return _kept(_STORE, key, lambda: _load(folder, head, dtype, device, trust_remote_code))


def stored_graph(key: tuple[Any, ...], load: Callable[[], Any]) -> Any:
    """Give a graph from the store, loading it if need be.

    Parameters
    ----------
    key : tuple
        What tells it from others. A forked process loads its own, for threads are not inherited.
    load : callable
        Loads it.

    Returns
    -------
    object
        What `load` gave, now or before.
    """
    with _LOCK:
        return _kept(_GRAPHS, (os.getpid(), *key), load)


def _kept(store: "OrderedDict[tuple[Any, ...], Any]", key: tuple[Any, ...], load: Any) -> Any:
    """Give `store[key]`, loading it if need be in place of the least recently used."""
    if key not in store:
        while len(store) >= _CAPACITY:
            store.popitem(last=False)
        store[key] = load()
    store.move_to_end(key)
    return store[key]


def checkpoint_folder(
    model: str | os.PathLike[str], revision: str | None, trust_remote_code: bool
) -> Path:
    """Find the folder of a checkpoint, downloading it if need be.

    Parameters
    ----------
    model : str or path-like
        Folder, or name on the Hugging Face Hub.
    revision : str or None
        Revision on the Hub.
    trust_remote_code : bool
        Whether code that comes with the checkpoint is needed.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    OSError
        If the checkpoint cannot be had.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    with _LOCK:
        return _download(str(model), revision, trust_remote_code)


def base_folder(folder: Path) -> Path | None:
    """Find the base model of a PEFT adapter, downloading it if need be.

    Parameters
    ----------
    folder : Path
        Where a checkpoint lies.

    Returns
    -------
    Path or None
        The base model's folder; None if the checkpoint is not a PEFT adapter.

    Raises
    ------
    OSError
        If the base model cannot be had.
    ValueError
        If the base model is a PEFT adapter itself.
    """
    adapter = read_adapter(folder)
    if adapter is None:
        return None
    name = adapter["base_model_name_or_path"]
    try:
        base = checkpoint_folder(name, adapter.get("revision"), False)
    except OSError as error:
        raise OSError(
            f"model={str(folder)!r} is a PEFT adapter of the base model {name!r}, which cannot be "
            f"had: {error}; or name its folder as base_model_name_or_path in {folder}/"
            "adapter_config.json"
        ) from error
    check_base(folder, base)
    return base


def tokenizer_folder(folder: Path) -> Path:
    """Find the tokenizer of a checkpoint: a PEFT adapter without one has its base model's.

    Parameters
    ----------
    folder : Path
        Where the checkpoint lies.

    Returns
    -------
    Path
        Where its tokenizer should be.
    """
    base = base_folder(folder)
    own = transformer_folder(folder)
    return own if base is None or _has_tokenizer(own) else transformer_folder(base)


def loaded_backbone(model: str | os.PathLike[str]) -> Backbone | None:
    """Give a model that is still in the store though its folder has been moved or removed.

    Parameters
    ----------
    model : str or path-like
        The folder that it was loaded from.

    Returns
    -------
    Backbone or None
        The model in float32; None if it is not in the store.
    """
    folder = Path(model).expanduser()
    with _LOCK:
        return next(
            (
                backbone
                for backbone in _STORE.values()
                if backbone.folder == folder and backbone.model.dtype == torch.float32
            ),
            None,
        )


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
        _GRAPHS.clear()
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
        The folder, and for each file (name, inode, size, (time of change of content, time of
        change)) in nanoseconds. Hashable; another one whenever a file changes.
    """
    files = []
    for file in checkpoint_files(folder):
        stat = file.stat()
        times = (stat.st_mtime_ns, stat.st_ctime_ns)
        files.append((str(file.relative_to(folder)), stat.st_ino, stat.st_size, times))
    base = base_folder(folder)
    if base is not None:
        files += fingerprint(base)[1:]
    return (os.path.realpath(folder), *files)


def checkpoint_files(folder: Path) -> list[Path]:
    """List the files that a model can be loaded from.

    Parameters
    ----------
    folder : Path
        Where the checkpoint lies.

    Returns
    -------
    list of Path
        Sorted: weights, configuration, tokenizer, pooling and code, one level of folders deep and
        in the folders of sentence-transformers modules, and all weights that are read.

    Raises
    ------
    ValueError
        If the checkpoint names a file or folder outside `folder`, or weights of another format.
    """
    places = {folder, *(entry for entry in folder.iterdir() if entry.is_dir())}
    with suppress(ValueError):  # whatever needs the modules says what is wrong with them
        places |= {module for _, module in sentence_modules(folder) if module.is_dir()}
    files = {file for place in places for file in place.iterdir() if file.suffix in _FILES}
    files |= set(weight_files(transformer_folder(folder)))
    return sorted(file for file in files if file.is_file())


def names_classifier(folder: Path) -> bool:
    """Say whether a checkpoint was saved from a model for sequence classification.

    Parameters
    ----------
    folder : Path
        Where the checkpoint lies.

    Returns
    -------
    bool
        What its ``config.json`` says, or the configuration of a PEFT adapter.
    """
    adapter, base = read_adapter(folder), base_folder(folder)
    if adapter is not None and base is not None:
        return is_classifier_adapter(adapter) or names_classifier(base)
    names = read_object(transformer_folder(folder) / "config.json").get("architectures")
    names = names if isinstance(names, list) else []
    return any("ForSequenceClassification" in str(name) for name in names)


def _download(name: str, revision: str | None, code: bool) -> Path:
    from huggingface_hub import snapshot_download

    key = (name, revision, code)
    if key in _DOWNLOADED:
        return _DOWNLOADED[key]
    patterns = [f"*{suffix}" for suffix in _FILES if code or suffix != ".py"]
    try:
        with quiet():
            folder = snapshot_download(
                name,
                revision=revision,
                allow_patterns=patterns,
                ignore_patterns=["onnx/*", "openvino/*"],
            )
    except (OSError, ValueError) as error:
        raise OSError(
            f"model={name!r} is no folder here, and it could not be had from the Hugging Face Hub "
            f"({type(error).__name__}: {reason(error)}); pass a folder made by save_pretrained, or "
            "check the name and the connection"
        ) from error
    _DOWNLOADED[key] = Path(folder)
    return _DOWNLOADED[key]


def _load(
    folder: Path, head: bool, dtype: torch.dtype, device: torch.device, code: bool
) -> Backbone:
    import transformers

    base = base_folder(folder)
    if base is not None:
        check_adapter(folder)
    weights, words = transformer_folder(base or folder), tokenizer_folder(folder)
    check_files(weights, words)
    kind = "AutoModelForSequenceClassification" if head else "AutoModel"
    options = {"local_files_only": True, "trust_remote_code": code}
    with quiet(), torch.random.fork_rng(devices=[]):
        tokenizer = _explain(
            folder, lambda: transformers.AutoTokenizer.from_pretrained(words, **options)
        )
        if base is not None and head:
            outline = _explain(folder, lambda: _without_weights(kind, weights, **options))
            options |= _explain(folder, lambda: label_options(folder, outline))
        if device.type == "meta":
            model = _explain(folder, lambda: _without_weights(kind, weights, **options)).eval()
            return Backbone(model, tokenizer, find_last_linear(model) if head else None, folder)
        model, report = _explain(
            folder,
            lambda: getattr(transformers, kind).from_pretrained(
                weights,
                dtype=dtype,
                use_safetensors=True,
                output_loading_info=True,
                return_dict=True,  # whatever the configuration says
                **options,
            ),
        )
        missing = set(report["missing_keys"])
        if base is not None:
            missing -= _explain(folder, lambda: saved_weights(folder)).keys()
            model = merged(model, folder)
    _check_complete(folder, missing, head)
    model = model.to(device).eval()
    for weights in chain(model.parameters(), model.buffers()):
        weights.data = weights.data.clone()  # not a window on the file, which may be written to
    return Backbone(model, tokenizer, find_last_linear(model) if head else None, folder)


def _without_weights(kind: str, folder: Path, **options: Any) -> Any:
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder, **options)
    with torch.device("meta"):
        return getattr(transformers, kind).from_config(
            config, trust_remote_code=options["trust_remote_code"]
        )


def check_files(folder: Path, words: Path) -> None:
    """Check that a folder holds a model, and one its tokenizer, before they are loaded.

    Parameters
    ----------
    folder : Path
        Where the configuration and the weights should be.
    words : Path
        Where the tokenizer should be.

    Raises
    ------
    FileNotFoundError
        If one of them is missing.
    ValueError
        If a JSON file that configures the model or its tokenizer is damaged, or a PEFT adapter
        lies beside the model.
    """
    names = {file.name for file in folder.iterdir()} if folder.is_dir() else set()
    if CONFIG in names:  # transformers would follow it to another model by itself
        raise ValueError(
            f"model={str(folder)!r} holds a PEFT adapter ({CONFIG}) where a whole model is needed; "
            f"{MERGE}"
        )
    if "config.json" not in names:
        missing = "config.json"
    elif not any(name.endswith((".safetensors", ".safetensors.index.json")) for name in names):
        missing = "weights (*.safetensors; other formats can run code and are not read)"
    elif not _has_tokenizer(words):
        missing = "a tokenizer (tokenizer.json, tokenizer_config.json or a vocabulary)"
    else:
        check_json(folder)
        return
    raise FileNotFoundError(
        f"model={str(folder)!r} is a folder without {missing}; pass one made by save_pretrained "
        "of both the model and its tokenizer"
    )


def _has_tokenizer(folder: Path) -> bool:
    names = (file.name for file in folder.iterdir())
    return any("tokenizer" in name or name.startswith("vocab") for name in names)


def check_json(folder: Path) -> None:
    """Check that the files of JSON which configure a model and its tokenizer hold objects.

    Parameters
    ----------
    folder : Path
        Where the checkpoint lies.

    Raises
    ------
    ValueError
        If one is damaged or holds something else.
    """
    for name in _OBJECTS:
        read_object(folder / name)


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
    except Exception as error:  # what a file holds decides which errors its readers raise
        raise ValueError(
            f"model={str(folder)!r} cannot be loaded ({reason(error)}); check that it was saved "
            "whole, by save_pretrained of both the model and its tokenizer"
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
