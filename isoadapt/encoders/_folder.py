"""JSON files and safetensors weights of a checkpoint folder, and the files that they name."""

import json
import re
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

_BOUNDS = [  # of numbers in a configuration, from which transformers builds lists
    (re.compile(r"num_(hidden_)?layers|n_layers?|(encoder|decoder)_layers"), (0, 10_000)),
    (re.compile(r"num_labels"), (0, 10_000_000)),
]
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"


def read_json(path: Path) -> Any:
    """Read a JSON file; return None if it does not exist, raise ValueError if it is not JSON."""
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}); copy it again") from error


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object; return an empty one if it does not exist."""
    found = read_json(path)
    if not isinstance(found, dict | None):
        raise ValueError(
            f"{path} is damaged (it holds a {type(found).__name__}, but must hold a JSON object); "
            "copy it again"
        )
    return found or {}


def check_numbers(config: Path, tokenizer_config: Path) -> None:
    """Check the numbers that would make loading endless or fail later, with an unclear error."""
    entries = read_object(config)
    for part in (entries, *(value for value in entries.values() if isinstance(value, dict))):
        for name, value in part.items():
            bounds = next((bounds for names, bounds in _BOUNDS if names.fullmatch(name)), None)
            if bounds is None or not isinstance(value, int | float):
                continue
            if not bounds[0] <= value <= bounds[1]:
                raise ValueError(
                    f"{config} is damaged ({name}={value}, but it must be from {bounds[0]} to "
                    f"{bounds[1]}); copy it again"
                )
    length = read_object(tokenizer_config).get("model_max_length")
    if not isinstance(length, int | float | None):
        raise ValueError(
            f"{tokenizer_config} is damaged (model_max_length={length!r}, but it must be a number);"
            " copy it again"
        )


def inside(folder: Path, name: Any, named_by: Path) -> Path:
    """Return the path of a file that `named_by` names; raise ValueError if it is outside `folder`.

    Symbolic links are followed, because the cache of the Hugging Face Hub consists of them.
    """
    paths = (PurePosixPath(name), PureWindowsPath(name)) if isinstance(name, str) else ()
    if not paths or any(path.anchor or ".." in path.parts for path in paths):
        raise ValueError(
            f"{named_by} names {name!r}, which is not inside {str(folder)!r}; a checkpoint is only "
            "read from its own folder: move the file into it and correct the name"
        )
    return folder / str(name)


def sentence_modules(folder: Path) -> list[tuple[str, Path]]:
    """List class name and folder of the modules, if `folder` is a sentence-transformers folder."""
    listed = folder / "modules.json"
    modules = read_json(listed)
    if modules is None:
        return []
    try:
        if not isinstance(modules, list):
            raise TypeError(f"it holds a {type(modules).__name__}")
        return [
            (module["type"].rpartition(".")[2], inside(folder, module["path"], listed))
            for module in modules
        ]
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(
            f"{listed} is damaged (it must list modules with type and path); copy it again"
        ) from error


def transformer_folder(folder: Path) -> Path:
    """Return the folder of ``config.json``, in sentence-transformers often that of a module."""
    if (folder / "config.json").is_file():
        return folder
    return next((module for _, module in sentence_modules(folder)), folder)


def weight_files(folder: Path) -> list[Path]:
    """List the files that transformers reads the weights in a folder from, existing or not.

    A name that is outside the folder, or is not that of a safetensors file, raises ValueError.
    """
    config = folder / "config.json"
    named = read_object(config).get("transformers_weights")
    if named is not None:
        start = inside(folder, named, config)
    else:
        start = folder / (_WEIGHTS if (folder / _WEIGHTS).is_file() else _INDEX)
    if not start.name.endswith(".index.json"):
        return [_safetensors(start, config)]
    shards = read_object(start).get("weight_map", {})
    if not isinstance(shards, dict):
        raise ValueError(f"{start} is damaged (its weight_map is not an object); copy it again")
    files = [inside(folder, shard, start) for shard in dict.fromkeys(shards.values())]
    return [_safetensors(file, start) for file in files]


def _safetensors(file: Path, named_by: Path) -> Path:
    """Return `file`; raise ValueError if it is not a safetensors file."""
    if file.suffix != ".safetensors":
        raise ValueError(
            f"{named_by} names the weights {file.name!r}; only safetensors files are read, because "
            "other formats can run code: save the model again with save_pretrained"
        )
    return file
