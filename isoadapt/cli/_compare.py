"""Implementation of ``isoadapt compare``: its options and tables, which are read first."""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from isoadapt._utils.files import check_writable
from isoadapt._utils.imports import import_optional
from isoadapt._utils.messages import choices
from isoadapt.adapters._registry import METHODS, NAMES, VARIANTS
from isoadapt.cli._options import Console, Source, WrongUsage, check_exist, labelled_texts

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Run(NamedTuple):
    """What a comparison reads, how it is run, and what it prints and writes."""

    rows: Source  # to fit to; the other tables are read like it
    head: str  # that all rows share
    tables: dict[str, Path]  # further ones, by the names of their options
    of_pairs: tuple[tuple[str, ...] | None, str | None]  # columns of texts and of scores
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
    uses: dict[str, dict[str, Any]]  # parameters that are no vectors, by the classes of the uses
    files: list[str]  # name and digest of each table


UseData = tuple[dict[str, list[Any]], dict[str, Any]]  # texts of vectors, and other parameters


def compare(adapters: list[str], options: Run) -> None:
    """Read the tables, embed the texts, compare the adapters, and print the comparison."""
    chosen = _check_usage(adapters, options)
    files = [options.rows.path, *options.tables.values()]
    check_exist(files, [options.rows.model, options.rows.teacher])
    out, page = (path and path.expanduser() for path in (options.out, options.page))
    if out is not None:
        check_writable(out)
    if page is not None:
        import_optional("matplotlib", feature="--html", extra="plot")
        check_writable(page.parent)
    tables = _read(options)

    from isoadapt.cli._comparison import run  # here, because it imports torch

    run(tables, chosen, options._replace(out=out, page=page))


def _check_usage(adapters: list[str], options: Run) -> Any:
    """Return the adapters to compare; raise WrongUsage for options that exclude each other."""
    tables = options.tables.keys()
    if options.encoder_saw and "test" not in tables:
        raise WrongUsage(
            f"--encoder-saw: the encoder was trained on {options.rows.path}, so other rows must be "
            "judged: name a table that it has not seen with --test"
        )
    if any(options.of_pairs) and "pairs" not in tables:
        raise WrongUsage("--pairs-text and --pairs-score name columns of --pairs: give it too")
    search = {"queries", "documents", "relevant"}
    if tables & search not in (set(), {"queries"}, search):
        raise WrongUsage(
            "--queries, --documents and --relevant must be given together, or --queries alone, "
            "with a table of the columns query and document"
        )
    page = options.page
    if page is not None and (page.suffix.lower() != ".html" or page.is_dir()):
        raise WrongUsage(f"--html {str(page)!r} must be a file whose name ends in .html")
    registered = METHODS if options.rows.teacher is None else NAMES
    known = [*registered, *registered.values(), *(variant.name for variant in VARIANTS)]
    for name in adapters:
        if name in ("fast", "all") and len(adapters) > 1:
            raise WrongUsage(f"--adapters {name} cannot be combined with other adapters")
        if name not in ("fast", "all", *known):
            why = f"is not the name of an adapter; {choices(name, known)}"
            if name in NAMES or name in NAMES.values():
                why = "learns the vectors of another encoder: name it with --teacher"
            raise WrongUsage(f"--adapters {name!r} {why}")
    return adapters[0] if adapters in (["fast"], ["all"]) else adapters or "fast"


def _read(options: Run) -> Tables:
    """Read all tables."""
    rows, given = options.rows, options.tables
    texts: dict[str, list[Any]] = {}
    labels: dict[str, Any] = {}
    uses: dict[str, dict[str, Any]] = {}
    texts["X"], labels["y"] = labelled_texts(rows)
    if "test" in given:
        texts["X_test"], labels["y_test"] = labelled_texts(rows._replace(path=given["test"]))
    for use, (table, read) in READERS.items():
        if table in given:
            own, uses[use] = read(options)
            texts |= own
    files = [f"{path} (sha256 {_digest(path)})" for path in (rows.path, *given.values())]
    return Tables(texts, labels, uses, files)


def _digest(path: Path) -> str:
    """Return the first 12 digits of the SHA-256 of a file, or "folder"."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12] if path.is_file() else "folder"


def _pairs(options: Run) -> UseData:
    """Read the texts of both sides of the pairs of a table, and their scores."""
    from isoadapt.datasets import load_table

    path, (columns, score) = options.tables["pairs"], options.of_pairs
    texts, scores = load_table(path, text=columns, label=score or "label")
    if scores is None or scores.dtype.kind not in "if" or not isinstance(texts[0], tuple):
        raise ValueError(
            f"--pairs {path} must have two columns of texts, sentence1 and sentence2, and label, "
            "the similarity of the pair as a number; name others with --pairs-text A,B and "
            "--pairs-score C"
        )
    first, second = ([str(pair[side]) for pair in texts] for side in (0, 1))
    return {"A": first, "B": second}, {"scores": scores.astype(float)}


def _search(options: Run) -> UseData:
    """Read queries, documents, and the row numbers of the documents relevant to each query."""
    from isoadapt.datasets import load_table

    given = options.tables
    path = given.get("relevant", given["queries"])
    pairs, _ = load_table(path, text=("query", "document"), label=None)
    queries, documents = ({text: text for text in side} for side in zip(*pairs, strict=True))
    if "relevant" in given:
        queries, documents = _by_id(given["queries"]), _by_id(given["documents"])
    numbers = {name: number for number, name in enumerate(documents)}
    relevant: dict[str, set[int]] = {}
    for row, (query, document) in enumerate(pairs, 1):
        if query not in queries or document not in documents:
            raise ValueError(
                f"--relevant {path}, row {row}: there is no query {query!r} or no document "
                f"{document!r}; name them by the columns id of their tables or, without one, by "
                "their row numbers from 1"
            )
        relevant.setdefault(query, set()).add(numbers[document])
    texts = {"queries": [queries[each] for each in relevant], "documents": [*documents.values()]}
    return texts, {"relevant": [*relevant.values()]}


def _by_id(path: Path) -> dict[str, Any]:
    """Read the texts of a table by its column id or, without one, by their row numbers from 1."""
    from isoadapt.datasets._tables import load_table, read_table

    has_ids = "id" in read_table(path.expanduser())
    texts, ids = load_table(path, label="id" if has_ids else None)
    found = dict(zip(map(str, ids if has_ids else range(1, len(texts) + 1)), texts, strict=True))
    if len(found) < len(texts):
        raise ValueError(f"{path}: the column id holds a value twice: number the rows differently")
    return found


def _foreign(options: Run) -> UseData:
    """Read texts of another kind."""
    from isoadapt.datasets import load_table

    texts, _ = load_table(options.tables["foreign"], text=options.rows.text, label=None)
    return {"foreign": list(texts)}, {}


# By the class of the use, the option of its table, and how the texts and the rest are read.
READERS = {
    "Similarity": ("pairs", _pairs),
    "Search": ("queries", _search),
    "Outliers": ("foreign", _foreign),
}
