"""The folder of a checkpoint: where it is, which files it has, and what they name."""

import json
import os
import re
from functools import cache
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from isoadapt._utils.messages import reason

_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_FULL = (".json", ".safetensors")  # endings of files that are never empty
# Endings of the files that a model can be loaded from: weights, configuration, tokenizer and code.
_FILES = (*_FULL, ".txt", ".model", ".spm", ".codes", ".tokenizer", ".py", ".jinja")
_SENTENCE_MODULE = re.compile(  # where the versions of sentence-transformers have their modules
    r"sentence_transformers\.(?:models|(?:base|sentence_transformer)\.modules)\.(?:\w+\.)?(\w+)"
)
PEFT_CONFIG, PEFT_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PEFT_PREFIX = "base_model.model."  # of the names of its weights


def checkpoint_folder(
    model: str | os.PathLike[str], revision: str | None, trust_remote_code: bool
) -> Path:
    """Return the folder of a checkpoint, downloading it if necessary, code only with permission."""
    folder = Path(model).expanduser().absolute()  # the working directory may change later
    if folder.is_dir():
        return folder
    return download(str(model), revision, trust_remote_code)


@cache
def download(name: str, revision: str | None, code: bool) -> Path:
    """Download a checkpoint, once for each process, without other formats of weights."""
    from huggingface_hub import HfApi, constants, snapshot_download
    from tqdm import tqdm

    class Hidden(tqdm):
        """A progress bar that is not shown."""

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options | {"disable": True})

    options: dict[str, Any] = {"ignore_patterns": ["onnx/*", "openvino/*"], "tqdm_class": Hidden}
    options["allow_patterns"] = [f"*{suffix}" for suffix in _FILES if code or suffix != ".py"]
    late = None
    try:  # because the first request of snapshot_download has no time limit
        HfApi().repo_info(name, revision=revision, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except Exception as error:  # snapshot_download tells of it, unless it came too late
        late = error if "Timeout" in type(error).__name__ else None
    options["local_files_only"] = late is not None
    try:
        return Path(snapshot_download(name, revision=revision, **options))
    except (OSError, ValueError) as error:
        cause = late or error
        raise OSError(
            f"model={name!r} is not a folder, and downloading it from the Hugging Face Hub failed "
            f"({type(cause).__name__}: {reason(cause)})"
        ) from cause


def fault(file: Path) -> str:
    """Say what a file holds in place of its own content, and the way out; "" if nothing is seen."""
    with file.open("rb") as content:
        start = content.read(512).strip().lower()
    if start.startswith(b"version https://git-lfs"):
        return f"{file} is a pointer of Git LFS, not the file itself: run git lfs pull"
    if start.startswith((b"<!doctype html", b"<html")):
        return f"{file} is a web page, such as one to sign in: download the file again"
    return f"{file} is empty: download it again" if not start and file.suffix in _FULL else ""


def fault_in(folder: Path) -> str:
    """Say what a file of a checkpoint or of its base model holds in place of its own content."""
    places = (folder, base_folder(folder) or folder)
    files = (file for place in places for file in (*place.glob("*"), *place.glob("*/*")))
    faults = (fault(file) for file in files if file.suffix in _FILES and file.is_file())
    return next(filter(None, faults), "")


def read_json(path: Path) -> Any:
    """Read a JSON file; return None if it does not exist, raise ValueError if it is not JSON."""
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(fault(path) or f"{path} is damaged ({error})") from error


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object; return an empty one if it does not exist."""
    found = read_json(path)
    if not isinstance(found, dict | None):
        raise ValueError(f"{path} is damaged: it holds no JSON object")
    return found or {}


def inside(folder: Path, name: Any, named_by: Path) -> Path:
    """Return the path of a file that `named_by` names; ValueError if it is outside `folder`."""
    paths = (PurePosixPath(name), PureWindowsPath(name)) if isinstance(name, str) else ()
    if not paths or any(path.anchor or ".." in path.parts for path in paths):
        raise ValueError(
            f"{named_by} names {name!r}, which is not inside {str(folder)!r}: a checkpoint is only "
            "read from its own folder"
        )
    return folder / str(name)  # not resolved, as the cache of the Hub consists of links


def sentence_modules(folder: Path) -> list[tuple[str, Path]]:
    """List kind and folder of the modules, if `folder` is a sentence-transformers folder."""
    listed = folder / "modules.json"
    modules = read_json(listed)
    if modules is None:
        return []
    try:
        found = [(module["type"], module["path"]) for module in modules]
        return [(module_kind(kind), inside(folder, path, listed)) for kind, path in found]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{listed} is damaged: it must list modules with type and path") from error


def module_kind(path: str) -> str:
    """Return the name of a class of sentence-transformers; of another class, the whole path."""
    known = _SENTENCE_MODULE.fullmatch(path)
    return known[1] if known else path


def first_module(folder: Path) -> tuple[str, Path]:
    """Return kind and folder of the first module; without a list of them, a Transformer in it."""
    return next(iter(sentence_modules(folder)), ("Transformer", folder))


def transformer_folder(folder: Path) -> Path:
    """Return the folder of ``config.json``: the first module's, or `folder` itself."""
    return first_module(folder)[1]


def check_transformer(kind: str, shown: str) -> None:
    """Raise ValueError if a first module of this kind is not a single transformer."""
    if not kind.endswith("Transformer"):
        raise ValueError(
            f"{shown} begins with {kind}, which is not a single transformer: choose pooling='auto'"
        )


def read_adapter(folder: Path) -> dict[str, Any] | None:
    """Read the configuration of a PEFT adapter; return None if the folder holds none."""
    config = read_object(folder / PEFT_CONFIG)
    base = config.get("base_model_name_or_path")
    if config and not (isinstance(base, str) and base):
        raise ValueError(
            f"{folder / PEFT_CONFIG} names no base model (base_model_name_or_path={base!r}): set "
            "it to a folder or a name on the Hugging Face Hub"
        )
    return config or None


def base_folder(folder: Path, code: bool = False) -> Path | None:
    """Return the folder of a PEFT adapter's base model, downloading it if necessary, or None."""
    adapter = read_adapter(folder)
    if adapter is None:
        return None
    name = adapter["base_model_name_or_path"]
    if not Path(name).expanduser().is_dir():  # then a path relative to the adapter
        places = (folder.parent / name, folder / name)
        name = next((str(place) for place in places if place.is_dir()), name)
    try:
        base = checkpoint_folder(name, adapter.get("revision"), code)
    except OSError as error:
        raise OSError(
            f"model={str(folder)!r} is a PEFT adapter whose base model (base_model_name_or_path in "
            f"{PEFT_CONFIG}) is not available: {error}"
        ) from error
    if read_adapter(base) is not None:  # two could name each other
        raise ValueError(
            f"model={str(folder)!r} is a PEFT adapter of {str(base)!r}, which is one itself: "
            "merge that one first, by merge_and_unload"
        )
    return base


def tokenizer_folder(folder: Path) -> Path:
    """Return the tokenizer's folder; a PEFT adapter without tokenizer uses its base model's."""
    base, own = base_folder(folder), transformer_folder(folder)
    return own if base is None or _has_tokenizer(own) else transformer_folder(base)


def fingerprint(folder: Path) -> tuple[Any, ...]:
    """Return a hashable description of a checkpoint that changes whenever a file changes."""
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
    """List the files, sorted, that a model can be loaded from, in the folder and its subfolders."""
    places = {folder, *(module for _, module in sentence_modules(folder) if module.is_dir())}
    places |= {entry for place in places for entry in place.iterdir() if entry.is_dir()}
    files = {file for place in places for file in place.iterdir() if file.suffix in _FILES}
    files |= set(weight_files(transformer_folder(folder)))
    return sorted(file for file in files if file.is_file())


def weight_files(folder: Path) -> list[Path]:
    """List the safetensors files that transformers reads the weights from, existing or not."""
    named_by = folder / "config.json"
    named = read_object(named_by).get("transformers_weights")
    if named is not None:
        files = [inside(folder, named, named_by)]
    else:
        files = [folder / (_WEIGHTS if (folder / _WEIGHTS).is_file() else _INDEX)]
    if files[0].name.endswith(".index.json"):
        named_by = files[0]
        shards = read_object(named_by).get("weight_map", {})
        if not isinstance(shards, dict):
            raise ValueError(f"{named_by} is damaged: its weight_map is not an object")
        files = [inside(folder, shard, named_by) for shard in dict.fromkeys(shards.values())]
    if others := [file.name for file in files if file.suffix != ".safetensors"]:
        raise ValueError(
            f"{named_by} names the weights {others[0]!r}, but only safetensors files are read, "
            "because other formats can run code"
        )
    return files


def check_files(folder: Path, tokenizer_dir: Path) -> None:
    """Check before loading that `folder` holds a whole model and `tokenizer_dir` its tokenizer."""
    names = {file.name for file in folder.iterdir()} if folder.is_dir() else set()
    if PEFT_CONFIG in names:  # transformers would load the base model that it names
        raise ValueError(
            f"model={str(folder)!r} holds a PEFT adapter ({PEFT_CONFIG}); merge it with peft "
            "(merge_and_unload), and pass the folder of the result"
        )
    if "config.json" not in names:
        missing = "config.json"
    elif not any(name.endswith((".safetensors", ".safetensors.index.json")) for name in names):
        missing = "weights (*.safetensors; other formats can run code and are not read)"
    elif not _has_tokenizer(tokenizer_dir):
        missing = "a tokenizer (tokenizer.json, tokenizer_config.json or a vocabulary)"
    elif isinstance(read_object(folder / "config.json").get("id2label"), list):
        raise ValueError(
            f"{folder}: id2label in config.json is a list of names, but must be an object with an "
            'id for each, such as {"0": "negative", "1": "positive"}'
        )
    else:
        return
    named = sorted(folder.glob(f"*/{PEFT_CONFIG}"))
    way_out = "made by save_pretrained of both the model and its tokenizer"
    if named and missing == "config.json":
        way_out = f"of the PEFT adapters in it, such as {str(named[0].parent)!r}"
    elif missing.startswith("a tokenizer"):
        way_out += "; a model of images needs an encoder of your own for AdaptedEncoder, and "
        way_out += "commands read its vectors as a matrix (.npy)"
    raise FileNotFoundError(
        f"model={str(folder)!r} is a folder without {missing}; pass one {way_out}"
    )


def _has_tokenizer(folder: Path) -> bool:
    """Return whether a folder holds files of a tokenizer."""
    names = (file.name for file in folder.iterdir())
    return any("tokenizer" in name or name.startswith("vocab") for name in names)
