"""Implementation of ``isoadapt compare``."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isoadapt import TransformerEncoder
from isoadapt._utils.files import atomic_path, check_writable, writable_folder
from isoadapt._utils.imports import import_optional
from isoadapt._utils.messages import choices
from isoadapt.adapters._heads import head_for
from isoadapt.adapters._registry import METHODS, NAMES, VARIANTS
from isoadapt.cli._options import Console, Source, WrongUsage, data_to_record, labelled_texts
from isoadapt.datasets import load_table
from isoadapt.interop import save_adapter
from isoadapt.metrics import isotropy_report
from isoadapt.model_selection import Comparison, Outliers, Similarity, compare_adapters
from isoadapt.model_selection._compare._compare_adapters import INTERRUPTED
from isoadapt.report import EmbeddingMapDisplay, SpectrumDisplay, write_report

_DRAWN = 1_000  # rows on a map


class Rows(NamedTuple):
    """The tables of a comparison, and the columns to read."""

    table: Path
    test: Path | None
    pairs: Path | None
    foreign: Path | None
    text: list[str] | None  # one column, or two of pairs; None finds them by name
    label: str | None  # None means "label"
    max_length: int | None


class Run(NamedTuple):
    """How a comparison is run, and what it writes."""

    encoder_saw: bool | None
    jobs: int | None
    cache: Path | None
    out: Path | None
    console: Console
    page: Path | None = None  # HTML file
    with_texts: bool = False  # whether the page holds texts of the tables


Embedded = tuple[Any, NDArray[Any], NDArray[Any]]  # texts of a table, vectors (n, d), labels (n,)


def compare(model: str, rows: Rows, adapters: list[str], options: Run) -> None:
    """Embed the tables, compare the adapters, and print the comparison."""
    chosen = _check_usage(rows, adapters, options)
    console = options.console
    out, page = (path and path.expanduser() for path in (options.out, options.page))
    with console.notes():
        if out is not None:
            check_writable(out)
        if page is not None:
            import_optional("matplotlib", feature="--html", extra="plot")
            check_writable(page.parent)
        if options.encoder_saw is None and rows.test is None:
            console.say(
                f"If the encoder was trained on {rows.table}, this cannot tell whether an adapter "
                "helps: end it and name rows that it has not seen with --test"
            )
        encoder = TransformerEncoder(model, max_length=rows.max_length, verbose=console.verbose)
        comparison, tables = _compare(encoder, rows, chosen, options)
        if out is not None:
            data = data_to_record(Source(rows.table, max_length=rows.max_length), len(tables[0][0]))
            _save(comparison, encoder, data, out, console)
        if page is not None:
            _write_page(page, options, comparison, tables, model)
    console.show(str(comparison), comparison.to_dict())
    if any(note.startswith(INTERRUPTED) for note in comparison.notes):
        raise KeyboardInterrupt


def _check_usage(rows: Rows, adapters: list[str], options: Run) -> Any:
    """Return the adapters to compare; raise WrongUsage for options that exclude each other."""
    if options.encoder_saw and rows.test is None:
        raise WrongUsage(
            f"--encoder-saw: the encoder was trained on {rows.table}, so other rows must be "
            "judged: name a table that it has not seen with --test"
        )
    page = options.page
    if page is not None and (page.suffix.lower() != ".html" or page.is_dir()):
        raise WrongUsage(f"--html {str(page)!r} must be a file whose name ends in .html")
    known = [*METHODS, *METHODS.values(), *(variant.name for variant in VARIANTS)]
    for name in adapters:
        if name in ("fast", "all") and len(adapters) > 1:
            raise WrongUsage(f"--adapters {name} cannot be combined with other adapters")
        if name not in ("fast", "all", *known):
            why = f"is not the name of an adapter; {choices(name, known)}"
            if name in NAMES or name in NAMES.values():
                why = "learns a teacher's vectors: compare it by compare_adapters(..., teacher=...)"
            raise WrongUsage(f"--adapters {name!r} {why}")
    return adapters[0] if adapters in (["fast"], ["all"]) else adapters or "fast"


def _compare(
    encoder: TransformerEncoder, rows: Rows, adapters: Any, options: Run
) -> tuple[Comparison, list[Embedded]]:
    """Return the comparison, and the rows of the table and of the test table, if there is one."""
    pairs = None if rows.pairs is None else _pairs(rows.pairs)
    foreign = rows.foreign and load_table(rows.foreign, text=rows.text, label=None)[0]
    test_rows: dict[str, Any] = {}
    (_, X, y), *tests = tables = _labelled(encoder, rows, options.console)
    for test in tests:
        _, test_rows["X_test"], test_rows["y_test"] = test
    uses: list[Any] = []
    if pairs is not None:
        first, second, scores = pairs
        A, B = np.split(encoder.transform(first + second), 2)  # equal texts get equal vectors
        uses.append(Similarity(A, B, scores))
    if foreign is not None:
        uses.append(Outliers(encoder.transform(foreign)))
    others = {"similarity (--pairs)": rows.pairs, "outliers (--foreign)": rows.foreign}
    left = [*(use for use, table in others.items() if table is None), "search (in Python only)"]
    options.console.say(f"Uses that are not judged: {', '.join(left)}")
    own = encoder.head(y)
    new = "ridge" if y.dtype.kind == "f" else "logistic"
    head = head_for(own, y, "checkpoint's head") if own else new
    options.console.say("Fitting and judging the adapters ...")
    comparison = compare_adapters(
        X,
        y,
        adapters,
        head=head,
        encoder_saw=options.encoder_saw,
        uses=uses,
        n_jobs=options.jobs,
        random_state=0,
        verbose=options.console.verbose,
        cache=options.cache,
        **test_rows,
    )
    return comparison, tables


def _labelled(encoder: TransformerEncoder, rows: Rows, console: Console) -> list[Embedded]:
    """Embed the texts of one or two tables in one call, so that equal texts get equal vectors."""
    paths = [path for path in (rows.table, rows.test) if path is not None]
    tables = [labelled_texts(path, rows.text, rows.label) for path in paths]
    texts = [text for own, _ in tables for text in own]
    console.say(f"Encoding the {len(texts)} texts of {' and '.join(map(str, paths))} ...")
    parts = np.split(encoder.transform(texts), [len(tables[0][0])])
    return [(own, X, y) for X, (own, y) in zip(parts, tables, strict=False)]


def _pairs(path: Path) -> tuple[list[str], list[str], NDArray[np.float64]]:
    """Read the texts of both sides of the pairs of a table, and their scores."""
    texts, scores = load_table(path)
    if scores is None or scores.dtype.kind not in "if" or not isinstance(texts[0], tuple):
        raise ValueError(
            f"--pairs {path} must have the columns sentence1, sentence2 and label, where label is "
            "the similarity of the pair as a number"
        )
    first, second = ([str(pair[side]) for pair in texts] for side in (0, 1))
    return first, second, scores.astype(np.float64)


def _save(
    comparison: Comparison,
    encoder: TransformerEncoder,
    data: dict[str, Any],
    out: Path,
    console: Console,
) -> None:
    """Write the comparison as JSON, and the best adapter of each use, if there is one."""
    with atomic_path(writable_folder(out) / "comparison.json") as temporary:
        temporary.write_text(json.dumps(comparison.to_dict(), indent=2) + "\n", "utf-8")
    for use in comparison.uses:
        best = comparison.best_adapter(use)
        safest = comparison.best_adapter(use, same_predictions=True)
        chosen = {"": best, "-same-predictions": None if safest is best else safest}
        for ending, adapter in chosen.items():
            folder = out / f"best-for-{use}{ending}"
            if adapter is not None:
                save_adapter(adapter, folder, base_model=encoder, data=data, overwrite=True)
                same = ", with the same predictions" * bool(ending)
                console.say(f"Best adapter for {use}{same}: {folder}")
            elif folder.exists():
                console.say(
                    f"{folder} is of an earlier comparison; this one credits no such adapter"
                )


def _write_page(
    page: Path, options: Run, comparison: Comparison, tables: list[Embedded], model: str
) -> None:
    """Write the comparison and an audit of the judged rows as one HTML file."""
    texts, X, y = tables[-1]
    classes = None if y.dtype.kind == "f" else y
    seen = {text for own, *_ in tables[:-1] for text in own}  # the adapters are fitted to them
    rows = np.flatnonzero([text not in seen for text in texts])
    # The best adapter of each use; the last uses are those of the vectors alone.
    best = [*dict.fromkeys(n for use in comparison.uses for n in comparison.credited(use)[:1])]
    fitted = {name: comparison.estimators[name] for name in [*best, *comparison.estimators]}
    spectra = SpectrumDisplay.from_estimator(fitted, X[rows])
    displays: dict[str, Any] = {"Spectra before and after the adapters": spectra}
    rows = np.random.default_rng(0).permutation(rows)[:_DRAWN]
    if best:
        own = None if classes is None else classes[rows]
        displays[f"Map before and after {best[-1]}"] = EmbeddingMapDisplay.from_estimator(
            fitted[best[-1]], X[rows], own
        )
    writable_folder(page.parent)
    write_report(
        page,
        comparison=comparison,
        report=isotropy_report(X, labels=classes),
        displays=displays,
        texts=[texts[row] for row in rows] if options.with_texts else None,
        description=f"Model: {model}",
    )
    options.console.say(f"Report: {page}")
