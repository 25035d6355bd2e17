"""Reading matrices and texts for the commands, and what an adapter records about them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from isoadapt import TransformerEncoder
from isoadapt.cli._options import Source, WrongUsage
from isoadapt.datasets import load_table
from isoadapt.datasets._matrices import load_matrix
from isoadapt.encoders._identity import vector_source
from isoadapt.interop._pipeline import SOURCE, take_apart


def read_rows(
    source: Source,
    features: Sequence[str] | None = None,
    *,
    with_labels: bool = True,
    verbose: int = 1,
) -> tuple[Any, NDArray[Any] | None]:
    """Read a matrix or embed texts, and return X of shape (n, d) and y of shape (n,) or None.

    Without `with_labels`, and of texts that are embedded each alone, labels are not read.
    """
    label = source.label or "label"
    if source.is_matrix():
        if source.separately:
            raise WrongUsage(
                f"--separately is for two columns of texts, but {str(source.path)!r} is read as a "
                "matrix: omit it, or name a table and the --model that embeds its texts"
            )
        if source.label is not None and source.path.suffix.lower() == ".npy":
            raise WrongUsage(
                f"--label {label}: a .npy matrix has no columns. To give labels, use --labels y.npy"
            )
        return load_matrix(
            source.path,
            label=label,
            labels=source.labels,
            features=features,
            with_labels=with_labels,
        )
    if source.labels is not None:
        raise WrongUsage("--labels is for matrices. To name the column of a table, use --label")
    if source.model is None:
        raise WrongUsage(
            f"{str(source.path)!r} is read as a table of texts, which needs --model, the "
            "checkpoint that embeds them (the name of a matrix ends in .npy or .parquet)"
        )
    needed = with_labels and not source.separately
    texts, y = load_table(source.path, text=source.text, label=label if needed else source.label)
    if source.separately:
        texts, y = each_alone(texts, source.path), None
    encoder = TransformerEncoder(source.model, max_length=source.max_length, verbose=verbose)
    return encoder.transform(texts), y


def labelled_texts(
    path: Path, text: list[str] | None, label: str | None
) -> tuple[Any, NDArray[Any]]:
    """Read a table whose labels are needed; `label` names their column, None means "label"."""
    texts, labels = load_table(path, text=text, label=label or "label")
    if labels is None:
        raise ValueError(f"{path} has no column 'label': name the column of labels with --label")
    return texts, labels


def each_alone(texts: Sequence[Any], path: Path) -> list[str]:
    """Return the texts of the first column, then those of the second."""
    if isinstance(texts[0], str):
        raise WrongUsage(
            f"--separately needs two columns of texts, but one is read from {str(path)!r}: omit "
            "it, or name two columns with --text A,B"
        )
    return [text for column in zip(*texts, strict=True) for text in column]


def check_several_rows(X: Any, path: str | Path) -> None:
    """Raise ValueError for a file with fewer than two rows."""
    if len(X) < 2:
        raise ValueError(
            f"{path} holds {len(X)} row(s), but at least 2 are needed, because one row has "
            "no variance: name a file with more texts or embeddings"
        )


def model_to_record(source: Source) -> Any:
    """Return the encoder of the texts, or the name of the model given with a matrix."""
    model = source.model
    if model is None:
        return None
    if Path(model).expanduser().is_dir():  # an absolute path is found from any folder
        model = str(Path(model).expanduser().resolve())
    return model if source.is_matrix() else TransformerEncoder(model)


def data_to_record(source: Source, n_rows: int) -> dict[str, Any]:
    """Return what an adapter folder records about the rows of the fit."""
    data: dict[str, Any] = {"source": source.path.name, "rows": n_rows}
    if source.max_length is not None:
        data["max_length"] = source.max_length
    if source.separately:
        data["pairs"] = "separately"
    return data


def with_recorded_model(source: Source, origin: dict[str, Any]) -> Source:
    """Fill in the model and the maximum length from the adapter folder if not given."""
    data = origin["data"] if isinstance(origin["data"], dict) else {}
    if source.max_length is None and isinstance(data.get("max_length"), int):
        source = source._replace(max_length=data["max_length"])
    base = origin["base_model"]
    if source.is_matrix() or source.model is not None:
        return source
    if base is None or not Path(base).is_dir():
        raise WrongUsage(
            f"{str(source.path)!r} is read as a table of texts, and the model that the adapter "
            f"records ({base!r}) is not a folder here: pass --model"
        )
    return source._replace(model=base)


def check_recorded_source(adapter: Any, source: Source) -> None:
    """Raise ValueError if the texts are embedded by another encoder than the recorded one."""
    recorded = getattr(take_apart(adapter).first(), SOURCE, None)
    if recorded is None or source.is_matrix():
        return
    encoder = TransformerEncoder(source.model)
    kind = vector_source(encoder).kind
    if recorded.kind not in (kind, None):
        raise ValueError(
            f"the adapter was fitted to vectors with {recorded.kind}, but model={source.model!r} "
            f"gives vectors with {kind}: embed the texts in Python with a TransformerEncoder with "
            f"{recorded.kind}, and pass the matrix as a .npy file"
        )
    if not recorded.is_of(encoder._backbone()):
        raise ValueError(
            f"model={source.model!r} is another checkpoint (other weights or another tokenizer) "
            "than the one that the adapter was fitted with: pass that checkpoint or a copy of it "
            "with --model, or fit the adapter again"
        )
