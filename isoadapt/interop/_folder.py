"""Adapter folders: a configuration, a safetensors file and a model card; nothing that runs."""

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import isoadapt
from isoadapt._utils.errors import reason
from isoadapt._utils.folders import Content, atomic_folder, check_output_folder
from isoadapt.adapters import BaseAdapter
from isoadapt.encoders import TransformerEncoder, VectorSource, vector_source
from isoadapt.interop._adapter import SOURCE
from isoadapt.interop._card import model_card
from isoadapt.interop._pipeline import pack, take_apart, unpack
from isoadapt.interop._state import Tensors, decode, encode
from isoadapt.interop._types import matches

CONFIG, TENSORS, CARD = "config.json", "adapter.safetensors", "README.md"
ADAPTER = Content("an adapter")

_FORMAT = "isoadapt adapter"
_KEYS = {"base_model", "data", "metrics"}
_KEYS |= {"format", "format_version", "isoadapt_version", "tensors", "sha256"}
# What each version of the format holds: one adapter, or the steps of a pipeline.
_VERSIONS = {1: {"class", "parameters", "state"}, 2: {"steps"}}
_VECTORS = "vectors"  # only where their source is known
_MAX_CONFIG = 16 * 2**20


class AdapterFolderError(ValueError):
    """An adapter folder is damaged, incomplete or of another format."""


def save_adapter(
    adapter: Any,
    folder: str | os.PathLike[str],
    *,
    base_model: str | os.PathLike[str] | TransformerEncoder | None = None,
    data: str | Mapping[str, Any] | None = None,
    metrics: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> Path:
    """Save a fitted adapter as a folder that can be shared: no pickle, nothing that runs.

    The folder holds ``config.json`` (class, parameters, fitted state), ``adapter.safetensors``
    (the arrays), ``README.md`` (a model card) and ``isoadapt.sha256`` (the list of these files,
    by which `overwrite` knows them). A checksum covers the first two. The same adapter gives the
    same bytes. The folder appears when it is whole; an error or an interrupt
    leaves what was there.

    Parameters
    ----------
    adapter : adapter, Pipeline or AdaptedEncoder
        A fitted adapter of isoadapt; a pipeline of such, which may begin with a
        :class:`~isoadapt.TransformerEncoder` and end with a linear model; or a fitted
        :class:`~isoadapt.AdaptedEncoder`. Of an encoder, the folder holds the name of its
        checkpoint and the parameters that its vectors depend on, without the weights. A frozen
        estimator as its ``head`` is saved as the
        LinearHead that it is read as, an unfitted one as the head that was fitted; settings of
        ``set_output`` and ``set_fit_request`` are not saved.
    folder : str or path-like
        Where it goes.
    base_model : str, path-like or TransformerEncoder, default=None
        The encoder whose embeddings the adapter was fitted to, or the name or folder of its
        checkpoint. Of an encoder, the folder records the checkpoint (a digest of its weights and
        tokenizer) and the kind of vectors (pooling and layer); of a local checkpoint, the digest
        only. None takes the encoder that a pipeline begins with, or the record of an adapter that
        was loaded. :func:`merge_into_checkpoint` and ``isoadapt transform`` then refuse any other.
    data : str or dict, default=None
        What it was fitted on; a dict of names to numbers or strings.
    metrics : dict, default=None
        Columns of a table for the model card, such as "before" and "after": each a dict of names
        to numbers, or an :class:`~isoadapt.metrics.IsotropyReport`.
    overwrite : bool, default=False
        Whether an adapter that this function wrote may be replaced. A folder with any other file
        in it, or with one that was changed since, is kept.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    NotFittedError
        If the adapter is not fitted.
    TypeError
        If a step is no adapter of isoadapt, an encoder holds a live model, `base_model` is of
        another type, or a parameter cannot be saved: a callable, or a generator of random numbers.
    ValueError
        If the fitted state does not fit the parameters, which were set anew after the fit, the
        parameters of `base_model` do not fit its checkpoint, or `base_model` is given for a
        pipeline that begins with an encoder.
    FileExistsError
        If the folder holds files and `overwrite` is false, or files that may not be replaced.
    OSError
        If the folder cannot be written.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> import numpy as np
    >>> from isoadapt import Whitening
    >>> from isoadapt.interop import load_adapter, save_adapter
    >>> X = np.random.default_rng(0).normal(size=(100, 4)) * [9, 1, 1, 1]
    >>> adapter = Whitening(shrinkage=0.1).fit(X)
    >>> with TemporaryDirectory() as folder:
    ...     path = save_adapter(adapter, f"{folder}/whitening", data="100 random rows")
    ...     loaded = load_adapter(path)
    >>> loaded
    Whitening(shrinkage=0.1)
    >>> bool((loaded.transform(X) == adapter.transform(X)).all())
    True
    """
    parts = take_apart(adapter)
    if parts.encoder is not None:
        if base_model is not None:
            raise ValueError(
                f"base_model={base_model!r} was given, but the pipeline begins with an encoder, "
                "which is recorded: leave base_model out"
            )
        base_model = parts.encoder[1]
    tensors: Tensors = {}
    packed = pack(adapter, tensors)
    version = next(number for number, keys in _VERSIONS.items() if keys == set(packed))
    config: dict[str, Any] = {"format": _FORMAT, "format_version": version}
    config |= {"isoadapt_version": isoadapt.__version__, **packed}
    config |= _provenance(_name(base_model), data, metrics)
    source = _source(parts.first(), base_model)
    if source is not None:
        config[_VECTORS] = source._asdict()
    blob = _to_bytes(tensors)
    config["tensors"] = {"bytes": len(blob), "sha256": hashlib.sha256(blob).hexdigest()}
    config["sha256"] = _checksum(config)
    text = json.dumps(config, indent=2, allow_nan=False) + "\n"
    if len(text) > _MAX_CONFIG:
        raise ValueError(
            f"the adapter's state takes {len(text)} bytes of {CONFIG}, more than {_MAX_CONFIG}: "
            "keep it with joblib.dump"
        )
    _assemble(config, blob)  # what is written can be read
    target = check_output_folder(folder, overwrite, content=ADAPTER, name="folder")
    with atomic_folder(target, overwrite, ADAPTER) as written:
        (written / CONFIG).write_text(text, "utf-8")
        (written / TENSORS).write_bytes(blob)
        (written / CARD).write_text(model_card(parts, provenance(config), source), "utf-8")
    return target


def load_adapter(folder: str | os.PathLike[str]) -> Any:
    """Load an adapter that :func:`save_adapter` saved.

    Nothing in the folder is run, and nothing outside it is read: links are refused. What is
    loaded is checked: checksum, names, types, shapes, parameters.

    Parameters
    ----------
    folder : str or path-like
        The folder.

    Returns
    -------
    adapter or Pipeline
        Fitted: it transforms and predicts as the one that was saved, to the bit. A saved pipeline
        or AdaptedEncoder is a Pipeline; its encoder loads the checkpoint when it is first used, by
        the name that was saved.

    Raises
    ------
    FileNotFoundError
        If there is no such folder.
    AdapterFolderError
        If the folder does not hold a whole, valid adapter. It is a ValueError.

    Examples
    --------
    >>> from isoadapt.interop import load_adapter
    >>> load_adapter("path/to/adapter").transform(embeddings)  # doctest: +SKIP
    """
    config = read_config(folder)
    path = Path(folder).expanduser() / TENSORS
    size = config["tensors"]["bytes"]
    blob = _read(path, size)
    with _refusing(path):
        if len(blob) != size or hashlib.sha256(blob).hexdigest() != config["tensors"]["sha256"]:
            raise ValueError("it is not the file that was saved")
    with _refusing(Path(folder)):
        adapter = _assemble(config, blob)
    if _VECTORS in config:
        setattr(take_apart(adapter).first(), SOURCE, VectorSource(**config[_VECTORS]))
    return adapter


def read_config(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Read and check the configuration of an adapter folder.

    Parameters
    ----------
    folder : str or path-like
        The folder.

    Returns
    -------
    dict
        As :func:`save_adapter` wrote it.

    Raises
    ------
    FileNotFoundError
        If there is no such folder.
    AdapterFolderError
        If the file is missing or damaged, or of another format.
    """
    if not Path(folder).expanduser().is_dir():
        raise FileNotFoundError(
            f"folder={str(folder)!r} is no folder; pass one that save_adapter made"
        )
    path = Path(folder).expanduser() / CONFIG
    text = _read(path, _MAX_CONFIG)
    with _refusing(path):
        config = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
        if not isinstance(config, dict) or config.get("format") != _FORMAT:
            raise ValueError(f"its format is not {_FORMAT!r}")
        version = config.get("format_version")
        if type(version) is not int or version not in _VERSIONS:
            raise ValueError(
                f"format_version={version!r}, but isoadapt {isoadapt.__version__} reads "
                f"{', '.join(map(str, _VERSIONS))}: install the isoadapt that wrote it "
                f"({config.get('isoadapt_version')!r})"
            )
        found = set(config) - {_VECTORS}
        if found != _KEYS | _VERSIONS[version]:
            wrong = sorted(found ^ (_KEYS | _VERSIONS[version]))
            raise ValueError(f"keys that are missing or unknown: {wrong}")
        if config["sha256"] != _checksum(config):
            raise ValueError("its checksum is wrong: it was changed after it was saved")
        if type(config["tensors"].get("bytes")) is not int:
            raise ValueError("it does not say how long the file of arrays is")
        provenance(config)
        if _VECTORS in config and not _is_source(config[_VECTORS]):
            raise ValueError(f"vectors={config[_VECTORS]!r} does not identify any")
    return config


def provenance(config: dict[str, Any]) -> dict[str, Any]:
    """Give what a configuration says of an adapter's origin.

    Parameters
    ----------
    config : dict
        The configuration.

    Returns
    -------
    dict
        "base_model" (str or None), "data" (str, dict or None), "metrics" (dict of dicts).
    """
    found = {name: decode(config[name], name, {}) for name in ("base_model", "data", "metrics")}
    if not isinstance(found["base_model"], str | None):
        raise ValueError("base_model is no name")
    return found


def _name(base_model: str | os.PathLike[str] | TransformerEncoder | None) -> str | None:
    """Name a model; a live one has no name."""
    if not isinstance(base_model, str | os.PathLike | TransformerEncoder | None):
        raise TypeError(
            f"base_model is a {type(base_model).__name__}, but the name or folder of a checkpoint, "
            "a TransformerEncoder or None is needed; wrap a live model as "
            "TransformerEncoder((model, tokenizer))"
        )
    model = base_model.model if isinstance(base_model, TransformerEncoder) else base_model
    return os.fspath(model) if isinstance(model, str | os.PathLike) else None


def _source(
    adapter: BaseAdapter, base_model: str | os.PathLike[str] | TransformerEncoder | None
) -> VectorSource | None:
    """Identify the vectors that an adapter was fitted to, as far as they are known."""
    if isinstance(base_model, TransformerEncoder):
        return vector_source(base_model)
    if hasattr(adapter, SOURCE) or base_model is None:
        return getattr(adapter, SOURCE, None)
    if not Path(base_model).expanduser().is_dir():
        return None
    try:
        return vector_source(TransformerEncoder(base_model))._replace(kind=None)
    except (OSError, ValueError):  # a name for the card only
        return None


def _is_source(fields: Any) -> bool:
    """Whether a value from JSON has the fields of a VectorSource."""
    if not isinstance(fields, dict) or set(fields) != set(VectorSource._fields):
        return False
    return matches(VectorSource(**fields), VectorSource)


def _provenance(
    base_model: str | None,
    data: str | Mapping[str, Any] | None,
    metrics: Mapping[str, Any] | None,
) -> dict[str, Any]:
    values = {
        "base_model": base_model,
        "data": dict(data) if isinstance(data, Mapping) else data,
        "metrics": {name: _figures(column) for name, column in (metrics or {}).items()},
    }
    arrays: Tensors = {}
    encoded = {name: encode(value, name, arrays) for name, value in values.items()}
    if arrays:
        raise TypeError(f"{next(iter(arrays))} is an array; pass numbers and strings")
    return encoded


def _figures(column: Any) -> dict[str, float]:
    """The plain numbers of a dict or a report."""
    items = column.to_dict() if hasattr(column, "to_dict") else column
    return {name: float(value) for name, value in items.items() if _is_number(value)}


def _is_number(value: Any) -> bool:
    return hasattr(value, "__float__") and not getattr(value, "shape", ())


def _to_bytes(tensors: Tensors) -> bytes:
    from safetensors.numpy import save

    return save(tensors)


def _assemble(config: dict[str, Any], blob: bytes) -> Any:
    from safetensors.numpy import load

    return unpack(config, load(blob))


def _checksum(config: dict[str, Any]) -> str:
    """SHA-256 of everything else in the configuration, however it is laid out."""
    rest = {key: value for key, value in config.items() if key != "sha256"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _read(path: Path, limit: int) -> bytes:
    """Read a file, if it is an ordinary one and not too long."""
    try:
        found = path.lstat()
    except FileNotFoundError as error:
        raise AdapterFolderError(
            f"{path} is missing; pass a folder that save_adapter made, or copy it again"
        ) from error
    if not stat.S_ISREG(found.st_mode):
        raise AdapterFolderError(
            f"{path} is no ordinary file but a link or a folder; copy what it stands for there"
        )
    if found.st_size > limit:
        raise AdapterFolderError(
            f"{path} has {found.st_size} bytes, more than {limit}; copy the folder again"
        )
    with path.open("rb") as file:
        return file.read(limit)


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Turn whatever goes wrong in the block into an error that names the file."""
    try:
        yield
    except Exception as error:
        raise AdapterFolderError(
            f"{path} holds no valid adapter ({reason(error)}); copy the folder again, or save the "
            "adapter anew with save_adapter"
        ) from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a name stands twice")
    return dict(pairs)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
