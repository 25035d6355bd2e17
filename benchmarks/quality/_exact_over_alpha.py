"""Test whether the exact solver stays finite and useful on separable training data."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from sklearn.metrics import matthews_corrcoef

from benchmarks._data import Embeddings
from benchmarks._markdown import markdown_table
from isoadapt import IsotropyLayer
from isoadapt.metrics import isoscore

ALPHAS = (0.01, 0.1, 0.5, 0.9, 0.99, 1.0)
SUBSET_ROWS = 2000
SUBSET_SEEDS = (0, 1, 2)


class ExactFigures(NamedTuple):
    """Figures of one fit with the exact solver."""

    finite: bool
    norm: float
    matthews: float
    corrected: float


def exact_section(data: Embeddings) -> str:
    """Return the table over alpha, for all training rows and for separable subsets of them."""
    header = (f"exact, {data.name}", "rows", "finite", "‖WA‖", "Matthews", "corrected IsoScore")
    rows = [
        [f"alpha={alpha}", str(len(sets[0].X_train)), *_cells([_fit(part, alpha) for part in sets])]
        for sets in ([data], list(_subsets(data)))
        for alpha in ALPHAS
    ]
    before = np.linalg.norm(data.head.coef_)
    return (
        f"The exact solver over alpha; ‖W‖ = {before:.3f} before. For {SUBSET_ROWS} rows: the "
        f"range over {len(SUBSET_SEEDS)} random subsets of the training rows.\n\n"
        + markdown_table(header, rows)
    )


def _subsets(data: Embeddings) -> Iterator[Embeddings]:
    for seed in SUBSET_SEEDS:
        index = np.random.default_rng(seed).permutation(len(data.X_train))[:SUBSET_ROWS]
        yield data._replace(X_train=data.X_train[index], y_train=data.y_train[index])


def _fit(data: Embeddings, alpha: float) -> ExactFigures:
    layer = IsotropyLayer(data.head, alpha=alpha, solver="exact").fit(data.X_train, data.y_train)
    matrix, offset = layer.to_affine()
    return ExactFigures(
        bool(np.isfinite(matrix).all() and np.isfinite(offset).all()),
        float(np.linalg.norm(data.head.coef_ @ matrix)),
        float(matthews_corrcoef(data.y_test, layer.predict(data.X_test))),
        isoscore(layer.transform(data.X_test), bias_corrected=True),
    )


def _cells(fits: list[ExactFigures]) -> list[str]:
    finite = "yes" if all(fit.finite for fit in fits) else "**no**"
    columns = ([fit.norm for fit in fits], [fit.matthews for fit in fits])
    return [finite, *(_range(values) for values in (*columns, [fit.corrected for fit in fits]))]


def _range(values: list[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.3f}"
    return f"{min(values):.3f} to {max(values):.3f}"
