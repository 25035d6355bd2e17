"""What commands read: texts of tables, or a matrix of embeddings. Nothing here imports torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from isoadapt.adapters._registry import NEED_TEACHER
from isoadapt.cli._options import WrongUsage, check_exist


class Columns(NamedTuple):
    """Columns of a table, and how they are read."""

    text: str | None = None  # one, or two as A,B; None finds them by name
    label: Any = None  # one or several
    encoding: str | None = None
    separately: bool = False  # whether the texts of two columns are embedded each alone

    def texts(self) -> list[str] | None:
        """Return the names of the columns of texts."""
        return None if self.text is None else self.text.split(",")


class Rows(NamedTuple):
    """Texts or pairs of files, or a matrix of embeddings (n, d), and their labels."""

    files: Sequence[Path]
    columns: Columns
    rows: Any
    labels: Any = None  # or, for a matrix, the vectors of a teacher
    of_texts: bool = True

    def vectors(self, encoder: Any) -> Any:
        """Embed texts; embeddings are there already."""
        return encoder.transform(self.rows) if self.of_texts else self.rows


def is_matrix(path: Path | str | None, model: object = None) -> bool:
    """Return whether a file holds embeddings: .npy, or Parquet without a model of its texts."""
    suffix = Path(path or "").suffix.lower()
    return suffix == ".npy" or (suffix == ".parquet" and model is None)


def read_matrix(path: Path, columns: Columns, labels: Path | None = None, **options: Any) -> Rows:
    """Read embeddings, and their labels from a column or from a file of their own."""
    if columns.separately:
        raise WrongUsage(
            f"--separately is for two columns of texts, but {str(path)!r} is read as a matrix: "
            "omit it, or name a table and the --model that embeds its texts"
        )
    if columns.label is not None and path.suffix.lower() == ".npy":
        raise WrongUsage(
            f"--label {columns.label}: a .npy matrix has no columns; use Parquet, or fit --labels"
        )

    from isoadapt.datasets._matrices import load_matrix

    options = {"features": columns.texts(), "label": columns.label or "label"} | options
    X, y = load_matrix(path.expanduser(), labels=labels, **options)
    return Rows([path], columns, X, y, of_texts=False)


def read_texts(files: Sequence[Path], columns: Columns) -> Rows:
    """Read the texts of all files, and the labels of the last one if a column is named."""
    if columns.separately and columns.label is not None:
        raise WrongUsage("--label cannot be combined with --separately: labels are of pairs")

    from isoadapt.datasets import load_table
    from isoadapt.datasets._tables import table_suffix

    rows: list[Any] = []
    for path in files:
        plain = len(files) > 1 and table_suffix(path) == ".txt"  # without columns
        names = None if plain else columns.texts()
        found, y = load_table(path, text=names, label=columns.label, encoding=columns.encoding)
        if columns.separately and not plain:
            if isinstance(found[0], str):
                raise WrongUsage(
                    f"--separately needs two columns of texts, but {str(path)!r} is read as one: "
                    "omit it, or name two columns with --text A,B"
                )
            found = [text for column in zip(*found, strict=True) for text in column]
        rows += found
    return Rows(files, columns, rows, y)


def read_general(value: str) -> str | list[Any] | None:
    """Read the sentences of a file; "auto" and "none" stand for themselves."""
    if value in ("auto", "none"):
        return None if value == "none" else value
    check_exist([Path(value)], [])
    return read_texts([Path(value)], Columns()).rows


def read_labelled(path: Path, columns: Columns) -> Rows:
    """Read a table whose labels are needed."""
    found = read_texts([path], columns._replace(label=columns.label or "label"))
    if found.labels is None:
        raise ValueError(f"{path} has no column 'label': name the column of labels with --label")
    return found


def read_to_audit(source: str, texts: Path | None, columns: Columns) -> Rows:
    """Read a matrix, without texts of its own, or the texts for a checkpoint."""
    if is_matrix(source):
        has_labels = columns.label is not None
        return read_matrix(Path(source), columns, with_labels=has_labels, mapped=True)

    from isoadapt.datasets._tables import SUFFIXES, table_suffix

    if texts is None or table_suffix(Path(source)) in SUFFIXES:
        raise WrongUsage(
            f"{source!r} is read as a checkpoint, which comes before its texts: isoadapt audit "
            "my-model texts.tsv (the name of a matrix must end in .npy or .parquet)"
        )
    check_exist([texts], [source])
    return read_texts([texts], columns)


def read_to_fit(
    name: str,
    files: Sequence[Path],
    columns: Columns,
    labels: Path | None,
    model: str | None,
    teacher: str | None,
) -> Rows:
    """Read what an adapter is fitted to, if the options of `isoadapt fit` agree with each other."""
    matrices = is_matrix(files[0], model), is_matrix(teacher)
    if name in NEED_TEACHER:
        if labels is not None or (columns.label is not None and not matrices[0]):
            raise WrongUsage(
                f"--label and --labels name labels, but {name} learns the vectors of --teacher: "
                "omit them"
            )
        are_matrices = all(matrices) and len(files) == 1
        if not (are_matrices if any(matrices) else model and teacher):
            raise WrongUsage(
                f"{name} needs --model, the classifier of the texts, and --teacher, the encoder "
                "whose vectors it learns; or two matrices, after --on and --teacher, with the "
                "vectors of the same texts in the same order"
            )
    elif teacher is not None or len(files) > 1:
        given = "--teacher is" if teacher is not None else "several files after --on are"
        raise WrongUsage(f"{given} for {', '.join(NEED_TEACHER)}, not for {name}")
    check_exist([*files, labels], [model, None if matrices[1] else teacher])
    if matrices[0]:
        found = read_matrix(files[0], columns, labels)
        if teacher is None:
            return found
        taught = read_matrix(Path(teacher), Columns(), with_labels=False)
        return found._replace(labels=taught.rows)
    if labels is not None:
        raise WrongUsage("--labels is for matrices. To name the column of a table, use --label")
    if model is None:
        raise WrongUsage(
            f"{str(files[0])!r} is read as a table of texts, which needs --model, the checkpoint "
            "that embeds them (the name of a matrix ends in .npy or .parquet)"
        )
    default = "label" if teacher is None and not columns.separately else None
    return read_texts(files, columns._replace(label=columns.label or default))
