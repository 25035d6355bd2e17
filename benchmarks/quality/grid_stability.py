"""How stable is the λ that a grid search chooses: `python -m benchmarks.quality.grid_stability`.

Searches IStarAdapter over lam and zeta, under the checkpoint's own head, on rows that the encoder
was not fitted to. Finished searches are kept in a file, and an interrupted run continues there.
Prints Markdown; `--write FILE` puts it into a section of that file.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.model_selection import ParameterGrid, StratifiedKFold, cross_validate
from tqdm import tqdm

from benchmarks._data import load_embeddings, load_unseen
from benchmarks._markdown import markdown_table
from benchmarks._places import RESULTS
from benchmarks._store import CellStore
from benchmarks._versions import versions, written
from benchmarks.quality._command import add_write_option, publish, run_resumable
from isoadapt import IsotropyLayer, IStarAdapter, LinearHead
from isoadapt.metrics import isoscore
from isoadapt.model_selection import AdapterSearchCV, BestAboveFloor, make_isotropy_scorer

TASKS = {"cola": (5, 1), "mrpc": (3, 0)}  # searches and nested cross-validations, other folds each
GRID = {"lam": [0.0, 0.1, 1.0, 10.0], "zeta": [0.2, 0.8]}
CANDIDATES = list(ParameterGrid(GRID))
ALPHAS = (0.1, 0.5, 0.9)
EXACT_FIGURES = ("test_accuracy", "test_isoscore", "fit_time")
FLOOR = 0.3
KINDS = ("search", "nested", "exact")
SCORING = {
    "accuracy": "accuracy",
    "isoscore": make_isotropy_scorer("isoscore", bias_corrected=True),
}
Cell = Mapping[str, Any]
Cells = Mapping[tuple[str, str, int], Cell]


def most_accurate(results: Mapping[str, Any]) -> int:
    """Choose as `refit="accuracy"` does."""
    return int(np.argmax(results["mean_test_accuracy"]))


def one_standard_error(results: Mapping[str, Any]) -> int:
    """Choose the most isotropic candidate within one standard error of the best accuracy.

    The standard error is that of the mean over the folds of the most accurate candidate.
    """
    accuracy, best = results["mean_test_accuracy"], most_accurate(results)
    n_folds = sum(key.endswith("_test_accuracy") and key.startswith("split") for key in results)
    error = results["std_test_accuracy"][best] / (n_folds - 1) ** 0.5
    close = accuracy >= accuracy[best] - error
    return int(np.argmax(np.where(close, results["mean_test_isoscore"], -np.inf)))


RULES: dict[str, Callable[[Mapping[str, Any]], int]] = {
    'refit="accuracy"': most_accurate,
    "one standard error": one_standard_error,
    f"BestAboveFloor, {FLOOR}": BestAboveFloor("accuracy", "isoscore", FLOOR),
}


class Task:
    """Rows of a task that the encoder was not fitted to, and the checkpoint's head."""

    def __init__(self, name: str) -> None:
        rows = load_unseen(name)
        self.name, self.X, self.y = name, rows.X, rows.y
        self.head: LinearHead = load_embeddings(name).head

    def search(self, seed: int) -> Cell:
        """Search once; the mean scores of each candidate."""
        return _search(self.head, self.X, self.y, seed)

    def nested(self, seed: int) -> Cell:
        """Choose by each rule within four fifths of the rows, and judge the choice on the rest."""
        found: dict[str, list[list[float]]] = {rule: [] for rule in RULES}
        for train, test in _folds(seed).split(self.X, self.y):
            results = _search(self.head, self.X[train], self.y[train], seed)
            fitted: dict[int, list[float]] = {}
            for rule, choose in RULES.items():
                index = choose({key: np.array(value) for key, value in results.items()})
                if index not in fitted:
                    adapter = clone(_adapter(self.head, seed)).set_params(**CANDIDATES[index])
                    adapter.fit(self.X[train], self.y[train])
                    fitted[index] = _judged(adapter, self.X[test], self.y[test])
                found[rule].append([results["mean_test_accuracy"][index], *fitted[index]])
        return {"outer": found}

    def exact(self, seed: int) -> Cell:
        """Cross-validate the exact solver for a few values of alpha."""
        found = {}
        for alpha in ALPHAS:
            layer = IsotropyLayer(self.head, alpha=alpha, solver="exact")
            scores = cross_validate(layer, self.X, self.y, cv=_folds(seed), scoring=SCORING)
            found[str(alpha)] = [
                float(np.mean(scores[key]))
                for key in ("test_accuracy", "test_isoscore", "fit_time")
            ]
        return {"exact": found}

    def head_alone(self) -> tuple[float, float]:
        """Accuracy of the head without an adapter, and its standard error."""
        accuracy = float(self.head.score(self.X, self.y))
        return accuracy, float(np.sqrt(accuracy * (1 - accuracy) / len(self.y)))


def _folds(seed: int) -> StratifiedKFold:
    return StratifiedKFold(5, shuffle=True, random_state=seed)


def _adapter(head: LinearHead, seed: int) -> IStarAdapter:
    return IStarAdapter(head, random_state=seed, device="cpu")


def _search(head: LinearHead, X: NDArray[Any], y: NDArray[Any], seed: int) -> dict[str, Any]:
    search = AdapterSearchCV(
        _adapter(head, seed), GRID, cv=_folds(seed), scoring=SCORING, refit=False
    )
    results = search.fit(X, y).cv_results_
    return {key: value.tolist() for key, value in results.items() if "_test_" in key}


def _judged(adapter: IStarAdapter, X: NDArray[Any], y: NDArray[Any]) -> list[float]:
    return [float(adapter.score(X, y)), isoscore(adapter.transform(X), bias_corrected=True)]


def _plan() -> Iterator[tuple[str, str, int]]:
    """Task, kind and seed of each cell."""
    for task, (n_searches, n_nested) in TASKS.items():
        yield from ((task, "exact", seed) for seed in range(n_searches))
        yield from ((task, "search", seed) for seed in range(n_searches))
        yield from ((task, "nested", seed) for seed in range(n_nested))


def _parse(line: Mapping[str, Any]) -> tuple[tuple[str, str, int], Cell]:
    return (line["task"], line["kind"], line["seed"]), line


def _measure(path: Path) -> Cells:
    store = CellStore(path, _parse)
    tasks: dict[str, Task] = {}
    for key in tqdm(list(_plan()), desc="searches", disable=not sys.stderr.isatty()):
        if store.get(key) is None:
            name, kind, seed = key
            task = tasks.setdefault(name, Task(name))
            started = time.perf_counter()
            cell = getattr(task, kind)(seed)
            seconds = time.perf_counter() - started
            store.add({"task": name, "kind": kind, "seed": seed, "seconds": seconds, **cell})
    return {_parse(cell)[0]: cell for cell in store.entries()}


def _tables(cells: Cells) -> str:
    parts = [INTRODUCTION]
    for name in TASKS:
        accuracy, error = Task(name).head_alone()
        searches, nested, exact = (_of_kind(cells, name, kind) for kind in KINDS)
        parts.append(
            f"{name}: the head alone has accuracy {accuracy:.3f} ± {error:.3f}; "
            f"{len(searches)} searches.\n\n{_candidates(name, searches)}"
            f"\n\n{_choices(name, searches, nested)}\n\n{_exact(name, exact)}"
        )
    return "\n\n".join([*parts, f"Measured with {written(versions())}."])


def _of_kind(cells: Cells, name: str, kind: str) -> list[Cell]:
    return [cell for (task, found, _), cell in cells.items() if (task, found) == (name, kind)]


def _candidates(name: str, searches: Sequence[Cell]) -> str:
    """A row for each candidate: means over the searches."""
    accuracy, score = (
        np.array([search[f"mean_test_{metric}"] for search in searches]) for metric in SCORING
    )
    spread = accuracy.std(axis=0, ddof=1)
    rows = [
        [
            f"lam={candidate['lam']:g}, zeta={candidate['zeta']:g}",
            f"{accuracy[:, k].mean():.4f} ± {spread[k]:.4f}",
            f"{score[:, k].mean():.3f}",
        ]
        for k, candidate in enumerate(CANDIDATES)
    ]
    return markdown_table((f"candidates, {name}", "accuracy", "corrected IsoScore"), rows)


def _choices(name: str, searches: Sequence[Cell], nested: Sequence[Cell]) -> str:
    """A row for each rule: what it chooses in each search, and what its choice is worth."""
    rows = []
    for rule, choose in RULES.items():
        indices = [
            choose({key: np.array(value) for key, value in search.items() if "_test_" in key})
            for search in searches
        ]
        chosen = Counter(f"{CANDIDATES[k]['lam']:g}/{CANDIDATES[k]['zeta']:g}" for k in indices)
        folds = [fold for cell in nested for fold in cell["outer"][rule]]
        judged = [f"{mean:.3f}" for mean in np.mean(folds, axis=0)] if folds else ["", "", ""]
        choices = ", ".join(f"{key} × {count}" for key, count in chosen.most_common())
        rows.append([rule, choices, *judged])
    header = (
        f"rules, {name}",
        "chosen lam/zeta",
        "inner accuracy",
        "outer accuracy",
        "outer IsoScore",
    )
    return markdown_table(header, rows)


def _exact(name: str, cells: Sequence[Cell]) -> str:
    """A row for each alpha: means over the seeds."""
    figures = {
        alpha: np.mean([cell["exact"][str(alpha)] for cell in cells], axis=0) for alpha in ALPHAS
    }
    rows = [
        [f"alpha={alpha}", f"{accuracy:.4f}", f"{score:.3f}", f"{seconds:.2f}"]
        for alpha, (accuracy, score, seconds) in figures.items()
    ]
    header = (f"exact, {name}", "accuracy", "corrected IsoScore", "fit, s")
    return markdown_table(header, rows)


INTRODUCTION = (
    "IStarAdapter under the checkpoint's own head, searched over "
    f"lam in {GRID['lam']} and zeta in {GRID['zeta']} by 5-fold cross-validation on rows that "
    "the encoder was not fitted to, several times with other folds and seeds. ±: standard "
    "deviation over these searches. Inner and outer accuracy are those of nested "
    "cross-validation with 5 outer folds: the mean score by which the rule chose, and "
    "the score of the refitted choice on rows that took no part in the choice. Exact: "
    'IsotropyLayer with solver="exact", cross-validated on the same folds.'
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the searches that are not finished yet, and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality.grid_stability")
    parser.add_argument(
        "--cells", type=Path, default=RESULTS / "grid_stability.jsonl", help="finished searches"
    )
    add_write_option(parser)

    def run(options: argparse.Namespace) -> int:
        publish(_tables(_measure(options.cells)), options.write, "grid-stability")
        return 0

    return run_resumable(run, parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
