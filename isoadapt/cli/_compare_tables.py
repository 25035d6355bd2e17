"""The options of ``isoadapt compare`` and its tables, which are read without torch."""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from isoadapt._utils.files import check_writable
from isoadapt._utils.imports import import_optional
from isoadapt._utils.messages import choices
from isoadapt.adapters._registry import METHODS, NAMES, VARIANTS
from isoadapt.cli._options import Console, WrongUsage, check_exist
from isoadapt.cli._sources import Columns, read_labelled, read_texts

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Run(NamedTuple):
    """The options of a comparison: what it reads, how it is run, and what it prints and writes."""

    table: Path  # to fit to
    columns: Columns  # of this one and those like it
    given: dict[str, Path]  # further tables, by the names of their options
    of_pairs: Columns
    model: str
    max_length: int | None
    teacher: str | None
    head: str  # that all rows share
    class_names: dict[str, str] | None
    adapters: list[str]
    encoder_saw: bool | None
    jobs: int | None
    cache: Path | None
    out: Path | None
    page: Path | None  # HTML file
    with_texts: bool  # whether the page holds texts of the tables
    full: bool  # whether all figures are printed
    console: Console


class Tables(NamedTuple):
    """What the tables hold, by the names of compare_adapters."""

    texts: dict[str, list[Any]]  # of "X", "X_test" and the vectors of the uses
    labels: "dict[str, NDArray[Any]]"  # of "y" and "y_test"
    uses: dict[str, dict[str, Any]]  # parameters other than vectors, by the options of tables
    files: list[str]  # name and digest of each table


def read(run: Run) -> Tables:
    """Read all tables, if the options agree with each other and the results can be written."""
    _check(run)
    paths = [run.table, *run.given.values()]
    check_exist(paths, [run.model, run.teacher])
    if run.out is not None:
        check_writable(run.out)
    if run.page is not None:
        import_optional("matplotlib", feature="--html", extra="plot")
        check_writable(run.page.parent)
    rows = {"": read_labelled(run.table, run.columns)}
    if "test" in run.given:
        rows["_test"] = read_labelled(run.given["test"], run.columns)
    texts = {f"X{ending}": each.rows for ending, each in rows.items()}
    labels = {f"y{ending}": each.labels for ending, each in rows.items()}
    uses: dict[str, dict[str, Any]] = {}
    for option, reader in READERS.items():
        if option in run.given:
            own, uses[option] = reader(run)  # texts of vectors, and other parameters
            texts |= own
    files = [f"{path} (sha256 {_digest(path)})" for path in paths]
    return Tables(texts, labels, uses, files)


def _check(run: Run) -> None:
    """Raise WrongUsage for options that exclude each other, or need others."""
    if run.encoder_saw and "test" not in run.given:
        raise WrongUsage(
            f"--encoder-saw: the encoder was trained on {run.table}, so other rows must be "
            "judged: name a table that it has not seen with --test"
        )
    if any(run.of_pairs[:2]) and "pairs" not in run.given:
        raise WrongUsage("--pairs-text and --pairs-score name columns of --pairs: give it too")
    search = {"queries", "documents", "relevant"}
    if run.given.keys() & search not in (set(), {"queries"}, search):
        raise WrongUsage(
            "--queries, --documents and --relevant must be given together, or --queries alone, "
            "with a table of the columns query and document"
        )
    page = run.page
    if run.with_texts and page is None:
        raise WrongUsage("--with-texts is about the file of --html FILE: give this option too")
    if page is not None and (page.suffix.lower() != ".html" or page.is_dir()):
        raise WrongUsage(f"--html {str(page)!r} must be a file whose name ends in .html")
    registered = METHODS if run.teacher is None else NAMES
    known = [*registered, *registered.values(), *(variant.name for variant in VARIANTS)]
    for name in run.adapters:
        if name in ("fast", "all") and len(run.adapters) > 1:
            raise WrongUsage(f"--adapters {name} cannot be combined with other adapters")
        if name not in ("fast", "all", *known):
            why = f"is not the name of an adapter; {choices(name, known)}"
            if name in NAMES or name in NAMES.values():
                why = "learns the vectors of another encoder: name it with --teacher"
            raise WrongUsage(f"--adapters {name!r} {why}")


def _digest(path: Path) -> str:
    """Return the first 12 digits of the SHA-256 of a file, or "folder"."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12] if path.is_file() else "folder"


def _pairs(run: Run) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """Read the texts of both sides of the pairs of a table, and their scores."""
    path, label = run.given["pairs"], run.of_pairs.label or "label"
    table = read_texts([path], run.of_pairs._replace(label=label))
    pairs, scores = table.rows, table.labels
    if scores is None or scores.dtype.kind not in "if" or not isinstance(pairs[0], tuple):
        raise ValueError(
            f"--pairs {path} must have two columns of texts, sentence1 and sentence2, and label, "
            "the similarity of the pair as a number; name others with --pairs-text A,B and "
            "--pairs-score C"
        )
    first, second = map(list, zip(*pairs, strict=True))
    return {"A": first, "B": second}, {"scores": scores.astype(float)}


def _search(run: Run) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """Read queries, documents, and the row numbers of the documents relevant to each query."""
    from isoadapt.datasets._relevance import load_relevance

    rest = run.given.get("documents"), run.given.get("relevant"), run.columns.encoding
    queries, documents, relevant = load_relevance(run.given["queries"], *rest)
    return {"queries": queries, "documents": documents}, {"relevant": relevant}


def _foreign(run: Run) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """Read texts of another kind."""
    columns = run.columns._replace(label=None)
    return {"foreign": read_texts([run.given["foreign"]], columns).rows}, {}


READERS = {"pairs": _pairs, "queries": _search, "foreign": _foreign}  # by the options of tables
