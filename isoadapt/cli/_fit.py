"""Implementation of ``isoadapt fit``."""

import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from isoadapt import AdaptedEncoder, LinearHead
from isoadapt._utils.copies import copy_hashes
from isoadapt._utils.messages import aligned_table
from isoadapt._utils.sklearn_private import _safe_indexing
from isoadapt.adapters._base import BaseAdapter
from isoadapt.adapters._registry import ADAPTERS, NAMES
from isoadapt.cli._options import TITLES, Console, Source, WrongUsage, read_matrix, read_settings
from isoadapt.encoders._class_labels import with_checkpoint_names
from isoadapt.interop import save_adapter
from isoadapt.metrics._points import main_figures

_FITTED, _HALVES = "rows the map was fitted to", "cross-fitted halves"
_FOLDS = "held-out folds"
_NOTES = {
    _FITTED: "These figures are for rows the map was fitted to. Evaluate it on other rows.",
    _HALVES: "These figures are cross-fitted: the map is fitted to half of the rows and judged on\n"
    "the other half, both ways. The saved adapter is fitted to all rows.",
    _FOLDS: "R² is that of the teacher's vectors in five folds of rows, each left out of the fit\n"
    "in turn. The saved adapter is fitted to all rows.",
}
_HEADS = {
    None: "",
    "checkpoint": "Head: the checkpoint's\n",
    "new": "Head: a new one, fitted to these rows, so predictions can differ from a checkpoint's\n",
}
_LEAST = 4  # rows that the corrected IsoScore needs
_Mask = NDArray[np.bool_]


def fit(
    name: str, source: Source, out: Path, settings: Sequence[str], overwrite: bool, console: Console
) -> None:
    """Fit and save an adapter, and print the figures before and after."""
    cls = ADAPTERS[NAMES[name]]
    adapter = cls(**read_settings(settings, cls._get_param_names(), cls.__name__))
    adapter._validate_params()
    X, y = read_matrix(source) if source.is_matrix() else cast(Any, source.table)
    if (names := source.class_names) is not None:
        if source.model is None:
            raise WrongUsage("--class-names needs --model, the checkpoint whose classes it names")
        y = None if y is None else y.astype(str)
    if source.model is not None:
        parts = source.encoder(), adapter, source.teacher
        adapter = AdaptedEncoder(*parts, class_names=names)._unfitted_pipeline(y)["adapter"]
    if y is None and adapter._needs_y() and not adapter._needs_teacher:
        raise WrongUsage(
            f"{type(adapter).__name__} needs labels, but {source.path} has none: name their column "
            "with --label (not of texts --separately), or their file with --labels. Without labels,"
            " name the classifier with --model, or fit without a head by --head None"
        )
    if not source.is_matrix():
        if source.teacher is not None:
            y = Source(source.path, source.teacher).encoder(console.verbose).transform(X)
        X = source.encoder(console.verbose).transform(X)
    console.say(f"Fitting {' '.join(repr(adapter).split())} to {len(X)} rows ...")
    adapter.fit(X, y)
    rows, metrics = _judge(adapter, X, y)
    save_adapter(
        with_checkpoint_names(adapter, names),
        out,
        base_model=_model_to_record(source),
        data=_data_to_record(source, len(X)),
        metrics={f"{name} ({rows})": metrics[name] for name in metrics if metrics[name]},
        overwrite=overwrite,
    )
    head = _head_of(adapter)
    said = f"{_table(metrics)}\n{_NOTES[rows]}\n{_result(adapter)}\n{_HEADS[head]}Adapter: {out}"
    figures = {"adapter": str(out), "method": name, "rows": len(X), "head": head}
    console.show(f"{_verdict(**metrics)}\n\n{said}", figures | {"evaluated_on": rows, **metrics})


def _head_of(adapter: BaseAdapter) -> str | None:
    """Return whether the head is the checkpoint's or a new one, or None."""
    own, used = adapter.head, adapter.head_
    if used is None:
        return None
    same = isinstance(own, LinearHead) and np.array_equal(own.coef_, used.coef_)
    return "checkpoint" if same else "new"


def _model_to_record(source: Source) -> Any:
    """Return the encoder of the texts, or the name of the model given with a matrix."""
    if source.model is None:
        return None
    folder = Path(source.model).expanduser()
    if folder.is_dir():  # an absolute path is found from any folder
        source = source._replace(model=str(folder.resolve()))
    return source.model if source.is_matrix() else source.encoder()


def _data_to_record(source: Source, n_rows: int) -> dict[str, Any]:
    """Return what an adapter folder records about the rows of the fit."""
    names = ", ".join(path.name for path in (source.path, *source.more))
    data = {"source": names, "rows": n_rows, "teacher": source.teacher}
    data["pairs"] = "separately" if source.separately else None
    return {name: value for name, value in data.items() if value is not None}


def _judge(
    adapter: BaseAdapter, X: Any, y: NDArray[Any] | None
) -> tuple[str, dict[str, dict[str, float]]]:
    """Return the kind of rows that are judged, and their mean figures before and after."""
    if adapter._needs_teacher:
        return _FOLDS, {"before": {}, "after": {"r2": adapter.r2_}}
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
        head = adapter._resolve_head(np.asarray(_safe_indexing(X, others)), y[others])
        before[metric] = cast(LinearHead, head).score(np.asarray(rows), labels)
        after[metric] = adapter.score(rows, labels)
    return {"before": before, "after": after}


def _result(adapter: BaseAdapter) -> str:
    """Say what the vectors of a TeacherReadout are, and nothing of other adapters."""
    if not adapter._needs_teacher:
        return ""
    use = "comparable with the teacher's"
    if adapter.space == "head":
        use = "read by the classifier's head as its own input"
    width, n = adapter.map_.n_features_out, adapter.n_features_in_
    return f"The vectors have width {width}, from {n} columns of one pass, and are {use}.\n"


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
    rows = [("", "before", "after")]
    for key, value in metrics["after"].items():
        before = metrics["before"].get(key)
        shown = "" if before is None else f"{before:.4g}"
        rows.append((TITLES.get(key, key), shown, f"{value:.4g}"))
    return aligned_table(rows, at_least=(16, 9, 9))
