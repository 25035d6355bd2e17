"""Saving and loading of adapters as folders with a file of skops and a model card."""

import copy
import os
from collections.abc import Mapping
from pathlib import Path
from pydoc import locate
from typing import Any

import numpy as np
from sklearn.pipeline import Pipeline

from isoadapt._utils.files import ADAPTER, atomic_folder, check_output_folder
from isoadapt._utils.messages import reason
from isoadapt._utils.state import own_state
from isoadapt.encoders import TransformerEncoder
from isoadapt.encoders._aligned import Aligned
from isoadapt.encoders._library import LibraryEncoder
from isoadapt.interop._card import model_card
from isoadapt.interop._exact import Exact
from isoadapt.interop._pipeline import RECORD, Parts, take_apart
from isoadapt.interop._reference import REFERENCE, read_reference, write_reference

FILE, CARD = "adapter.skops", "README.md"

# Packages whose objects skops may create: they hold arrays and compute, and touch no files.
_TRUSTED = ("isoadapt.adapters.", "isoadapt.geometry.", "isoadapt.heads.", "isoadapt.losses.")
_ALIGNED = f"{Aligned.__module__}.{Aligned.__name__}"
# The parameters that determine vectors. Neither trust_remote_code nor cache is read from a file.
_ENCODER = ("model", "pooling", "layer", "max_length", "dtype", "revision")
# Attributes that are not saved: the reference has a file of its own, the others are settings.
_LEFT_OUT = (RECORD, "_sklearn_output_config", "_metadata_request")
_PROBE = 3  # number of random rows that a map is tested on


class AdapterFolderError(ValueError):
    """Raised if an adapter folder is damaged or incomplete, or holds something else."""


@own_state(models=True)
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

    The folder holds ``adapter.skops`` (parameters and fitted state, in the format of skops),
    ``README.md`` (a model card), ``reference.json`` (what the encoder gives for a few texts, if it
    is known) and ``isoadapt.txt`` (the list of these files, by which `overwrite` knows them). The
    folder appears only when it is complete. After an error or an interrupt, the previous content is
    unchanged.

    Parameters
    ----------
    adapter : adapter, Pipeline or AdaptedEncoder
        A fitted adapter of isoadapt, a pipeline of such adapters, or a fitted
        :class:`~isoadapt.AdaptedEncoder`. A pipeline may begin with a
        :class:`~isoadapt.TransformerEncoder` and end with a linear model. Of an encoder, the
        folder holds the name of its checkpoint and the parameters that determine its vectors, but
        not the weights. A linear model that ends a pipeline is saved as a LinearHead: its
        predictions stay, but its probabilities become the softmax of its decision values, which
        differs for one-vs-rest models of three or more classes. Settings of ``set_output`` and
        ``set_fit_request`` are not saved.
    folder : str or path-like
        The folder to write, which is returned.
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

    Raises
    ------
    NotFittedError
        If the adapter is not fitted.
    TypeError
        If `adapter` or a step of it is not an adapter, if its encoder holds a model in memory, if
        the type of `base_model` is not supported, or if a parameter or attribute is of a type that
        neither isoadapt nor scikit-learn defines, such as a function.
    ValueError
        If the steps of a pipeline do not fit together or its maps give numbers that are not finite,
        if the parameters of `base_model` do not fit its checkpoint, or if `base_model` is given for
        a pipeline that begins with an encoder.
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
    from skops.io import dumps

    parts = take_apart(adapter)
    if parts.encoder is not None:
        if base_model is not None:
            raise ValueError(
                f"base_model={base_model!r} was given, but the pipeline begins with an encoder, "
                "which is recorded: leave base_model out"
            )
        base_model = parts.encoder[1]
    if isinstance(base_model, TransformerEncoder) and isinstance(base_model.pooling, Aligned):
        parts = parts._replace(encoder=("encoder", base_model))  # the only place of the layers
    name, reference = _name(base_model), parts.recorded
    steps = [(name, _portable(step)) for name, step in parts.steps()]
    blob = dumps({"steps": steps, "base_model": name})
    _load(blob)  # raises if the folder could not be loaded again
    if isinstance(base_model, TransformerEncoder):
        reference = None
        if not isinstance(base_model.open(), LibraryEncoder):  # without tokens
            reference = Exact.of(base_model).reference
            reference = reference._replace(settings={"model": name, **reference.settings})
    target = check_output_folder(folder, overwrite, content=ADAPTER, name="folder")
    with atomic_folder(target, overwrite, ADAPTER) as written:
        (written / FILE).write_bytes(blob)
        (written / CARD).write_text(model_card(parts, name, data, metrics, reference), "utf-8")
        if reference is not None:
            write_reference(written, reference)
    return target


@own_state()
def load_adapter(folder: str | os.PathLike[str]) -> Any:
    """Load an adapter that :func:`save_adapter` saved.

    Loading runs no code from the folder and reads no files outside it; links raise an error. It
    creates only isoadapt's adapters, heads and losses, and classes of scikit-learn that skops
    trusts. Parameters and maps are checked.

    Parameters
    ----------
    folder : str or path-like
        The folder of the adapter.

    Returns
    -------
    adapter or Pipeline
        The fitted adapter. It gives bitwise the same outputs and predictions as the adapter that
        was saved, except for a linear model that ended a pipeline, see :func:`save_adapter`.
        Several steps, also of an AdaptedEncoder, are loaded as a Pipeline. Its encoder loads the
        checkpoint on first use, by the name that was saved.

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
    return read_folder(folder)[0]


def read_folder(folder: str | os.PathLike[str]) -> tuple[Any, str | None]:
    """Return the adapter or pipeline of a folder, and the name of the base model."""
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise FileNotFoundError(
            f"folder={str(folder)!r} is not a folder; pass one that save_adapter, or isoadapt fit, "
            "wrote"
        )
    file = path / FILE
    try:
        if file.is_symlink() or not file.is_file():
            raise ValueError(f"{FILE} is missing, a link or a folder")
        model, base_model = _load(file.read_bytes())
        if (path / REFERENCE).exists():
            setattr(take_apart(model).first(), RECORD, read_reference(path))
    except Exception as error:  # whatever a damaged file leads to
        raise AdapterFolderError(
            f"{path} does not hold a valid adapter ({reason(error)}): pass a folder that "
            "save_adapter wrote, copy it again, or save the adapter again"
        ) from error
    return model, base_model


def _portable(step: Any) -> Any:
    """Return what is saved of a step: of an encoder, some of its parameters."""
    if isinstance(step, TransformerEncoder):
        if not isinstance(step.model, str | os.PathLike):
            raise TypeError(
                "the encoder of the pipeline holds a model in memory, which has no name to save: "
                "pass the folder or name of a checkpoint to the encoder, or save the other steps, "
                "pipeline[1:], with base_model=pipeline[0]"
            )
        values = {name: getattr(step, name) for name in _ENCODER}
        return values | {"model": os.fspath(step._location())}
    step = copy.copy(step)
    for name in _LEFT_OUT:
        vars(step).pop(name, None)
    return step


def _load(blob: bytes) -> tuple[Any, str | None]:
    """Create the adapter or pipeline that the content of a file describes, and check it."""
    from skops.io import get_untrusted_types, loads

    names = get_untrusted_types(data=blob)
    if foreign := [name for name in names if not _is_trusted(name)]:
        raise TypeError(
            "an adapter folder holds only adapters, numbers, strings, arrays and estimators of "
            f"scikit-learn, but not {', '.join(foreign)}: set an integer as random_state, names as "
            "scoring and device, and LinearHead.from_estimator(model) as head, or use joblib.dump"
        )
    content = loads(blob, trusted=names)
    steps = [
        (name, _encoder(step) if isinstance(step, dict) else step)
        for name, step in content["steps"]
    ]
    model = steps[0][1] if len(steps) == 1 else Pipeline(steps)
    _check(take_apart(model))
    if not isinstance(content["base_model"], str | None):
        raise ValueError(f"base_model={content['base_model']!r} is not a string")
    return model, content["base_model"]


def _is_trusted(name: str) -> bool:
    """Return whether a trusted package defines a class of this name."""
    found = locate(name) if name.startswith((*_TRUSTED, _ALIGNED)) else None
    return isinstance(found, type) and f"{found.__module__}.{found.__name__}" == name


def _encoder(parameters: dict[str, Any]) -> TransformerEncoder:
    if set(parameters) != set(_ENCODER) or not isinstance(parameters["model"], str):
        raise ValueError(f"the encoder's parameters are {sorted(parameters)}")
    encoder = TransformerEncoder(**parameters)
    encoder._validate_params()
    return encoder


def _check(parts: Parts) -> None:
    """Check parameters and widths, and test the maps on a few random rows."""
    rows = np.random.default_rng(0).normal(size=(_PROBE, parts.first().n_features_in_))
    for name, adapter in parts.adapters:
        adapter._validate_params()
        width, map_ = rows.shape[1], adapter.map_
        if adapter.n_features_in_ != width:
            raise ValueError(
                f"{name} takes {adapter.n_features_in_} features, but receives {width}"
            )
        if adapter.head_ is not None:
            adapter.head_.outputs(adapter.head_map_(rows))
        with np.errstate(all="ignore"):
            rows = map_(rows)
        if rows.shape != (_PROBE, map_.n_features_out) or not np.isfinite(rows).all():
            raise ValueError(
                f"{name} does not map rows of width {width} to {map_.n_features_out} finite numbers"
            )
    if parts.head is not None:
        parts.head[1].outputs(rows)


def _name(base_model: str | os.PathLike[str] | TransformerEncoder | None) -> str | None:
    """Return the name or path of a checkpoint, or None for a model that is passed as an object."""
    if not isinstance(base_model, str | os.PathLike | TransformerEncoder | None):
        raise TypeError(
            f"base_model is a {type(base_model).__name__}, but it must be the name or folder of a "
            "checkpoint, a TransformerEncoder or None; wrap a loaded model as "
            "TransformerEncoder((model, tokenizer)), and omit an encoder of your own"
        )
    model = base_model.model if isinstance(base_model, TransformerEncoder) else base_model
    return os.fspath(model) if isinstance(model, str | os.PathLike) else None
