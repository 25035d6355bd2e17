"""Implementation of ``isoadapt fit``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isoadapt import TransformerEncoder
from isoadapt._utils.files import ADAPTER, check_output_folder
from isoadapt._utils.messages import aligned_table, choices
from isoadapt.adapters._base import BaseAdapter
from isoadapt.adapters._registry import ADAPTERS, METHODS
from isoadapt.cli._options import Console, Source, WrongUsage, read_settings
from isoadapt.cli._rows import (
    check_several_rows,
    data_to_record,
    model_to_record,
    read_rows,
)
from isoadapt.encoders._checkpoint import encoder_head
from isoadapt.interop import save_adapter
from isoadapt.metrics._units import main_figures

_ROWS = "These figures are for the rows that the adapter was fitted to. Evaluate it on other rows."


def fit(
    name: str,
    source: Source,
    out: Path,
    settings: Sequence[str],
    overwrite: bool,
    console: Console,
) -> None:
    """Fit and save an adapter, and print the figures before and after."""
    adapter = _make_adapter(name, settings)
    sets_head = any(setting.partition("=")[0].strip() == "head" for setting in settings)
    with console.notes():
        check_output_folder(out, overwrite, content=ADAPTER, name="--out")
        X, y = read_rows(source, verbose=console.verbose)
        check_several_rows(X, source.path)
        if source.model is not None and not sets_head:
            encoder = TransformerEncoder(source.model)
            adapter._take_checkpoint_head(lambda: encoder_head(encoder), y)
    if source.separately and adapter._needs_y():
        raise WrongUsage(
            f"{type(adapter).__name__} needs labels, but with --separately the labels are those of "
            f"pairs, not of texts: name one column with --text{_without_head(adapter)}"
        )
    if y is None and adapter._needs_y():
        raise WrongUsage(
            f"{type(adapter).__name__} needs labels, and {source.path} has none: name their column "
            f"with --label, or their file with --labels{_without_head(adapter)}"
        )
    console.say(f"Fitting {' '.join(repr(adapter).split())} to {len(X)} rows ...")
    with console.notes():
        before = _figures(X, _head_score(adapter, X, y))
        adapter.fit(X, y)
        adapted = adapter.transform(X)
        after = _figures(adapted, _score(adapter, X, y))
        metrics = {"before": before, "after": after}
        save_adapter(
            adapter,
            out,
            base_model=model_to_record(source),
            data=data_to_record(source, len(X)),
            metrics={f"{name}, on the rows it was fitted to": metrics[name] for name in metrics},
            overwrite=overwrite,
        )
    console.show(
        f"{_table(metrics)}\n{_ROWS}\n\nAdapter: {out}",
        {
            "adapter": str(out),
            "method": name,
            "rows": len(X),
            "evaluated_on": "rows of the fit",
            **metrics,
        },
    )


def _make_adapter(name: str, settings: Sequence[str]) -> BaseAdapter:
    """Make an adapter from its name and its parameters as strings."""
    if name not in METHODS:
        raise WrongUsage(f"{name!r} is not the name of an adapter; {choices(name, METHODS)}")
    cls = ADAPTERS[METHODS[name]]
    adapter = cls(**read_settings(settings, cls._get_param_names(), cls.__name__))
    try:
        adapter._validate_params()
    except ValueError as error:
        raise WrongUsage(str(error)) from error
    return adapter


def _without_head(adapter: BaseAdapter) -> str:
    """Return the advice to fit without a head, if the adapter can be fitted so."""
    headless = None in adapter._parameter_constraints["head"]
    return ", or fit without a head by --set head=None" if headless else ""


def _figures(X: Any, score: dict[str, float]) -> dict[str, float]:
    found = main_figures(X)
    return {name: found[name] for name in ("isoscore", "isoscore_corrected", "ev1")} | score


def _head_score(adapter: BaseAdapter, X: Any, y: NDArray[Any] | None) -> dict[str, float]:
    """Return the score of the head on the original embeddings, if it knows the labels."""
    if y is None or adapter._head_kind() is None:
        return {}
    head = adapter._resolve_head(np.asarray(X), y)
    if head is None or (head.classes_ is not None and not {*y.tolist()} <= {*head.classes_}):
        return {}
    return {_metric(adapter): head.score(np.asarray(X), y)}


def _score(adapter: BaseAdapter, X: Any, y: NDArray[Any] | None) -> dict[str, float]:
    if y is None or adapter._head_kind() is None:
        return {}
    return {_metric(adapter): adapter.score(X, y)}


def _metric(adapter: BaseAdapter) -> str:
    return "accuracy" if adapter._head_kind() == "classifier" else "r2"


def _table(metrics: dict[str, dict[str, float]]) -> str:
    names = {"isoscore": "IsoScore", "isoscore_corrected": "  corrected", "ev1": "EV1", "r2": "R²"}
    rows = [("", "before", "after")]
    for key, value in metrics["after"].items():
        before = metrics["before"].get(key)
        shown = "" if before is None else f"{before:.4g}"
        rows.append((names.get(key, key), shown, f"{value:.4g}"))
    return aligned_table(rows, at_least=(16, 9, 9))
