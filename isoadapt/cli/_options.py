"""What several commands share: options, parameters after ``--set``, messages, and reading rows.

The help of the commands is made from this module, so readers are imported on use.
"""

import ast
import json
import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from typer import Option
from typer.core import TyperCommand

from isoadapt.adapters._registry import NEED_TEACHER

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from isoadapt import TransformerEncoder

TABLE = (
    "Table (.tsv or .csv with a header, .jsonl, .parquet). Columns: sentence or text (or sentence1 "
    "and sentence2) and label."
)

Table = Annotated[Path | None, Option(help=TABLE)]
Text = Annotated[
    str | None,
    Option(
        help="Column of texts, or two columns as A,B, whose texts are embedded together as pairs. "
        "Default: found by name. Of a Parquet matrix: the column of vectors, if it has several."
    ),
]
Separately = Annotated[
    bool,
    Option(
        "--separately",
        help="Embed the texts of two columns each alone, as for similarity and search, instead of "
        "as pairs: the rows of the first column, then those of the second. Labels are not used.",
    ),
]
Teacher = Annotated[
    str | None,
    Option(
        help="For teacher-readout: the encoder whose vectors it learns, such as the base model. "
        "Its own maximum length applies to it. With a matrix: the matrix of its vectors."
    ),
]
Label = Annotated[str | None, Option(help="Column of labels. Default: label.")]
MaxLength = Annotated[int | None, Option(help="Maximum number of tokens of a text.")]
AsJson = Annotated[bool, Option("--json", help="Print the result as JSON.")]
Quiet = Annotated[
    bool, Option("--quiet", help="Print the result and errors only, no progress or notes.")
]
Overwrite = Annotated[bool, Option("--overwrite", help="Replace an existing result.")]
TITLES = {"isoscore": "IsoScore", "isoscore_corrected": "  corrected", "ev1": "EV1", "r2": "R²"}
TITLES |= {"matthews": "Matthews", "anisotropy1": "anisotropy_1"}  # of figures in tables
_REPEATED = ("--set", "--on")  # flags that several values may follow


class Source(NamedTuple):
    """A file of rows, the model that embeds its texts, and its labels or its teacher."""

    path: Path
    model: str | None = None
    label: Any = None  # a column, or several; None means "label" if there is one
    labels: Path | None = None  # a file with the labels of a .npy matrix
    max_length: int | None = None
    text: tuple[str, ...] | None = None  # one column, or two of pairs; None finds them by name
    separately: bool = False  # whether the texts of two columns are embedded each alone
    more: tuple[Path, ...] = ()  # further files of texts
    teacher: str | None = None  # the encoder whose vectors take the place of labels
    pooling: Any = "auto"  # as of TransformerEncoder
    table: "tuple[list[Any], NDArray[Any] | None] | None" = None  # texts and labels, once read

    def is_matrix(self) -> bool:
        """Return whether the file holds embeddings: .npy, or Parquet without a model."""
        suffix = self.path.suffix.lower()
        return suffix == ".npy" or (suffix == ".parquet" and self.model is None)

    def teacher_file(self) -> Path | None:
        """Return the matrix of the teacher's vectors, if it is one instead of an encoder."""
        path = Path(self.teacher or "")
        return path if path.suffix.lower() in (".npy", ".parquet") else None

    def encoder(self, verbose: int = 0) -> "TransformerEncoder":
        """Return the encoder of the texts."""
        from isoadapt import TransformerEncoder

        return TransformerEncoder(
            self.model, pooling=self.pooling, max_length=self.max_length, verbose=verbose
        )

    def checked(self, *, with_labels: bool = True) -> "Source":
        """Look for the files and read the texts, which takes no torch."""
        file = self.teacher_file()
        models = [self.model, self.teacher if file is None else None]
        check_exist([self.path, *self.more, self.labels, file], models)
        if self.is_matrix():
            return self
        return self._replace(table=read_texts(self, with_labels))


def check_exist(files: Iterable[Path | None], models: Iterable[str | None]) -> None:
    """Raise FileNotFoundError for a file, or a model that is no name on the Hub, that is absent."""
    for path in files:
        if path is not None and not path.expanduser().exists():
            raise FileNotFoundError(f"{str(path)!r} does not exist")
    for model in models:
        is_path = model is not None and (model[:1] in ("/", ".", "~") or model.count("/") > 1)
        if model is not None and is_path and not Path(model).expanduser().is_dir():
            raise FileNotFoundError(f"the model {model!r} is not a folder")


def check_matrix_file(out: Path, source: Path, overwrite: bool) -> None:
    """Raise an error unless the matrix `out` can be written, before anything is read."""
    if out.suffix.lower() not in (".npy", ".csv", ".parquet"):
        raise WrongUsage(
            f"{str(out)!r} must end in .npy, .csv or .parquet, which determines the format"
        )
    if not out.expanduser().parent.is_dir():
        raise FileNotFoundError(f"{str(out.parent)!r} is not a folder; create it first")
    if out.expanduser().resolve() == source.expanduser().resolve():
        raise WrongUsage(f"{str(out)!r} is the input file; give another name for the result")
    check_file(out.expanduser(), overwrite)


def check_file(path: Path, overwrite: bool) -> None:
    """Raise FileExistsError if there is a folder, or a file that may not be replaced."""
    if path.is_dir() or (path.exists() and not overwrite):
        raise FileExistsError(
            f"{str(path)!r} exists; choose another name, or allow it to be replaced (--overwrite)"
        )


def check_teacher(name: str, source: Source) -> None:
    """Raise WrongUsage unless a method that needs a teacher has both encoders or both matrices."""
    if name in NEED_TEACHER:
        if source.labels is not None or (source.label is not None and not source.is_matrix()):
            raise WrongUsage(
                f"--label and --labels name labels, but {name} learns the vectors of --teacher: "
                "omit them"
            )
        matrices = [source.is_matrix(), source.teacher_file() is not None]
        is_complete = source.model is not None and source.teacher is not None
        if any(matrices):
            is_complete = all(matrices) and not source.more
        if not is_complete:
            raise WrongUsage(
                f"{name} needs --model, the classifier that encodes the texts, and --teacher, the "
                "encoder whose vectors it learns; or two matrices (.npy, .parquet), after --on and "
                "--teacher, with the vectors of the same texts in the same order"
            )
    elif source.teacher is not None or source.more:
        given = "--teacher is" if source.teacher is not None else "several files after --on are"
        raise WrongUsage(f"{given} for {', '.join(NEED_TEACHER)}, not for {name}")


def columns(text: str | None) -> tuple[str, ...] | None:
    """Split the value of ``--text`` into column names."""
    return None if text is None else tuple(text.split(","))


class WrongUsage(ValueError):
    """Options or values of the command line that are not admissible: exit status 2."""


class Console(NamedTuple):
    """What a command prints: its result on standard output, all else on standard error."""

    as_json: bool = False
    quiet: bool = False

    @property
    def verbose(self) -> int:
        """Value of the parameter ``verbose`` of estimators."""
        return int(not self.quiet)

    def say(self, message: str) -> None:
        """Print a message to standard error, unless the command is quiet."""
        if not self.quiet:
            typer.echo(message, err=True)

    def show(self, text: str, figures: dict[str, Any]) -> None:
        """Print the result of the command, as text or as JSON, where NaN becomes null."""
        if self.as_json:
            plain = json.loads(json.dumps(figures), parse_constant=lambda _: None)
            text = json.dumps(plain, indent=2)
        typer.echo(text)

    @contextmanager
    def notes(self) -> Iterator[None]:
        """Print each distinct warning of the block once, as a note, unless the command is quiet."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            try:
                yield
            finally:  # a note may be the cause of an error
                shown = (" ".join(str(warning.message).split()) for warning in caught)
                for message in dict.fromkeys(shown):
                    self.say(f"Note: {message}")


class SettingsCommand(TyperCommand):
    """A command that accepts several settings after one ``--set``, and files after ``--on``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments after inserting the flag before each further value."""
        return super().parse_args(ctx, list(_flagged(args)))


def _flagged(args: Sequence[str]) -> Iterator[str]:
    """Insert the flag before each further setting or file, but not before a name."""
    flag = ""
    for previous, argument in pairwise(["", *args]):
        if argument.startswith("-"):
            flag = argument if argument in _REPEATED else ""
        elif flag not in ("", previous) and re.search("[=.]", argument):
            yield flag
        yield argument


def read_settings(settings: Sequence[str], known: Collection[str], taker: str) -> dict[str, Any]:
    """Read ``name=value``, where a value is a JSON or Python literal or else a string."""
    values: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = (part.strip() for part in setting.partition("="))
        if not equals or name not in known:
            raise WrongUsage(
                f"--set {setting}: {taker} takes name=value with the names {', '.join(known)}"
            )
        values[name] = text
        for parse in (ast.literal_eval, json.loads):
            with suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
                values[name] = parse(text)
    return values


def read_matrix(source: Source, **options: Any) -> "tuple[Any, NDArray[Any] | None]":
    """Read X (n, d), and y: labels (n,), None or, with a teacher, its vectors (n, d_t)."""
    if source.separately:
        raise WrongUsage(
            f"--separately is for two columns of texts, but {str(source.path)!r} is read as a "
            "matrix: omit it, or name a table and the --model that embeds its texts"
        )
    if source.label is not None and source.path.suffix.lower() == ".npy":
        raise WrongUsage(
            f"--label {source.label}: a .npy matrix has no columns. Use Parquet, or fit "
            "--labels y.npy"
        )

    from isoadapt.datasets._matrices import load_matrix

    options = {"features": source.text, "label": source.label or "label"} | options
    X, y = load_matrix(source.path, labels=source.labels, **options)
    file = source.teacher_file()
    return X, y if file is None else load_matrix(file.expanduser(), with_labels=False)[0]


def read_texts(source: Source, with_labels: bool) -> tuple[list[Any], "NDArray[Any] | None"]:
    """Return the texts of all files, and the labels, which several files do not have."""
    if source.labels is not None:
        raise WrongUsage("--labels is for matrices. To name the column of a table, use --label")
    if source.model is None:
        raise WrongUsage(
            f"{str(source.path)!r} is read as a table of texts, which needs --model, the "
            "checkpoint that embeds them (the name of a matrix ends in .npy or .parquet)"
        )

    from isoadapt.datasets import load_table
    from isoadapt.datasets._tables import table_suffix

    if with_labels and source.separately and source.label is not None:
        raise WrongUsage("--label cannot be combined with --separately: labels are of pairs")
    needed = with_labels and not source.separately and source.teacher is None
    label = source.label or ("label" if needed else None)
    texts: list[Any] = []
    for path in (source.path, *source.more):
        plain = bool(source.more) and table_suffix(path) == ".txt"  # without columns
        found, y = load_table(path, text=None if plain else source.text, label=label)
        if source.separately and not plain:
            if isinstance(found[0], str):
                raise WrongUsage(
                    f"--separately needs two columns of texts, but one is read from {str(path)!r}: "
                    "omit it, or name two columns with --text A,B"
                )
            found = [text for column in zip(*found, strict=True) for text in column]
        texts += found
    return texts, y


def labelled_texts(rows: Source) -> tuple[Any, "NDArray[Any]"]:
    """Read a table whose labels are needed."""
    from isoadapt.datasets import load_table

    texts, labels = load_table(rows.path, text=rows.text, label=rows.label or "label")
    if labels is None:
        raise ValueError(
            f"{rows.path} has no column 'label': name the column of labels with --label"
        )
    return texts, labels


def recorded_model(given: Path | str | None, recorded: Any) -> Path:
    """Return the checkpoint that was given, or else the one that an adapter folder records."""
    if given is None and (recorded is None or not Path(recorded).is_dir()):
        raise WrongUsage(
            f"the model that the adapter records ({recorded!r}) is not a folder here: pass --model"
        )
    return Path(given or recorded)
