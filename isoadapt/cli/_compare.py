"""Implementation of ``isoadapt compare``."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isoadapt import TransformerEncoder
from isoadapt._utils.files import atomic_path, check_writable, writable_folder
from isoadapt._utils.messages import choices
from isoadapt.adapters._registry import ADAPTERS, METHODS, VARIANTS
from isoadapt.cli._options import Console, Source, WrongUsage
from isoadapt.cli._rows import data_to_record, labelled_texts
from isoadapt.datasets import load_table
from isoadapt.encoders._checkpoint import encoder_head
from isoadapt.interop import save_adapter
from isoadapt.model_selection import Comparison, compare_adapters
from isoadapt.model_selection._compare._compare_adapters import INTERRUPTED


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


def compare(model: str, rows: Rows, adapters: list[str], options: Run) -> None:
    """Embed the tables, compare the adapters, and print the comparison."""
    chosen = _check_usage(rows, adapters, options)
    console = options.console
    out = None if options.out is None else options.out.expanduser()
    with console.notes():
        if out is not None:
            check_writable(out)
        encoder = TransformerEncoder(model, max_length=rows.max_length, verbose=console.verbose)
        comparison, n_rows = _compare(encoder, rows, chosen, options)
        if out is not None:
            data = data_to_record(Source(rows.table, max_length=rows.max_length), n_rows)
            _save(comparison, encoder, data, out, console)
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
    known = [*METHODS, *ADAPTERS, *(variant.name for variant in VARIANTS)]
    for name in adapters:
        if name in ("fast", "all") and len(adapters) > 1:
            raise WrongUsage(f"--adapters {name} cannot be combined with other adapters")
        if name not in ("fast", "all", *known):
            raise WrongUsage(
                f"--adapters {name!r} is not the name of an adapter; {choices(name, known)}"
            )
    return adapters[0] if adapters in (["fast"], ["all"]) else adapters or "fast"


def _compare(
    encoder: TransformerEncoder, rows: Rows, adapters: Any, options: Run
) -> tuple[Comparison, int]:
    """Return the comparison, and the number of rows that its adapters are fitted to."""
    X, y = _labelled(encoder, rows.table, rows, options.console)
    data: dict[str, Any] = {}
    if rows.test is not None:
        data["X_test"], data["y_test"] = _labelled(encoder, rows.test, rows, options.console)
    if rows.pairs is not None:
        data["pairs"] = _pairs(encoder, rows.pairs)
    if rows.foreign is not None:
        texts, _ = load_table(rows.foreign, text=rows.text, label=None)
        data["foreign"] = encoder.transform(texts)
    head: Any = encoder_head(encoder)
    if head is None:
        head = "ridge" if y.dtype.kind == "f" else "logistic"
    options.console.say("Fitting and judging the adapters ...")
    comparison = compare_adapters(
        X,
        y,
        adapters,
        head=head,
        encoder_saw=options.encoder_saw,
        n_jobs=options.jobs,
        random_state=0,
        verbose=options.console.verbose,
        cache=options.cache,
        **data,
    )
    return comparison, len(X)


def _labelled(
    encoder: TransformerEncoder, path: Path, rows: Rows, console: Console
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Embed the texts of a table that has labels."""
    texts, y = labelled_texts(path, rows.text, rows.label)
    console.say(f"Encoding the {len(texts)} texts of {path} ...")
    return encoder.transform(texts), y


def _pairs(encoder: TransformerEncoder, path: Path) -> tuple[Any, Any, NDArray[np.float64]]:
    """Embed each side of the pairs of a table by itself."""
    texts, scores = load_table(path)
    if scores is None or scores.dtype.kind not in "if" or not isinstance(texts[0], tuple):
        raise ValueError(
            f"--pairs {path} must have the columns sentence1, sentence2 and label, where label is "
            "the similarity of the pair as a number"
        )
    first, second = (encoder.transform([str(pair[side]) for pair in texts]) for side in (0, 1))
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
                console.say(f"Best adapter for {use}{ending.replace('-', ' ')}: {folder}")
            elif folder.exists():
                console.say(
                    f"{folder} is of an earlier comparison; this one credits no such adapter"
                )
