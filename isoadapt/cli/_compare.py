"""Implementation of ``isoadapt compare``."""

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import typer
from numpy.typing import NDArray

from isoadapt import TransformerEncoder
from isoadapt._utils.errors import choices
from isoadapt._utils.files import atomic_path, writable_folder
from isoadapt._utils.folders import no_empty_leftovers
from isoadapt.adapters import ADAPTERS, METHODS, VARIANTS
from isoadapt.cli._options import notes, say
from isoadapt.datasets import load_table
from isoadapt.encoders import encoder_head
from isoadapt.interop import save_adapter
from isoadapt.model_selection import Comparison, compare_adapters


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
    as_json: bool
    quiet: bool
    out: Path | None


def compare(model: str, rows: Rows, adapters: list[str], options: Run) -> None:
    """Embed the tables, compare the adapters, and print the comparison."""
    chosen = _check_usage(rows, adapters, options)
    out = None if options.out is None else options.out.expanduser()
    with _messages(options.quiet), nullcontext() if out is None else no_empty_leftovers(out):
        if out is not None:
            writable_folder(out)
        encoder = TransformerEncoder(
            model, max_length=rows.max_length, verbose=0 if options.quiet else 1
        )
        comparison = _compare(encoder, rows, chosen, options)
        if out is not None:
            _save(comparison, encoder, out, options.quiet)
    if options.as_json:
        typer.echo(json.dumps(comparison.to_dict(), indent=2))
    else:
        typer.echo(str(comparison))


def _check_usage(rows: Rows, adapters: list[str], options: Run) -> Any:
    """Return the adapters to compare; raise BadParameter for options that exclude each other."""
    if options.encoder_saw and rows.test is None:
        raise typer.BadParameter(
            f"the encoder was trained on {rows.table}, so other rows must be judged: name a table "
            "that it has not seen with --test",
            param_hint="--encoder-saw",
        )
    known = [*METHODS, *ADAPTERS, *(variant.name for variant in VARIANTS)]
    for name in adapters:
        if name in ("fast", "all") and len(adapters) > 1:
            message = f"{name!r} cannot be combined with other adapters"
            raise typer.BadParameter(message, param_hint="--adapters")
        if name not in ("fast", "all", *known):
            message = f"{name!r} is not the name of an adapter; {choices(name, known)}"
            raise typer.BadParameter(message, param_hint="--adapters")
    return adapters[0] if adapters in (["fast"], ["all"]) else adapters or "fast"


@contextmanager
def _messages(quiet: bool) -> Iterator[None]:
    """Print warnings as notes at the end of the block, or not at all."""
    if not quiet:
        with notes():
            yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def _compare(encoder: TransformerEncoder, rows: Rows, adapters: Any, options: Run) -> Comparison:
    X, y = _labelled(encoder, rows.table, rows, options.quiet)
    data: dict[str, Any] = {}
    if rows.test is not None:
        data["X_test"], data["y_test"] = _labelled(encoder, rows.test, rows, options.quiet)
    if rows.pairs is not None:
        data["pairs"] = _pairs(encoder, rows.pairs)
    if rows.foreign is not None:
        texts, _ = load_table(rows.foreign, text=rows.text)
        data["foreign"] = encoder.transform(texts)
    head: Any = encoder_head(encoder)
    if head is None:
        head = "ridge" if y.dtype.kind == "f" else "logistic"
    if not options.quiet:
        say("Fitting and judging the adapters ...")
    return compare_adapters(
        X,
        y,
        adapters,
        head=head,
        encoder_saw=options.encoder_saw,
        n_jobs=options.jobs,
        random_state=0,
        verbose=0 if options.quiet else 1,
        cache=options.cache,
        **data,
    )


def _labelled(
    encoder: TransformerEncoder, path: Path, rows: Rows, quiet: bool
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Embed the texts of a table that has labels."""
    texts, y = load_table(path, text=rows.text, label=rows.label or "label")
    if y is None:
        raise ValueError(
            f"{path} has no column 'label', but a comparison needs labels or values: name their "
            "column with --label"
        )
    if not quiet:
        say(f"Encoding the {len(texts)} texts of {path} ...")
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


def _save(comparison: Comparison, encoder: TransformerEncoder, out: Path, quiet: bool) -> None:
    """Write the comparison as JSON, and the best adapter of each use, if there is one."""
    with atomic_path(out / "comparison.json") as temporary:
        temporary.write_text(json.dumps(comparison.to_dict(), indent=2) + "\n", "utf-8")
    for use in comparison.uses:
        adapter = comparison.best_adapter(use)
        if adapter is not None:
            folder = out / f"best-for-{use}"
            save_adapter(adapter, folder, base_model=encoder, overwrite=True)
            if not quiet:
                say(f"Best adapter for {use}: {folder}")
