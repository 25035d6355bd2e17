"""Figures of many fits, to compare two states of the code: `python -m tools.figures OUT.json`.

`python -m tools.figures OUT.json BEFORE.json` compares with the figures of another state too, and
fails where a figure differs by more than 1e-6, relatively or absolutely. What it fits stays small,
but is of every kind: adapters, searches, text classifiers and the trainer of whole models.
"""

import argparse
import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.datasets import make_blobs

from isoadapt import AdaptedEncoder, IStarAdapter, TransformerEncoder
from isoadapt.finetune import finetune_text_classifier
from isoadapt.losses import CosRegLoss, IsoScoreLoss, PersistentEntropyLoss
from isoadapt.metrics import isotropy_report
from isoadapt.model_selection import AdapterSearchCV
from tests.adapters.test_common import ADAPTERS
from tests.finetune.runs import trained_weights
from tests.tiny_models import TEXTS, save_model

TOLERANCE = 1e-6
N_FITS = 10
Figures = dict[str, float]


def adapter_figures() -> Figures:
    """Ten fits of every kind of adapter, each to other rows."""
    found: Figures = {}
    for template in ADAPTERS:
        for seed in range(N_FITS):
            X, y = make_blobs(90, 6, centers=3, cluster_std=4.0, random_state=seed)
            X = X * [9, 3, 1, 1, 1, 0.3]
            adapter = clone(template)
            if "random_state" in adapter.get_params():
                adapter.set_params(random_state=seed)
            adapter.fit(X, y)
            found |= _fitted(f"{template!r} {seed}", adapter, X, y)
    return found


def _fitted(name: str, adapter: Any, X: Any, y: Any) -> Figures:
    """Some figures of a fitted adapter."""
    Z = adapter.transform(X)
    found = {"norm": np.linalg.norm(Z), "sum": Z.sum(), "score": adapter.score(X, y)}
    if hasattr(adapter, "predict"):
        found["predictions"] = np.asarray(adapter.predict(X), dtype=float).sum()
    for entry in getattr(adapter, "history_", [])[-1:]:
        found |= {key: value for key, value in entry.items() if key != "dur"}
    for key in ("best_epoch_", "ridge_", "n_iter_"):
        if hasattr(adapter, key):
            found[key] = getattr(adapter, key)
    return {f"{name}: {key}": float(value) for key, value in found.items()}


def search_figures() -> Figures:
    """A search, and the report of what was found."""
    X, y = make_blobs(200, 8, centers=2, cluster_std=5.0, random_state=0)
    grid = {"lam": [-1.0, 0.0, 1.0, 5.0], "zeta": [0.2, 0.8]}
    search = AdapterSearchCV(IStarAdapter(max_epochs=4, random_state=0), grid, cv=3).fit(X, y)
    found = {f"candidate {k}": s for k, s in enumerate(search.cv_results_["mean_test_score"])}
    found["best"] = search.best_index_
    report = isotropy_report(search.transform(X))
    found |= {k: v for k, v in vars(report).items() if isinstance(v, float)}
    return {f"search: {key}": float(value) for key, value in found.items()}


def text_figures(folder: Path) -> Figures:
    """Vectors and predictions of a tiny checkpoint."""
    checkpoint = save_model(folder / "bert")
    vectors = TransformerEncoder(checkpoint).fit_transform(TEXTS)
    model = AdaptedEncoder(checkpoint, IStarAdapter(max_epochs=2, random_state=0))
    model.fit(TEXTS * 4, [0, 1, 2, 0, 1, 2, 0, 1] * 4)
    found = {"vectors": np.linalg.norm(vectors), "probabilities": model.predict_proba(TEXTS)[:, 0]}
    return {f"texts: {key}": float(np.sum(value)) for key, value in found.items()}


def trainer_figures(folder: Path) -> Figures:
    """Weights of tiny models trained with each kind of penalty, and by the recipe for text."""
    penalties = {
        "istar": (IsoScoreLoss(0.3, "linear"), {"where": "all", "lam": -1.0}),
        "cosreg": (CosRegLoss(), {"where": [1]}),
        "entropy": (PersistentEntropyLoss(), {"where": "head_input"}),
    }
    found = {
        f"trainer {name} {part}": float(weight.double().norm())
        for name, parts in trained_weights(penalties, folder / "trainer", batch_size=8).items()
        for part, weight in parts.items()
    }
    checkpoint = save_model(folder / "base")
    tuned = finetune_text_classifier(
        checkpoint, TEXTS * 4, [0, 1] * 16, folder / "tuned", epochs=1, random_state=0
    )
    found["finetuned"] = float(np.linalg.norm(TransformerEncoder(tuned).fit_transform(TEXTS)))
    return found


def main() -> int:
    """Write the figures, and compare them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("before", type=Path, nargs="?")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        found = adapter_figures() | search_figures()
        found |= text_figures(Path(folder)) | trainer_figures(Path(folder))
    arguments.out.write_text(json.dumps(found, indent=1))
    if arguments.before is None:
        return 0
    before = json.loads(arguments.before.read_text())
    missing = sorted(before.keys() ^ found.keys())
    other = [
        f"{key}: {before[key]!r} before, {found[key]!r} now"
        for key in sorted(before.keys() & found.keys())
        if not np.isclose(before[key], found[key], TOLERANCE, TOLERANCE, equal_nan=True)
    ]
    print(f"{len(found)} figures, {len(other)} differ, {len(missing)} are on one side only")
    print("\n".join([*other[:20], *missing[:20]]))
    return int(bool(other or missing))


if __name__ == "__main__":
    sys.exit(main())
