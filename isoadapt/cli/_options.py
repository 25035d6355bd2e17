"""What several commands share: options, parameters after ``--set``, checks and messages."""

import ast
import json
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from typer import Option
from typer.core import TyperCommand

TABLE = (
    "Table (.tsv, .csv or .xlsx with a header, .jsonl, .parquet; - is standard input). Columns: "
    "sentence or text (or sentence1 and sentence2) and label."
)

Table = Annotated[Path | None, Option(help=TABLE)]
Text = Annotated[
    str | None,
    Option(help="Column of texts or vectors, or two as A,B for pairs. Default: found by name."),
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
    Option(help="For teacher-readout: encoder or matrix whose vectors the adapter learns."),
]
TeacherLayers = Annotated[
    str, Option(metavar="N", help="Number of the teacher's last layers to run; 0: pooled states.")
]
General = Annotated[
    str, Option(metavar="FILE", help="Sentences on all subjects to add to the texts, or none.")
]
Head = Annotated[
    str, Option(help="auto: the checkpoint's. For another task, a new one: logistic or ridge.")
]
ClassNames = Annotated[
    str | None, Option(metavar="LABEL=NAME,...", help="The checkpoint's names for your labels.")
]
Label = Annotated[str | None, Option(help="Column of labels. Default: label.")]
Encoding = Annotated[str | None, Option(help="Encoding of text files. Default: UTF-8.")]
MaxLength = Annotated[int | None, Option(help="Maximum number of tokens of a text.")]
AsJson = Annotated[bool, Option("--json", help="Print the result as JSON.")]
Quiet = Annotated[
    bool, Option("--quiet", help="Print the result and errors only, no progress or notes.")
]
Overwrite = Annotated[bool, Option("--overwrite", help="Replace an existing result.")]
TITLES = {"isoscore": "IsoScore", "isoscore_corrected": "  corrected", "ev1": "EV1", "r2": "R²"}
TITLES |= {"r2_general": "  general", "matthews": "Matthews", "anisotropy1": "anisotropy_1"}
_CAUGHT: ContextVar[list[warnings.WarningMessage]] = ContextVar("warnings of the command")


def check_exist(files: Iterable[Path | None], models: Iterable[str | None]) -> None:
    """Raise FileNotFoundError for a file, or for a model given by its path, that is absent."""
    for path in files:
        if path not in (None, Path("-")) and not path.expanduser().exists():
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


def read_class_names(text: str | None) -> dict[str, str] | None:
    """Split the value of ``--class-names`` into names by label."""
    pairs = [each.partition("=")[::2] for each in (text or "").split(",")]
    return {label.strip(): name.strip() for label, name in pairs} if text else None


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
            figures = figures | {"notes": self.noted(figures.get("notes", ()))}
            plain = json.loads(json.dumps(figures), parse_constant=lambda _: None)
            text = json.dumps(plain, indent=2)
        typer.echo(text)

    @contextmanager
    def notes(self) -> Iterator[None]:
        """Print each distinct warning of the block once, as a note, unless the command is quiet."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            token = _CAUGHT.set(caught)
            try:
                yield
            finally:  # a note may be the cause of an error
                for message in self.noted():
                    self.say(f"Note: {message}")
                _CAUGHT.reset(token)

    def noted(self, others: Iterable[str] = ()) -> list[str]:
        """Return other notes and those so far, which results in JSON and HTML show too."""
        shown = (" ".join(str(warning.message).split()) for warning in _CAUGHT.get([]))
        return list(dict.fromkeys([*others, *shown]))


class ManyFilesCommand(TyperCommand):
    """A command whose ``--on`` takes several files, as a shell expands ``*.tsv``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert ``--on`` before each further file, which has a dot, unlike a name."""
        given, flag = [], ""
        for previous, each in pairwise(["", *args]):
            if each.startswith("-"):
                flag = each
            elif previous != flag == "--on" and "." in each:
                given.append(flag)
            elif previous != flag == "--set" and "=" in each:
                raise WrongUsage(
                    f"--set {previous} {each}: repeat the option: --set {previous} --set {each}"
                )
            given.append(each)
        return super().parse_args(ctx, given)


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


def recorded_model(given: Path | str | None, recorded: Any) -> Path:
    """Return the checkpoint that was given, or else the one that an adapter folder records."""
    if given is None and (recorded is None or not Path(recorded).is_dir()):
        raise WrongUsage(
            f"the model that the adapter records ({recorded!r}) is not a folder here: pass --model "
            "or, for an encoder of your own, a matrix of its vectors (.npy) to isoadapt transform"
        )
    return Path(given or recorded)
