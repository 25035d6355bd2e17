"""What ``isoadapt fit``, ``isoadapt transform`` and ``isoadapt merge`` do."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isoadapt import adapters
from isoadapt._settings import read_settings
from isoadapt._utils.files import atomic_path
from isoadapt._utils.folders import check_output_folder
from isoadapt.adapters import BaseAdapter

Say = Callable[[str], None]

_MATRICES = (".npy", ".parquet")
_ROWS = "The rows are those that the adapter was fitted to; judge it on others."


class Source(NamedTuple):
    """Where rows come from.

    Attributes
    ----------
    path : Path
        A table of texts, or a matrix.
    model : str or None
        The model that embeds texts.
    label : str or None
        Column of the labels; None is "label", where there is one.
    labels : Path or None
        File of labels beside a .npy matrix.
    max_length : int or None
        Tokens a text is cut to.
    text : list of str or None
        Columns of the texts, one or two; None finds them by name.
    """

    path: Path
    model: str | None = None
    label: str | None = None
    labels: Path | None = None
    max_length: int | None = None
    text: list[str] | None = None

    def is_matrix(self) -> bool:
        """Whether the file holds embeddings: .npy does, and Parquet unless there is a model.

        Returns
        -------
        bool
            False for texts.
        """
        suffix = self.path.suffix.lower()
        return suffix == ".npy" or (suffix == ".parquet" and self.model is None)


def fit(
    name: str, source: Source, out: Path, settings: Sequence[str], overwrite: bool, say: Say
) -> str:
    """Fit an adapter and save it as a folder.

    Parameters
    ----------
    name : str
        Class of the adapter, however spelt.
    source : Source
        The rows.
    out : Path
        The folder.
    settings : sequence of str
        Parameters, ``name=value``.
    overwrite : bool
        Whether an adapter there may be replaced.
    say : callable
        Takes notes on the way.

    Returns
    -------
    str
        A table of the figures before and after.
    """
    from isoadapt.interop import ADAPTER, save_adapter

    adapter = make_adapter(name, settings)
    check_output_folder(out, overwrite, content=ADAPTER, name="--out")
    X, y = read_rows(source)
    check_several_rows(X, source.path)
    if not any(setting.partition("=")[0].strip() == "head" for setting in settings):
        _take_head(adapter, source, y)
    if y is None and adapter._needs_y():
        raise ValueError(
            f"{type(adapter).__name__} needs labels, and {source.path} has none: name their column "
            f"with --label, or their file with --labels{_without_head(adapter)}"
        )
    say(f"Fitting {' '.join(repr(adapter).split())} to {len(X)} rows ...")
    with notes(say):
        before = _figures(X, _head_score(adapter, X, y))
        adapter.fit(X, y)
        adapted = adapter.transform(X)
        after = _figures(adapted, _score(adapter, X, y))
        metrics = {"before": before, "after": after}
        save_adapter(
            adapter,
            out,
            base_model=_base_model(source),
            data=_description(source, len(X)),
            metrics={f"{name}, on the rows it was fitted to": metrics[name] for name in metrics},
            overwrite=overwrite,
        )
    return f"{_table(metrics)}\n{_ROWS}\n\nAdapter: {out}"


def _without_head(adapter: BaseAdapter) -> str:
    """The way to do without labels, where there is one."""
    headless = None in adapter._parameter_constraints["head"]
    return ", or fit without a head by --set head=None" if headless else ""


def transform(folder: Path, source: Source, out: Path, say: Say) -> str:
    """Adapt embeddings by a saved adapter and write them.

    Parameters
    ----------
    folder : Path
        The adapter's folder.
    source : Source
        The rows; the model of texts may be the one that the folder names.
    out : Path
        A .npy or .parquet file.
    say : callable
        Takes notes on the way.

    Returns
    -------
    str
        What was written.
    """
    from isoadapt.interop import load_adapter, provenance, read_config

    if out.suffix.lower() not in _MATRICES:
        raise ValueError(f"{str(out)!r} must end in .npy or .parquet, which says what to write")
    if not out.expanduser().parent.is_dir():
        raise FileNotFoundError(f"{str(out.parent)!r} is no folder; make it first")
    if out.expanduser().is_dir():
        raise IsADirectoryError(f"{str(out)!r} is a folder; name a file for the result")
    if out.expanduser().resolve() == source.path.expanduser().resolve():
        raise ValueError(f"{str(out)!r} is the file that is read; name another for the result")
    adapter = load_adapter(folder)
    source = _completed(source, provenance(read_config(folder)))
    _check_source(adapter, source)
    X, _ = read_rows(source, features=getattr(adapter, "feature_names_in_", None))
    with notes(say):
        adapted = adapter.transform(X)
    with atomic_path(out.expanduser()) as path:
        _write(path, adapted, adapter.get_feature_names_out().tolist())
    return f"Wrote {len(adapted)} × {adapted.shape[1]} ({adapted.dtype}): {out}"


def merge(folder: Path, model: Path, out: Path, overwrite: bool) -> str:
    """Fold a saved adapter into a checkpoint.

    Parameters
    ----------
    folder : Path
        The adapter's folder.
    model : Path
        The checkpoint.
    out : Path
        Where the copy goes.
    overwrite : bool
        Whether a checkpoint there may be replaced.

    Returns
    -------
    str
        How to load it.
    """
    from isoadapt.interop import load_adapter, merge_into_checkpoint

    adapter = load_adapter(folder)
    merge_into_checkpoint(adapter, model, out, overwrite=overwrite)
    head = "the checkpoint's, for the adapter has none: predictions may change"
    if adapter.head_ is not None:
        head = "the adapter's"
    return (
        f"Merged: {out}\nIts head is {head}.\nLoad it with transformers alone: "
        f"AutoModelForSequenceClassification.from_pretrained({str(out)!r})"
    )


def make_adapter(name: str, settings: Sequence[str]) -> BaseAdapter:
    """Make an adapter from its name and its parameters as strings.

    Parameters
    ----------
    name : str
        Its class, in any case, with or without hyphens and the word "adapter".
    settings : sequence of str
        ``name=value``; values are JSON or Python literals, else strings.

    Returns
    -------
    BaseAdapter
        Not fitted.

    Raises
    ------
    ValueError
        If there is no such adapter, or a parameter is unknown or not admissible.
    """
    classes = {_short(each): getattr(adapters, each) for each in adapters.__all__}
    if _short(name) not in classes:
        raise ValueError(f"{name!r} is no adapter; choose from {', '.join(adapters.__all__)}")
    cls = classes[_short(name)]
    adapter = cls(**read_settings(settings, cls._get_param_names(), cls.__name__))
    adapter._validate_params()
    return adapter


def read_rows(
    source: Source, features: Sequence[str] | None = None
) -> tuple[Any, NDArray[Any] | None]:
    """Read a matrix, or embed texts.

    Parameters
    ----------
    source : Source
        Where they are.
    features : sequence of str, default=None
        Columns of a Parquet matrix that are wanted.

    Returns
    -------
    X : ndarray or DataFrame of shape (n, d)
        Embeddings.
    y : ndarray of shape (n,) or None
        Labels.
    """
    from isoadapt import TransformerEncoder
    from isoadapt.datasets import load_matrix, load_table

    label = source.label or "label"
    if source.is_matrix():
        if source.label is not None and source.path.suffix.lower() == ".npy":
            raise ValueError(f"--label {label}: a .npy matrix has no columns; use --labels y.npy")
        return load_matrix(source.path, label=label, labels=source.labels, features=features)
    if source.labels is not None:
        raise ValueError("--labels goes with a matrix; name the column of a table with --label")
    if source.model is None:
        raise ValueError(
            f"{str(source.path)!r} is taken for a table of texts, which needs --model, the "
            "checkpoint that embeds them (a matrix ends in .npy or .parquet)"
        )
    texts, y = load_table(source.path, text=source.text, label=label)
    encoder = TransformerEncoder(source.model, max_length=source.max_length, verbose=1)
    return encoder.transform(texts), y


def check_several_rows(X: Any, path: str | Path) -> None:
    """Refuse a file with a single row, which has no variance.

    Parameters
    ----------
    X : sequence
        The rows or texts of the file.
    path : str or Path
        The file.

    Raises
    ------
    ValueError
        If there are fewer than two.
    """
    if len(X) < 2:
        raise ValueError(
            f"{path} holds {len(X)} row(s), but at least 2 are needed, because one row has "
            "no variance: name a file with more texts or embeddings"
        )


def _check_source(adapter: BaseAdapter, source: Source) -> None:
    """Refuse texts embedded by another encoder than the one that a saved adapter records."""
    from isoadapt import TransformerEncoder
    from isoadapt.encoders import vector_source
    from isoadapt.interop import SOURCE

    recorded = getattr(adapter, SOURCE, None)
    if recorded is None or source.is_matrix():
        return
    encoder = TransformerEncoder(source.model)
    kind = vector_source(encoder).kind
    if recorded.kind not in (kind, None):
        raise ValueError(
            f"the adapter was fitted to vectors with {recorded.kind}, but model={source.model!r} "
            f"gives those with {kind}: embed the texts in Python by a TransformerEncoder with "
            f"{recorded.kind}, and pass the matrix as a .npy file"
        )
    if not recorded.is_of(encoder._backbone()):
        raise ValueError(
            f"model={source.model!r} is another checkpoint (other weights or another tokenizer) "
            "than the one that the adapter was fitted with: name that one or a copy of it by "
            "--model, or fit the adapter again"
        )


def _take_head(adapter: BaseAdapter, source: Source, y: NDArray[Any] | None) -> None:
    """Give an adapter the head of the model.

    An adapter that needs no head keeps none without labels, or if the head is a multi-label one.
    """
    from isoadapt import TransformerEncoder
    from isoadapt.encoders import encoder_head
    from isoadapt.heads import MultiLabelHead

    if source.model is None or (y is None and adapter.head is None):
        return
    head = encoder_head(TransformerEncoder(source.model))
    if head is not None and not (adapter.head is None and isinstance(head, MultiLabelHead)):
        adapter.set_params(head=head)


def _completed(source: Source, origin: dict[str, Any]) -> Source:
    """Take model and length from what the adapter's folder says, where they are not given."""
    data = origin["data"] if isinstance(origin["data"], dict) else {}
    if source.max_length is None and isinstance(data.get("max_length"), int):
        source = source._replace(max_length=data["max_length"])
    base = origin["base_model"]
    if source.is_matrix() or source.model is not None:
        return source
    if base is None or not Path(base).is_dir():
        raise ValueError(
            f"{str(source.path)!r} is taken for a table of texts, and the adapter's own model "
            f"({base!r}) is no folder here: pass --model"
        )
    return source._replace(model=base)


def _short(name: str) -> str:
    """Spelling that does not matter."""
    plain = name.lower().replace("-", "").replace("_", "")
    return plain.removesuffix("adapter")


def _figures(X: Any, score: dict[str, float]) -> dict[str, float]:
    from isoadapt.metrics import isotropy_report

    report = isotropy_report(X)
    return {
        "isoscore": report.isoscore,
        "isoscore_corrected": report.isoscore_corrected,
        "ev1": report.ev1,
        **score,
    }


def _head_score(adapter: BaseAdapter, X: Any, y: NDArray[Any] | None) -> dict[str, float]:
    """Score of the head on the embeddings as they are, where it knows the labels."""
    if y is None or not _scores(adapter):
        return {}
    head = adapter._resolve_head(np.asarray(X), y)
    if head is None or (head.classes_ is not None and not {*y.tolist()} <= {*head.classes_}):
        return {}
    return {_metric(adapter): head.score(np.asarray(X), y)}


def _score(adapter: BaseAdapter, X: Any, y: NDArray[Any] | None) -> dict[str, float]:
    if y is None or not _scores(adapter):
        return {}
    return {_metric(adapter): adapter.score(X, y)}


def _scores(adapter: BaseAdapter) -> bool:
    """Whether an adapter predicts something that labels can be compared with."""
    return adapter._head_kind() is not None


def _metric(adapter: BaseAdapter) -> str:
    return "accuracy" if adapter._head_kind() == "classifier" else "r2"


def _table(metrics: dict[str, dict[str, float]]) -> str:
    names = {"isoscore": "IsoScore", "isoscore_corrected": "  corrected", "ev1": "EV1", "r2": "R²"}
    lines = [f"{'':16}{'before':>10}{'after':>10}"]
    for key, value in metrics["after"].items():
        before = metrics["before"].get(key)
        shown = "" if before is None else f"{before:.4f}"
        lines.append(f"{names.get(key, key):16}{shown:>10}{value:>10.4f}")
    return "\n".join(lines)


def _base_model(source: Source) -> Any:
    """The encoder of texts, or the model that is said to go with a matrix."""
    from isoadapt import TransformerEncoder

    model = source.model
    if model is None:
        return None
    if Path(model).expanduser().is_dir():  # by its whole name, so that it is found again
        model = str(Path(model).expanduser().resolve())
    return model if source.is_matrix() else TransformerEncoder(model)


def _description(source: Source, n_rows: int) -> dict[str, Any]:
    data: dict[str, Any] = {"source": source.path.name, "rows": n_rows}
    if source.max_length is not None:
        data["max_length"] = source.max_length
    return data


def _write(path: Path, adapted: NDArray[Any], names: list[str]) -> None:
    if path.suffix.lower() == ".npy":
        with path.open("wb") as file:
            np.save(file, adapted)
        return
    from isoadapt._utils.optional import import_optional

    pyarrow = import_optional("pyarrow", feature="Writing Parquet", extra="data")
    parquet = import_optional("pyarrow.parquet", feature="Writing Parquet", extra="data")
    columns = [np.ascontiguousarray(column) for column in adapted.T]
    parquet.write_table(pyarrow.table(columns, names=names), path)


@contextmanager
def notes(say: Say) -> Iterator[None]:
    """Turn warnings in the block into notes, each said once.

    Parameters
    ----------
    say : callable
        Takes the notes.

    Yields
    ------
    None
        Nothing.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for message in dict.fromkeys(" ".join(str(warning.message).split()) for warning in caught):
        say(f"Note: {message}")
