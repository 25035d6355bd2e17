"""Implementation of ``isoadapt fit``."""

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from isoadapt import AdaptedEncoder, LinearHead, TransformerEncoder
from isoadapt._utils.copies import copy_hashes
from isoadapt._utils.messages import aligned_table
from isoadapt._utils.sklearn_private import _safe_indexing
from isoadapt.adapters._base import BaseAdapter
from isoadapt.adapters._registry import NAMES, adapter_class
from isoadapt.adapters._rows import Sample
from isoadapt.cli._options import TITLES, Console, WrongUsage, read_settings
from isoadapt.cli._sources import Rows
from isoadapt.encoders._class_labels import with_checkpoint_names
from isoadapt.interop import save_adapter
from isoadapt.metrics._points import main_figures, warn_of_few_rows

_FITTED, _HALVES, _FOLDS = "rows the map was fitted to", "cross-fitted halves", "held-out folds"
_FIFTH = "a held-out fifth of the texts"
_NOTES = {
    _FITTED: "These figures are for rows the map was fitted to. Evaluate it on other rows.",
    _HALVES: "These figures are cross-fitted: the map is fitted to half of the rows and judged on\n"
    "the other half, both ways. The saved adapter is fitted to all rows.",
    _FOLDS: "R² is that of the teacher's vectors in five folds of rows, each left out of the fit\n"
    "in turn. The saved adapter is fitted to all rows.",
    _FIFTH: "R² is that of the teacher's vectors in a fifth of the texts, which another fit\n"
    "leaves out. The saved adapter is fitted to all texts.",
}
_HEADS = {
    None: "",
    "checkpoint": "Head: the checkpoint's\n",
    "new": "Head: a new one, fitted to these rows, so predictions can differ from a checkpoint's\n",
}
_LEAST = 4  # rows that the corrected IsoScore needs
_Mask = NDArray[np.bool_]


def fit(
    name: str,
    rows: Rows,
    encoder: TransformerEncoder | None,
    options: Mapping[str, Any],
    settings: Sequence[str],
    out: Path,
    overwrite: bool,
    console: Console,
) -> None:
    """Fit and save an adapter, with options of AdaptedEncoder; print figures before and after."""
    cls = adapter_class(NAMES[name])
    adapter = cls(**read_settings(settings, cls._get_param_names(), cls.__name__))
    adapter._validate_params()
    y, teacher, class_names = rows.labels, options["teacher"], options["class_names"]
    if class_names is not None and y is not None:
        y = y.astype(str)
    model = AdaptedEncoder(encoder, adapter, **options)
    model._validate_params()
    if encoder is not None:
        adapter = model._unfitted_pipeline(y)["adapter"]
    if y is None and adapter._needs_y() and not adapter._needs_teacher:
        raise WrongUsage(
            f"{cls.__name__} needs labels, but {rows.files[0]} has none: name their column "
            "with --label (not of texts --separately), or their file with --labels. Without labels,"
            " name the classifier with --model, or fit without a head by --head None"
        )
    console.say(f"Fitting {' '.join(repr(adapter).split())} to {len(rows.rows)} rows ...")
    if rows.of_texts:
        X = model._fit(rows.rows, y, {})
        encoder, adapter = (model.pipeline_[name] for name in ("encoder", "adapter"))
    else:
        X = rows.rows
        adapter.fit(X, y)
        warn_of_few_rows(len(X))
    judged, metrics = _judge(adapter, X, y, model)
    data = {"source": ", ".join(path.name for path in rows.files), "rows": len(X)}
    data |= {"teacher": teacher} if teacher is not None else {}
    data |= {"pairs": "separately"} if rows.columns.separately else {}
    save_adapter(
        with_checkpoint_names(adapter, class_names),
        out,
        base_model=encoder.model if encoder and not rows.of_texts else encoder,
        data=data,
        metrics={f"{name} ({judged})": metrics[name] for name in metrics if metrics[name]},
        overwrite=overwrite,
    )
    own, used = adapter.head, cast(Any, adapter.head_)
    same = isinstance(own, LinearHead) and np.array_equal(own.coef_, used.coef_)
    head = None if used is None else "checkpoint" if same else "new"
    result = f"{_result(adapter, model)}\n{_HEADS[head]}Adapter: {out}"
    said = f"{_table(metrics)}\n{_NOTES[judged]}\n{result}"
    figures = {"adapter": str(out), "method": name, "rows": len(X), "head": head}
    console.show(f"{_verdict(**metrics)}\n\n{said}", figures | {"evaluated_on": judged, **metrics})


def _judge(
    adapter: BaseAdapter, X: Any, y: NDArray[Any] | None, model: AdaptedEncoder
) -> tuple[str, dict[str, dict[str, float]]]:
    """Return the kind of rows that are judged, and their mean figures before and after."""
    if adapter._needs_teacher:
        if not hasattr(model, "r2_own_"):
            return _FOLDS, {"before": {}, "after": {"r2": adapter.r2_}}
        r2 = {"r2": model.r2_own_, "r2_general": model.r2_general_}
        return _FIFTH, {"before": {}, "after": {k: v for k, v in r2.items() if v == v}}
    every = np.ones(len(X), dtype=bool)
    kind, trials = _FITTED, [(adapter, every, every)]
    ranks = np.unique(copy_hashes(X), return_inverse=True)[1]
    if ranks.max() + 1 >= 2 * _LEAST:
        parts = ranks % 2 == 0, ranks % 2 == 1
        # A half may be too small for the parameters, or lack a class.
        with suppress(ValueError), warnings.catch_warnings(action="ignore"):
            halves = [(clone(adapter).fit(*_take(X, y, part)), part, ~part) for part in parts]
            kind, trials = _HALVES, halves
    found = [_figures(each, X, y, others, judged) for each, others, judged in trials]
    sizes = [judged.sum() for _, _, judged in trials]
    return kind, {
        name: {
            key: float(np.average([figures[name][key] for figures in found], weights=sizes))
            for key in found[0][name]
        }
        for name in ("before", "after")
    }


def _take(X: Any, y: NDArray[Any] | None, rows: _Mask) -> tuple[Any, NDArray[Any] | None]:
    return _safe_indexing(X, rows), None if y is None else y[rows]


def _figures(
    adapter: BaseAdapter, X: Any, y: NDArray[Any] | None, others: _Mask, judged: _Mask
) -> dict[str, dict[str, float]]:
    """Return the figures of the judged rows before and after, with the score of the head."""
    rows, labels = _take(X, y, judged)
    before, after = (
        {name: figures[name] for name in ("isoscore", "isoscore_corrected", "ev1")}
        for figures in (main_figures(rows), main_figures(adapter.transform(rows)))
    )
    if y is not None and labels is not None and adapter._head_kind() is not None:
        metric = "accuracy" if adapter._head_kind() == "classifier" else "r2"
        head = adapter._resolve_head(Sample(np.asarray(_safe_indexing(X, others)), y[others]))
        before[metric] = cast(LinearHead, head).score(np.asarray(rows), labels)
        after[metric] = adapter.score(rows, labels)
    return {"before": before, "after": after}


def _result(adapter: BaseAdapter, model: AdaptedEncoder) -> str:
    """Say what the vectors of a TeacherReadout are, and nothing of other adapters."""
    if not adapter._needs_teacher:
        return ""
    use = "comparable with the teacher's"
    if adapter.space == "head":
        use = "read by the classifier's head as its own input"
    width, n = adapter.map_.n_features_out, adapter.n_features_in_
    source = f"{n} columns of one pass"
    if n_layers := getattr(model, "teacher_layers_", 0):
        source = f"one pass and {n_layers} layer(s) of the teacher"
    return f"The vectors have width {width}, from {source}, and are {use}.\n"


def _verdict(before: dict[str, float], after: dict[str, float]) -> str:
    """Say in one sentence what the adapter does to the rows that are judged."""
    if not before:
        return f"The map predicts the teacher's vectors with an R² of {after['r2']:.3g}."
    scores = (name for name in ("accuracy", "r2") if name in before and name in after)
    said = [
        f"the {TITLES.get(name, name)} is {after[name]:.3g} ({before[name]:.3g} before)"
        for name in scores
    ]
    first = f"{after['ev1']:.1%} of the variance ({before['ev1']:.1%} before)"
    return f"{'; '.join([f'The first direction holds {first}', *said])}."


def _table(metrics: dict[str, dict[str, float]]) -> str:
    """Return the figures as a table, with a header if there are figures of before."""
    shown = [name for name in metrics if metrics[name]]
    rows = [("", *shown)] if len(shown) > 1 else []
    for key in metrics["after"]:
        values = (metrics[name].get(key) for name in shown)
        cells = ("" if value is None else f"{value:.4g}" for value in values)
        rows.append((TITLES.get(key, key), *cells))
    return aligned_table(rows, at_least=(16, 9, 9))
