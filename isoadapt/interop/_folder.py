"""Saving and loading of adapters as folders with a configuration, arrays and a model card."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors.numpy import load, save

import isoadapt
from isoadapt._utils.files import ADAPTER, atomic_folder, check_output_folder
from isoadapt._utils.messages import reason
from isoadapt.encoders import TransformerEncoder
from isoadapt.interop._card import model_card
from isoadapt.interop._pipeline import RECORD, Tensors, decode, encode, pack, take_apart, unpack
from isoadapt.interop._reference import (
    REFERENCE,
    checksum,
    encoder_reference,
    read_reference,
    write_reference,
)

CONFIG, TENSORS, CARD = "config.json", "adapter.safetensors", "README.md"

_FORMAT = "isoadapt adapter"
_KEYS = {"base_model", "data", "metrics"}
_KEYS |= {"format", "format_version", "isoadapt_version", "tensors", "sha256"}
_VERSIONS = {1: {"class", "parameters", "state"}, 2: {"steps"}}  # keys of adapters and pipelines


class AdapterFolderError(ValueError):
    """Raised if an adapter folder is damaged, incomplete or has an unknown format."""


def save_adapter(
    adapter: Any,
    folder: str | os.PathLike[str],
    *,
    base_model: str | os.PathLike[str] | TransformerEncoder | None = None,
    data: str | Mapping[str, Any] | None = None,
    metrics: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> Path:
    """Save a fitted adapter as a folder that can be shared and contains no code and no pickle.

    The folder holds ``config.json`` (class, parameters and fitted state), ``adapter.safetensors``
    (the arrays), ``README.md`` (a model card) and ``isoadapt.txt`` (the list of these files, by
    which `overwrite` knows them). The first two are protected by checksums. Saving the same adapter
    twice gives identical bytes. The folder appears only when it is complete. After an error or an
    interrupt, the previous content is unchanged.

    Parameters
    ----------
    adapter : adapter, Pipeline or AdaptedEncoder
        A fitted adapter of isoadapt, a pipeline of such adapters, or a fitted
        :class:`~isoadapt.AdaptedEncoder`. A pipeline may begin with a
        :class:`~isoadapt.TransformerEncoder` and end with a linear model. Of an encoder, the
        folder holds the name of its checkpoint and the parameters that determine its vectors, but
        not the weights. If the ``head`` of an adapter is a frozen estimator, that is saved as a
        LinearHead. If its ``head`` is unfitted, the head that was fitted is saved. A linear model
        that ends a pipeline is saved as a LinearHead too: its predictions stay, but its
        probabilities become the softmax of its decision values, which differs for one-vs-rest
        models of three or more classes. Settings of ``set_output`` and ``set_fit_request`` are not
        saved.
    folder : str or path-like
        The folder to write.
    base_model : str, path-like or TransformerEncoder, default=None
        The encoder whose embeddings the adapter was fitted to, or the name or folder of its
        checkpoint. For an encoder, the folder records its vectors of a few texts, pooling, layer
        and maximum length. :func:`merge_into_checkpoint`, :func:`to_sentence_transformer`,
        :func:`export_onnx` and ``isoadapt transform`` then raise for encoders that give other
        vectors. None: the encoder that a pipeline begins with, or the record of an adapter that
        was loaded.
    data : str or dict, default=None
        Description of the data that the adapter was fitted to, for the model card: a text, or a
        dict from names to numbers or strings.
    metrics : dict, default=None
        Columns of a table in the model card, such as "before" and "after". Each column is a dict
        from names to numbers or an :class:`~isoadapt.metrics.IsotropyReport`.
    overwrite : bool, default=False
        Whether to replace an adapter that this function saved in `folder`. A folder that holds any
        other file or folder is never replaced.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    NotFittedError
        If the adapter is not fitted.
    TypeError
        If `adapter` or a step of it is not an adapter of isoadapt, if its encoder holds a model in
        memory, if the type of `base_model` is not supported, or if a parameter cannot be saved,
        such as a callable or a random number generator.
    ValueError
        If the fitted state does not match the parameters because these were changed after
        ``fit``, if the parameters of `base_model` do not fit its checkpoint, or if `base_model` is
        given for a pipeline that begins with an encoder.
    FileExistsError
        If `folder` holds files and `overwrite` is false, or if it holds files that may not be
        replaced.
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
    reference = parts.recorded
    if isinstance(base_model, TransformerEncoder):
        reference = encoder_reference(base_model)
        settings = {"model": _name(base_model), **reference.settings}
        reference = reference._replace(settings=settings)
    blob = save(tensors)
    config["tensors"] = {"bytes": len(blob), "sha256": hashlib.sha256(blob).hexdigest()}
    config["sha256"] = checksum(config)
    text = json.dumps(config, indent=2, allow_nan=False) + "\n"
    unpack(config, load(blob))  # raises if the folder could not be loaded again
    target = check_output_folder(folder, overwrite, content=ADAPTER, name="folder")
    with atomic_folder(target, overwrite, ADAPTER) as written:
        (written / CONFIG).write_text(text, "utf-8")
        (written / TENSORS).write_bytes(blob)
        (written / CARD).write_text(model_card(parts, provenance(config), reference), "utf-8")
        if reference is not None:
            write_reference(written, reference)
    return target


def load_adapter(folder: str | os.PathLike[str]) -> Any:
    """Load an adapter that :func:`save_adapter` saved.

    Loading runs no code from the folder and reads no files outside it; links raise an error. The
    checksums, names and parameters are checked.

    Parameters
    ----------
    folder : str or path-like
        The folder of the adapter.

    Returns
    -------
    adapter or Pipeline
        The fitted adapter. Its outputs and predictions are bitwise identical to those of the
        adapter that was saved, except those of a linear model that ended a pipeline, see
        :func:`save_adapter`. A pipeline or AdaptedEncoder is loaded as a Pipeline. Its encoder
        loads the checkpoint on first use, by the name that was saved.

    Raises
    ------
    FileNotFoundError
        If the folder does not exist.
    AdapterFolderError
        If the folder does not hold a complete, valid adapter. This is a subclass of ValueError.

    Examples
    --------
    >>> from isoadapt.interop import load_adapter
    >>> load_adapter("path/to/adapter").transform(embeddings)  # doctest: +SKIP
    """
    config = read_config(folder)
    path = Path(folder).expanduser() / TENSORS
    blob = _read(path)
    with _folder_errors(path):
        if hashlib.sha256(blob).hexdigest() != config["tensors"]["sha256"]:
            raise ValueError("it is not the file that was saved")
    with _folder_errors(Path(folder)):
        adapter = unpack(config, load(blob))
        if (path.parent / REFERENCE).exists():
            setattr(take_apart(adapter).first(), RECORD, read_reference(path.parent))
    return adapter


def read_config(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Read and check the configuration that :func:`save_adapter` wrote to a folder."""
    if not Path(folder).expanduser().is_dir():
        raise FileNotFoundError(
            f"folder={str(folder)!r} is not a folder; pass one that save_adapter wrote"
        )
    path = Path(folder).expanduser() / CONFIG
    text = _read(path)
    with _folder_errors(path):
        config = json.loads(text)
        if not isinstance(config, dict) or config.get("format") != _FORMAT:
            raise ValueError(f"its format is not {_FORMAT!r}")
        version = config.get("format_version")
        if type(version) is not int or version not in _VERSIONS:
            raise ValueError(
                f"format_version={version!r}, but isoadapt {isoadapt.__version__} reads "
                f"{', '.join(map(str, _VERSIONS))}: install the isoadapt that wrote it "
                f"({config.get('isoadapt_version')!r})"
            )
        found = set(config)
        if found != _KEYS | _VERSIONS[version]:
            wrong = sorted(found ^ (_KEYS | _VERSIONS[version]))
            raise ValueError(f"keys are missing or unknown: {wrong}")
        if config.pop("sha256") != checksum(config):
            raise ValueError("its checksum is wrong: it was changed after it was saved")
        provenance(config)
    return config


def provenance(config: dict[str, Any]) -> dict[str, Any]:
    """Return the entries "base_model", "data" and "metrics" of a configuration, decoded."""
    found = {name: decode(config[name], name, {}) for name in ("base_model", "data", "metrics")}
    if not isinstance(found["base_model"], str | None):
        raise ValueError(f"base_model={found['base_model']!r} is not a string")
    return found


def _name(base_model: str | os.PathLike[str] | TransformerEncoder | None) -> str | None:
    """Return the name or path of a checkpoint, or None for a model that is passed as an object."""
    if not isinstance(base_model, str | os.PathLike | TransformerEncoder | None):
        raise TypeError(
            f"base_model is a {type(base_model).__name__}, but it must be the name or folder of a "
            "checkpoint, a TransformerEncoder or None; wrap a loaded model as "
            "TransformerEncoder((model, tokenizer))"
        )
    model = base_model.model if isinstance(base_model, TransformerEncoder) else base_model
    return os.fspath(model) if isinstance(model, str | os.PathLike) else None


def _provenance(
    base_model: str | None,
    data: str | Mapping[str, Any] | None,
    metrics: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Encode the origin of an adapter for JSON; :func:`provenance` decodes it."""
    values = {
        "base_model": base_model,
        "data": dict(data) if isinstance(data, Mapping) else data,
        "metrics": {name: _figures(column) for name, column in (metrics or {}).items()},
    }
    arrays: Tensors = {}
    encoded = {name: encode(value, name, arrays) for name, value in values.items()}
    if arrays:
        raise TypeError(f"{next(iter(arrays))} is an array; pass only numbers and strings")
    return encoded


def _figures(column: Any) -> dict[str, float]:
    """Return the numbers in a dict or report as floats, without other values."""
    items = column.to_dict() if hasattr(column, "to_dict") else column
    return {name: float(value) for name, value in items.items() if _is_number(value)}


def _is_number(value: Any) -> bool:
    return hasattr(value, "__float__") and not getattr(value, "shape", ())


def _read(path: Path) -> bytes:
    """Read a regular file."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise AdapterFolderError(
            f"{path} is a link or a folder, not a regular file; replace it by a copy of the file"
        )
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise AdapterFolderError(
            f"{path} is missing; pass a folder that save_adapter wrote, or copy it again"
        ) from error


@contextmanager
def _folder_errors(path: Path) -> Iterator[None]:
    """Turn every exception in the block into an AdapterFolderError that names the path."""
    try:
        yield
    except Exception as error:
        raise AdapterFolderError(
            f"{path} does not hold a valid adapter ({reason(error)}); copy the folder again, or "
            "save the adapter again with save_adapter"
        ) from error
