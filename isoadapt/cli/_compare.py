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
    import numpy as np
    from numpy.typing import NDArray


class Run(NamedTuple):
    """What a comparison reads, how it is run, and what it prints and writes."""

    rows: Source  # to fit to; the other tables are read like it
    head: str  # that all rows share
    test: Path | None
    pairs: Path | None
    foreign: Path | None
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

    texts: dict[str, list[Any]]  # of "X", "X_test", "A", "B" and "foreign"
    labels: "dict[str, NDArray[Any]]"  # of "y" and "y_test"
    scores: "NDArray[np.float64] | None"  # of the pairs A, B
    files: list[str]  # name and digest of each table


def compare(adapters: list[str], options: Run) -> None:
    """Read the tables, embed the texts, compare the adapters, and print the comparison."""
    chosen = _check_usage(adapters, options)
    files = [options.rows.path, options.test, options.pairs, options.foreign]
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
    if options.encoder_saw and options.test is None:
        raise WrongUsage(
            f"--encoder-saw: the encoder was trained on {options.rows.path}, so other rows must be "
            "judged: name a table that it has not seen with --test"
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
    from isoadapt.datasets import load_table

    texts: dict[str, list[Any]] = {}
    labels: dict[str, Any] = {}
    scores = None
    rows = options.rows
    texts["X"], labels["y"] = labelled_texts(rows)
    if options.test is not None:
        texts["X_test"], labels["y_test"] = labelled_texts(rows._replace(path=options.test))
    if options.pairs is not None:
        texts["A"], texts["B"], scores = _pairs(options.pairs)
    if options.foreign is not None:
        texts["foreign"] = list(load_table(options.foreign, text=rows.text, label=None)[0])
    files = [
        f"{path} (sha256 {_digest(path)})"
        for path in (rows.path, options.test, options.pairs, options.foreign)
        if path is not None
    ]
    return Tables(texts, labels, scores, files)


def _digest(path: Path) -> str:
    """Return the first 12 digits of the SHA-256 of a file, or "folder"."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12] if path.is_file() else "folder"


def _pairs(path: Path) -> "tuple[list[str], list[str], NDArray[np.float64]]":
    """Read the texts of both sides of the pairs of a table, and their scores."""
    from isoadapt.datasets import load_table

    texts, scores = load_table(path)
    if scores is None or scores.dtype.kind not in "if" or not isinstance(texts[0], tuple):
        raise ValueError(
            f"--pairs {path} must have the columns sentence1, sentence2 and label, where label is "
            "the similarity of the pair as a number"
        )
    first, second = ([str(pair[side]) for pair in texts] for side in (0, 1))
    return first, second, scores.astype(float)
