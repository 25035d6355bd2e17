"""Loading of models into one store for the whole process, so that clones do not load them twice."""

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from isoadapt._utils.errors import reason
from isoadapt._utils.threads import SharedSetting
from isoadapt.encoders._backbone import Backbone, find_last_linear
from isoadapt.encoders._folder import (
    check_numbers,
    read_object,
    sentence_modules,
    transformer_folder,
    weight_files,
)
from isoadapt.encoders._locks import MODELS_LOCK
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
_GRAPHS: "OrderedDict[tuple[Any, ...], Any]" = OrderedDict()  # of the ONNX backend, ready to run
_DOWNLOADED: dict[tuple[str, str | None, bool], Path] = {}
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
    """Return the model of a folder or name on the Hub from the store, loading it if necessary.

    `head` says whether a classifier head is needed; a head that the checkpoint names is loaded
    anyway. On the device "meta" no weights are read. A checkpoint that is not found, incomplete or
    damaged raises OSError. Weights that are missing or do not fit raise ValueError.
    """
    with MODELS_LOCK:
        folder = checkpoint_folder(model, revision, trust_remote_code)
        head = head or names_classifier(folder)
        key = (fingerprint(folder), dtype, device, head, trust_remote_code)
        return _load_once(
            _STORE, key, lambda: _load(folder, head, dtype, device, trust_remote_code)
        )


def stored_graph(key: tuple[Any, ...], load: Callable[[], Any]) -> Any:
    """Return a graph from the store, calling `load` if necessary.

    A forked process loads its own graph, because threads are not inherited.
    """
    with MODELS_LOCK:
        return _load_once(_GRAPHS, (os.getpid(), *key), load)


def _load_once(store: "OrderedDict[tuple[Any, ...], Any]", key: tuple[Any, ...], load: Any) -> Any:
    """Return `store[key]`; if it must be loaded, it replaces the least recently used entry."""
    if key not in store:
        while len(store) >= _CAPACITY:
            store.popitem(last=False)
        store[key] = load()
    store.move_to_end(key)
    return store[key]


def checkpoint_folder(
    model: str | os.PathLike[str], revision: str | None, trust_remote_code: bool
) -> Path:
    """Return the folder of a checkpoint, downloading it from the Hub if necessary.

    Files of code are only downloaded with `trust_remote_code`.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    with MODELS_LOCK:
        return _download(str(model), revision, trust_remote_code)


def base_folder(folder: Path) -> Path | None:
    """Return the folder of a PEFT adapter's base model, downloading it if necessary.

    The result is None if the checkpoint is not a PEFT adapter. A base model that is an adapter
    itself raises ValueError.
    """
    adapter = read_adapter(folder)
    if adapter is None:
        return None
    name = adapter["base_model_name_or_path"]
    try:
        base = checkpoint_folder(name, adapter.get("revision"), False)
    except OSError as error:
        raise OSError(
            f"model={str(folder)!r} is a PEFT adapter, and its base model {name!r} is not "
            f"available: {error}; or set base_model_name_or_path in {folder}/"
            "adapter_config.json to the folder of the base model"
        ) from error
    check_base(folder, base)
    return base


def tokenizer_folder(folder: Path) -> Path:
    """Return the tokenizer's folder; a PEFT adapter without tokenizer uses its base model's."""
    base = base_folder(folder)
    own = transformer_folder(folder)
    return own if base is None or _has_tokenizer(own) else transformer_folder(base)


def loaded_backbone(model: str | os.PathLike[str]) -> Backbone | None:
    """Return the float32 model that was loaded from a folder, or None if it is not in the store.

    It is found even if the folder has since been moved or removed.
    """
    folder = Path(model).expanduser()
    with MODELS_LOCK:
        return next(
            (
                backbone
                for backbone in _STORE.values()
                if backbone.folder == folder and backbone.model.dtype == torch.float32
            ),
            None,
        )


def release() -> None:
    """Remove all loaded models from memory.

    At most two models are kept at a time and shared by all encoders. A model that is used again is
    loaded again.

    Examples
    --------
    >>> from isoadapt.encoders import release
    >>> release()
    """
    with MODELS_LOCK:
        _STORE.clear()
        _GRAPHS.clear()
        _DOWNLOADED.clear()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def fingerprint(folder: Path) -> tuple[Any, ...]:
    """Return a hashable description of a checkpoint that changes whenever a file changes.

    It is the folder and, for each file, (name, inode, size, (mtime, ctime)), with times in
    nanoseconds.
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
    """List the files that a model can be loaded from, sorted.

    These are weights, configuration, tokenizer, pooling and code, in the folder, in its subfolders
    and in those of sentence-transformers modules. ValueError is raised if the checkpoint names
    files outside the folder, or weights that are not safetensors files.
    """
    places = {folder, *(entry for entry in folder.iterdir() if entry.is_dir())}
    with suppress(ValueError):  # the function that reads the modules reports the error
        places |= {module for _, module in sentence_modules(folder) if module.is_dir()}
    files = {file for place in places for file in place.iterdir() if file.suffix in _FILES}
    files |= set(weight_files(transformer_folder(folder)))
    return sorted(file for file in files if file.is_file())


def names_classifier(folder: Path) -> bool:
    """Return whether a checkpoint was saved from a model for sequence classification."""
    adapter, base = read_adapter(folder), base_folder(folder)
    if adapter is not None and base is not None:
        return is_classifier_adapter(adapter) or names_classifier(base)
    names = read_object(transformer_folder(folder) / "config.json").get("architectures")
    names = names if isinstance(names, list) else []
    return any("ForSequenceClassification" in str(name) for name in names)


def _download(name: str, revision: str | None, code: bool) -> Path:
    """Download a checkpoint, once for each process, without other formats of weights."""
    from huggingface_hub import snapshot_download
    from tqdm import tqdm

    class Hidden(tqdm):
        """A progress bar that is not shown."""

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options | {"disable": True})

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
                tqdm_class=Hidden,
            )
    except (OSError, ValueError) as error:
        raise OSError(
            f"model={name!r} is not a folder, and downloading it from the Hugging Face Hub failed "
            f"({type(error).__name__}: {reason(error)}); pass a folder made by save_pretrained, or "
            "check the name and the connection"
        ) from error
    _DOWNLOADED[key] = Path(folder)
    return _DOWNLOADED[key]


def _load(
    folder: Path, head: bool, dtype: torch.dtype, device: torch.device, code: bool
) -> Backbone:
    """Load model and tokenizer of a folder, with a PEFT adapter merged into its base model."""
    import transformers

    base = base_folder(folder)
    if base is not None:
        check_adapter(folder)
    weights, tokenizer_dir = transformer_folder(base or folder), tokenizer_folder(folder)
    check_files(weights, tokenizer_dir)
    kind = "AutoModelForSequenceClassification" if head else "AutoModel"
    options = {"local_files_only": True, "trust_remote_code": code}
    with quiet(), torch.random.fork_rng(devices=[]):
        tokenizer = _checked_read(
            folder, lambda: transformers.AutoTokenizer.from_pretrained(tokenizer_dir, **options)
        )
        if base is not None and head:
            outline = _checked_read(folder, lambda: _without_weights(kind, weights, **options))
            options |= _checked_read(folder, lambda: label_options(folder, outline))
        if device.type == "meta":
            model = _checked_read(folder, lambda: _without_weights(kind, weights, **options)).eval()
            return Backbone(model, tokenizer, find_last_linear(model) if head else None, folder)
        model, report = _checked_read(
            folder,
            lambda: getattr(transformers, kind).from_pretrained(
                weights,
                dtype=dtype,
                use_safetensors=True,
                output_loading_info=True,
                return_dict=True,  # even if the configuration says otherwise
                **options,
            ),
        )
        missing = set(report["missing_keys"])
        if base is not None:
            missing -= _checked_read(folder, lambda: saved_weights(folder)).keys()
            model = merged(model, folder)
    _check_complete(folder, missing, head)
    model = model.to(device).eval()
    for weights in chain(model.parameters(), model.buffers()):
        # A copy, because the loaded memory is mapped to the file, which may be overwritten.
        weights.data = weights.data.clone()
    return Backbone(model, tokenizer, find_last_linear(model) if head else None, folder)


def _without_weights(kind: str, folder: Path, **options: Any) -> Any:
    """Build a model of class `kind` on the device "meta"."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder, **options)
    with torch.device("meta"):
        return getattr(transformers, kind).from_config(
            config, trust_remote_code=options["trust_remote_code"]
        )


def check_files(folder: Path, tokenizer_dir: Path) -> None:
    """Check before loading that `folder` holds a whole model and `tokenizer_dir` its tokenizer."""
    names = {file.name for file in folder.iterdir()} if folder.is_dir() else set()
    if CONFIG in names:  # transformers would load the base model that it names
        raise ValueError(
            f"model={str(folder)!r} holds a PEFT adapter ({CONFIG}) instead of a whole model; "
            f"{MERGE}"
        )
    if "config.json" not in names:
        missing = "config.json"
    elif not any(name.endswith((".safetensors", ".safetensors.index.json")) for name in names):
        missing = "weights (*.safetensors; other formats can run code and are not read)"
    elif not _has_tokenizer(tokenizer_dir):
        missing = "a tokenizer (tokenizer.json, tokenizer_config.json or a vocabulary)"
    else:
        check_json(folder)
        check_numbers(folder / "config.json", tokenizer_dir / "tokenizer_config.json")
        return
    raise FileNotFoundError(
        f"model={str(folder)!r} is a folder without {missing}; pass one made by save_pretrained "
        "of both the model and its tokenizer"
    )


def _has_tokenizer(folder: Path) -> bool:
    """Return whether a folder holds files of a tokenizer."""
    names = (file.name for file in folder.iterdir())
    return any("tokenizer" in name or name.startswith("vocab") for name in names)


def check_json(folder: Path) -> None:
    """Check that the JSON files which configure model and tokenizer hold objects."""
    for name in _OBJECTS:
        read_object(folder / name)


def _checked_read(folder: Path, read: Callable[[], Any]) -> Any:
    """Call `read`; turn its errors into an OSError or ValueError that names the folder or file."""
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
    except Exception as error:  # a damaged file can cause any exception
        raise ValueError(
            f"model={str(folder)!r} cannot be loaded ({reason(error)}); check that it was saved "
            "completely, by save_pretrained of both the model and its tokenizer"
        ) from error


def _check_complete(folder: Path, missing: set[str], head: bool) -> None:
    """Raise ValueError if weights of the checkpoint are missing."""
    if not head:  # hidden states do not depend on a pooler
        missing = {key for key in missing if "pooler" not in key.split(".")}
    if missing:
        shown = ", ".join(sorted(missing)[:4]) + (", …" if len(missing) > 4 else "")
        raise ValueError(
            f"model={str(folder)!r} has no weights for {shown}, which would be random numbers; "
            + (
                "pass a checkpoint saved from a fine-tuned AutoModelForSequenceClassification"
                if head
                else "pass a whole checkpoint"
            )
        )


@contextmanager
def _errors_only() -> Iterator[None]:
    """Hide progress bars and messages of transformers, except errors."""
    from transformers.utils import logging as settings

    level, has_bars = settings.get_verbosity(), settings.is_progress_bar_enabled()
    settings.set_verbosity_error()
    settings.disable_progress_bar()
    try:
        yield
    finally:
        settings.set_verbosity(level)
        if has_bars:
            settings.enable_progress_bar()


_ERRORS_ONLY = SharedSetting(_errors_only)


def quiet() -> AbstractContextManager[None]:
    """Hide progress bars and messages of transformers, except errors, in the whole process."""
    return _ERRORS_ONLY.hold()
