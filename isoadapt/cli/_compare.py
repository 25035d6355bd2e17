"""Implementation of ``isoadapt compare``, once its tables are read."""

import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from isoadapt import AdaptedEncoder, IsotropyLayer, LinearHead, TeacherReadout, TransformerEncoder
from isoadapt._utils.files import atomic_path, writable_folder
from isoadapt.cli._compare_tables import Run, Tables
from isoadapt.cli._options import Console
from isoadapt.encoders._class_labels import with_checkpoint_names
from isoadapt.encoders._pooling import READOUT
from isoadapt.interop import save_adapter
from isoadapt.metrics import isotropy_report
from isoadapt.model_selection import Comparison, Outliers, Search, Similarity, compare_adapters
from isoadapt.model_selection._compare._compare_adapters import INTERRUPTED
from isoadapt.model_selection._compare._data import GENERAL
from isoadapt.report import EmbeddingMapDisplay, SpectrumDisplay, write_report

_DRAWN = 1_000  # rows on a map
# By the options of their tables, as the readers are.
_USES: dict[str, Any] = {"pairs": Similarity, "queries": Search, "foreign": Outliers}
Vectors = dict[str, NDArray[Any]]  # (n, d) of each set of texts


def compare(tables: Tables, run: Run) -> None:
    """Embed the texts, compare, print and write, also what was done before an interrupt."""
    console, names, chosen = run.console, run.class_names, run.adapters
    encoder = TransformerEncoder(run.model, max_length=run.max_length, verbose=console.verbose)
    if names is not None:
        tables = tables._replace(labels={k: each.astype(str) for k, each in tables.labels.items()})
    y, every = tables.labels["y"], np.concatenate([*tables.labels.values()])
    adapter = IsotropyLayer(run.head)
    adapter._validate_params()
    model = AdaptedEncoder(encoder, adapter, class_names=names)
    head = model._unfitted_pipeline(every)["adapter"].head
    if head == "auto":  # the checkpoint has none
        head = "ridge" if y.dtype.kind == "f" else "logistic"
    wide, taught = encoder, cast(Any, None)  # of all columns, and what TeacherReadout learns
    if run.teacher is not None:
        wide = clone(encoder).set_params(pooling=READOUT)
        teacher = TransformerEncoder(run.teacher, verbose=console.verbose)
        readout = AdaptedEncoder(wide, TeacherReadout(), teacher)
        console.say("Encoding texts and general sentences by both models ...")
        steps = readout._unfitted_pipeline(None)
        rows, *_ = readout._readout_rows(steps, tables.texts["X"], {})
        wide = steps["encoder"]
        taught = {**_encode(teacher, tables, console), GENERAL: rows}
    vectors = _encode(wide, tables, console)
    uses = _uses(tables, vectors, console)
    console.say("Fitting and judging the adapters ...")
    comparison = compare_adapters(
        vectors["X"],
        y,
        chosen[0] if chosen in (["fast"], ["all"]) else chosen or "fast",
        head=head,
        encoder_saw=run.encoder_saw,
        uses=uses,
        teacher=taught,
        n_jobs=run.jobs,
        random_state=0,
        verbose=console.verbose,
        cache=run.cache,
        X_test=vectors.get("X_test"),
        y_test=tables.labels.get("y_test"),
    )
    said = " The head is a new one, fitted to the training rows, not the checkpoint's."
    protocol = comparison.protocol + said * (not isinstance(head, LinearHead))
    comparison = replace(comparison, protocol=protocol, notes=console.noted(comparison.notes))
    if run.out is not None:
        _save(run, comparison, encoder, wide, len(y))
    if run.page is not None:
        _write_page(run, comparison, tables, vectors, encoder.open().width)
    asks = run.teacher is None and chosen in ([], ["fast"], ["all"])
    hint = "TeacherReadout was not judged: name the base model with --teacher." * asks
    parts = comparison._text(run.full), hint, _next(run, comparison)
    text = "\n\n".join(filter(None, parts))
    console.show(text, comparison.to_dict())
    if any(note.startswith(INTERRUPTED) for note in comparison.notes):
        raise KeyboardInterrupt


def _encode(encoder: TransformerEncoder, tables: Tables, console: Console) -> Vectors:
    """Embed all texts, those of one kind in one call, so that equal texts get equal vectors."""
    found: Vectors = {}
    for kind in dict.fromkeys(type(own[0]) for own in tables.texts.values()):
        sets = {each: own for each, own in tables.texts.items() if isinstance(own[0], kind)}
        texts = [text for own in sets.values() for text in own]
        console.say(f"Encoding {len(texts)} texts by {encoder.model} ...")
        ends = np.cumsum([len(own) for own in sets.values()])[:-1]
        found |= zip(sets, np.split(encoder.transform(texts), ends), strict=True)
    return found


def _uses(tables: Tables, vectors: Vectors, console: Console) -> list[Any]:
    """Return the uses, beside the task, for which there are tables."""
    uses, left = [], []
    for option, kind in _USES.items():
        if option in tables.uses:
            own = {each: vectors[each] for each in kind.vectors}
            uses.append(kind(**own, **tables.uses[option]))
        else:
            left.append(f"{kind.name} (--{option})")
    if left:
        console.say(f"Not judged: {', '.join(left)}")
    return uses


def _save(run: Run, comparison: Comparison, encoder: Any, wide: Any, n_rows: int) -> None:
    """Write the comparison as JSON, and the best adapter of each use, if there is one."""
    out, say = cast(Path, run.out), run.console.say
    data = {"source": run.table.name, "rows": n_rows}
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
                adapter = with_checkpoint_names(adapter, run.class_names)
                save_adapter(adapter, folder, base_model=own, data=data, overwrite=True)
                same = ", with the same predictions" * bool(ending)
                say(f"Best adapter for {use}{same}: {folder}")
            elif folder.exists():
                say(f"{folder} is of an earlier comparison; this one credits no such adapter")


def _next(run: Run, comparison: Comparison) -> str:
    """Say which command keeps or exports the best adapter of the first use that has one."""
    use = next(filter(comparison.credited, comparison.uses), None)
    if use is None:
        return ""
    words, step = [*sys.argv[1:], "--out", "my-comparison"], "save"
    if run.out is not None:
        words, step = ["export", str(run.out / f"best-for-{use}")], "export"
        words += ["--model", run.model, "--out", "my-exported-model"]
    return f"Next: {step} the best adapter for {use}.\n  {shlex.join(['isoadapt', *words])}"


def _write_page(
    run: Run, comparison: Comparison, tables: Tables, vectors: Vectors, width: int
) -> None:
    """Write the comparison, and an audit of the judged rows, as one HTML file."""
    page = cast(Path, run.page)
    ending = "_test" if "X_test" in vectors else ""
    texts, X, y = tables.texts[f"X{ending}"], vectors[f"X{ending}"], tables.labels[f"y{ending}"]
    classes = None if y.dtype.kind == "f" else y
    seen = set(tables.texts["X"]) if ending else set()  # the adapters are fitted to them
    rows = np.flatnonzero([text not in seen for text in texts])
    named = [*dict.fromkeys(n for use in comparison.uses for n in comparison.credited(use)[:1])]
    drawn = [*dict.fromkeys([*named, *comparison.estimators])][:3]  # as spectra
    fitted = comparison.estimators
    own = X[:, :width]  # the vectors without an adapter
    report = isotropy_report(own, labels=classes)
    comparison = replace(comparison, notes=run.console.noted(comparison.notes))

    def adapted(name: str) -> NDArray[Any]:
        read = X if isinstance(fitted[name], TeacherReadout) else own
        return np.asarray(fitted[name].transform(read[rows]))

    sets = {"no adapter": own[rows]} | {name: adapted(name) for name in drawn}
    displays: dict[str, Any] = {
        "Spectra before and after the adapters": SpectrumDisplay.from_embeddings(sets)
    }
    rows = np.random.default_rng(0).permutation(rows)[:_DRAWN]
    if named:  # the last uses are those of the vectors alone
        displays[f"Map before and after {named[-1]}"] = EmbeddingMapDisplay.from_embeddings(
            own[rows], adapted(named[-1]), None if classes is None else classes[rows]
        )
    writable_folder(page.parent)
    write_report(
        page,
        comparison=comparison,
        report=report,
        displays=displays,
        texts=[texts[row] for row in rows] if run.with_texts else None,
        description="; ".join([f"Model: {run.model}", *tables.files]),
        next_step=_next(run, comparison),
    )
    run.console.say(f"Report: {page}")
