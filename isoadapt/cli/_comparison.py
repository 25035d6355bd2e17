"""What ``isoadapt compare`` runs once its tables are read: the encoders, the comparison, files."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from isoadapt import TeacherReadout, TransformerEncoder, model_selection
from isoadapt._utils.files import atomic_path, writable_folder
from isoadapt.adapters._heads import head_for
from isoadapt.cli._compare import READERS, Run, Tables
from isoadapt.cli._options import Console
from isoadapt.encoders._pooling import READOUT
from isoadapt.interop import save_adapter
from isoadapt.metrics import isotropy_report
from isoadapt.model_selection import Comparison, Use, compare_adapters
from isoadapt.model_selection._compare._compare_adapters import INTERRUPTED
from isoadapt.report import EmbeddingMapDisplay, SpectrumDisplay, write_report

_DRAWN = 1_000  # rows on a map

Vectors = dict[str, NDArray[Any]]  # (n, d) of each set of texts


def run(tables: Tables, adapters: Any, options: Run) -> None:
    """Embed the texts, compare, print and write, also what was done before an interrupt."""
    rows, console, y = options.rows, options.console, tables.labels["y"]
    encoder = rows.encoder(console.verbose)
    wide, taught = encoder, None  # the encoder of all columns, and what TeacherReadout learns
    if rows.teacher is not None:
        wide = clone(encoder).set_params(pooling=READOUT)
        teacher = TransformerEncoder(rows.teacher, verbose=console.verbose)
        taught = _encode(teacher, tables, console)
    vectors = _encode(wide, tables, console)
    uses = _uses(tables, vectors, console)
    own, new = encoder.head(y), "ridge" if y.dtype.kind == "f" else "logistic"
    console.say("Fitting and judging the adapters ...")
    comparison = compare_adapters(
        vectors["X"],
        y,
        adapters,
        head=head_for(own, y, "checkpoint's head") if own else new,
        encoder_saw=options.encoder_saw,
        uses=uses,
        teacher=taught,
        n_jobs=options.jobs,
        random_state=0,
        verbose=console.verbose,
        cache=options.cache,
        X_test=vectors.get("X_test"),
        y_test=tables.labels.get("y_test"),
    )
    if options.out is not None:
        data = {"source": rows.path.name, "rows": len(y)}
        _save(comparison, encoder, wide, data, options.out, console)
    if options.page is not None:
        width = encoder.open().width
        _write_page(options.page, options, comparison, tables, vectors, width)
    text = comparison._text(options.full) + _next(comparison, options)
    console.show(text, comparison.to_dict())
    if any(note.startswith(INTERRUPTED) for note in comparison.notes):
        raise KeyboardInterrupt


def _encode(encoder: TransformerEncoder, tables: Tables, console: Console) -> Vectors:
    """Embed all texts, those of one kind in one call, so that equal texts get equal vectors."""
    found: Vectors = {}
    for kind in (str, tuple):
        sets = {each: own for each, own in tables.texts.items() if isinstance(own[0], kind)}
        texts = [text for own in sets.values() for text in own]
        if not texts:
            continue
        console.say(f"Encoding {len(texts)} texts by {encoder.model} ...")
        ends = np.cumsum([len(own) for own in sets.values()])[:-1]
        found |= zip(sets, np.split(encoder.transform(texts), ends), strict=True)
    return found


def _uses(tables: Tables, vectors: Vectors, console: Console) -> list[Use]:
    """Return the uses, beside the task, for which there are tables."""
    uses, left = [], []
    for name, (option, _) in READERS.items():
        kind = getattr(model_selection, name)
        if name in tables.uses:
            own = {each: vectors[each] for each in kind.vectors}
            uses.append(kind(**own, **tables.uses[name]))
        else:
            left.append(f"{kind.name} (--{option})")
    if left:
        console.say(f"Not judged: {', '.join(left)}")
    return uses


def _save(
    comparison: Comparison,
    encoder: TransformerEncoder,
    wide: TransformerEncoder,
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
                own = wide if isinstance(adapter, TeacherReadout) else encoder
                save_adapter(adapter, folder, base_model=own, data=data, overwrite=True)
                same = ", with the same predictions" * bool(ending)
                console.say(f"Best adapter for {use}{same}: {folder}")
            elif folder.exists():
                console.say(
                    f"{folder} is of an earlier comparison; this one credits no such adapter"
                )


def _next(comparison: Comparison, options: Run) -> str:
    """Say which command keeps or exports the best adapter of the first use that has one."""
    use = next(filter(comparison.credited, comparison.uses), None)
    if use is None:
        return ""
    words, step = [*sys.argv[1:], "--out", "my-comparison"], "save"
    if options.out is not None:
        words, step = ["export", str(options.out / f"best-for-{use}")], "export"
        words += ["--model", str(options.rows.model), "--out", "my-exported-model"]
    return f"\n\nNext: {step} the best adapter for {use}.\n  {shlex.join(['isoadapt', *words])}"


def _write_page(
    page: Path, options: Run, comparison: Comparison, tables: Tables, vectors: Vectors, width: int
) -> None:
    """Write the comparison and an audit of the judged rows as one HTML file."""
    ending = "_test" if "X_test" in vectors else ""
    texts, X, y = tables.texts[f"X{ending}"], vectors[f"X{ending}"], tables.labels[f"y{ending}"]
    classes = None if y.dtype.kind == "f" else y
    seen = set(tables.texts["X"]) if ending else set()  # the adapters are fitted to them
    rows = np.flatnonzero([text not in seen for text in texts])
    named = [*dict.fromkeys(n for use in comparison.uses for n in comparison.credited(use)[:1])]
    fitted = {name: comparison.estimators[name] for name in [*named, *comparison.estimators]}
    own = X[:, :width]  # the vectors without an adapter

    def adapted(name: str) -> NDArray[Any]:
        read = X if isinstance(fitted[name], TeacherReadout) else own
        return np.asarray(fitted[name].transform(read[rows]))

    spectra = SpectrumDisplay.from_embeddings(
        {"no adapter": own[rows]} | {name: adapted(name) for name in fitted}
    )
    displays: dict[str, Any] = {"Spectra before and after the adapters": spectra}
    rows = np.random.default_rng(0).permutation(rows)[:_DRAWN]
    if named:  # the last uses are those of the vectors alone
        displays[f"Map before and after {named[-1]}"] = EmbeddingMapDisplay.from_embeddings(
            own[rows], adapted(named[-1]), None if classes is None else classes[rows]
        )
    writable_folder(page.parent)
    write_report(
        page,
        comparison=comparison,
        report=isotropy_report(own, labels=classes),
        displays=displays,
        texts=[texts[row] for row in rows] if options.with_texts else None,
        description="; ".join([f"Model: {options.rows.model}", *tables.files]),
    )
    options.console.say(f"Report: {page}")
