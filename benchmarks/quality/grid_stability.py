"""How stable is the λ that a grid search chooses.

Searches IStarAdapter over lam and zeta, under the checkpoint's own head, on rows that the encoder
was not fitted to.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import ParameterGrid, StratifiedKFold, cross_validate

from benchmarks._data import Floats, load_embeddings, load_unseen
from benchmarks._markdown import markdown_table
from benchmarks._places import RECORDS_FOLDER
from benchmarks.quality import Cells, Record
from isoadapt import IsotropyLayer, IStarAdapter, LinearHead
from isoadapt.metrics import isoscore
from isoadapt.model_selection import AdapterSearchCV, BestAboveFloor, make_isotropy_scorer

SECTION = "grid-stability"
RECORDS = RECORDS_FOLDER / "grid_stability.jsonl"
KEY = ("task", "kind", "seed")
TASKS = {"cola": (5, 1), "mrpc": (3, 0)}  # searches and nested cross-validations, other folds each
GRID = {"lam": [0.0, 0.1, 1.0, 10.0], "zeta": [0.2, 0.8]}
CANDIDATES = list(ParameterGrid(GRID))
ALPHAS = (0.1, 0.5, 0.9)
FLOOR = 0.3
SCORING = {
    "accuracy": "accuracy",
    "isoscore": make_isotropy_scorer("isoscore", bias_corrected=True),
}

Scores = Mapping[str, Any]  # the columns of `cv_results_` that hold scores


def most_accurate(results: Scores) -> int:
    """Choose as `refit="accuracy"` does."""
    return int(np.argmax(results["mean_test_accuracy"]))


def one_standard_error(results: Scores) -> int:
    """Choose the most isotropic candidate within one standard error of the best accuracy.

    The standard error is that of the mean over the folds of the most accurate candidate.
    """
    accuracy, best = np.array(results["mean_test_accuracy"]), most_accurate(results)
    n_folds = sum(key.endswith("_test_accuracy") and key.startswith("split") for key in results)
    error = results["std_test_accuracy"][best] / (n_folds - 1) ** 0.5
    close = accuracy >= accuracy[best] - error
    return int(np.argmax(np.where(close, results["mean_test_isoscore"], -np.inf)))


RULES: dict[str, Callable[[Scores], int]] = {
    'refit="accuracy"': most_accurate,
    "one standard error": one_standard_error,
    f"BestAboveFloor, {FLOOR}": BestAboveFloor("accuracy", "isoscore", FLOOR),
}


def cells() -> Cells:
    """Yield the searches, the nested cross-validations and the fits of the exact solver."""
    load = cache(lambda task: (load_embeddings(task).head, *load_unseen(task)[1:]))
    for task, (n_searches, n_nested) in TASKS.items():
        for kind, measure, n in (
            ("exact", exact, n_searches),
            ("search", search, n_searches),
            ("nested", nested, n_nested),
        ):
            for seed in range(n):
                yield (
                    (task, kind, seed),
                    lambda task=task, measure=measure, seed=seed: measure(*load(task), seed),
                )


def search(head: LinearHead, X: Floats, y: NDArray[Any], seed: int) -> dict[str, Any]:
    """Search once, and give the scores of each candidate."""
    adapter = IStarAdapter(head, random_state=seed, device="cpu")
    found = AdapterSearchCV(adapter, GRID, cv=_folds(seed), scoring=SCORING, refit=False).fit(X, y)
    scores = {key: value.tolist() for key, value in found.cv_results_.items() if "_test_" in key}
    return {**scores, "head_alone": float(head.score(X, y)), "n": len(y)}


def nested(head: LinearHead, X: Floats, y: NDArray[Any], seed: int) -> dict[str, Any]:
    """Choose by each rule within four fifths of the rows, and judge the choice on the rest."""
    found: dict[str, list[list[float]]] = {rule: [] for rule in RULES}
    for train, test in _folds(seed).split(X, y):
        results = search(head, X[train], y[train], seed)
        fitted: dict[int, list[float]] = {}
        for rule, choose in RULES.items():
            index = choose(_arrays(results))
            if index not in fitted:
                adapter = IStarAdapter(head, random_state=seed, device="cpu", **CANDIDATES[index])
                adapter.fit(X[train], y[train])
                score = isoscore(adapter.transform(X[test]), bias_corrected=True)
                fitted[index] = [float(adapter.score(X[test], y[test])), score]
            found[rule].append([results["mean_test_accuracy"][index], *fitted[index]])
    return {"outer": found}


def exact(head: LinearHead, X: Floats, y: NDArray[Any], seed: int) -> dict[str, Any]:
    """Cross-validate the exact solver for a few values of alpha."""
    found = {}
    for alpha in ALPHAS:
        layer = IsotropyLayer(head, alpha=alpha, solver="exact")
        scores = cross_validate(layer, X, y, cv=_folds(seed), scoring=SCORING)
        columns = ("test_accuracy", "test_isoscore", "fit_time")
        found[str(alpha)] = [float(np.mean(scores[column])) for column in columns]
    return {"exact": found}


def _folds(seed: int) -> StratifiedKFold:
    return StratifiedKFold(5, shuffle=True, random_state=seed)


def _arrays(results: Scores) -> dict[str, NDArray[Any]]:
    return {key: np.array(value) for key, value in results.items() if "_test_" in key}


INTRODUCTION = (
    "IStarAdapter under the checkpoint's own head, searched over "
    f"lam in {GRID['lam']} and zeta in {GRID['zeta']} by 5-fold cross-validation on rows that "
    "the encoder was not fitted to, several times with other folds and seeds. ±: standard "
    "deviation over these searches. Inner and outer accuracy are those of nested "
    "cross-validation with 5 outer folds: the mean score by which the rule chose, and "
    "the score of the refitted choice on rows that took no part in the choice. Exact: "
    'IsotropyLayer with solver="exact", cross-validated on the same folds.'
)


def text(records: Sequence[Record]) -> str:
    """Return the scores of the candidates, the choices of the rules, and the exact solver."""
    kinds: dict[str, dict[str, list[Record]]] = {"search": {}, "nested": {}, "exact": {}}
    for record in records:
        kinds[record["kind"]].setdefault(record["task"], []).append(record)
    alone = []
    for task, searches in kinds["search"].items():
        accuracy, n = searches[0]["head_alone"], searches[0]["n"]
        error = np.sqrt(accuracy * (1 - accuracy) / n)
        alone.append(
            f"{task}: the head alone has accuracy {accuracy:.3f}, with a standard error of "
            f"{error:.3f}; {len(searches)} searches."
        )
    tables = (_fits(kinds["search"], kinds["exact"]), _choices(kinds["search"], kinds["nested"]))
    return "\n\n".join([" ".join([INTRODUCTION, *alone]), *tables])


Tasks = Mapping[str, Sequence[Record]]


def _fits(searched: Tasks, exact: Tasks) -> str:
    """A row for each candidate and each alpha: means over the searches of each task."""
    rows = [[f"lam={each['lam']:g}, zeta={each['zeta']:g}"] for each in CANDIDATES]
    rows += [[f"exact, alpha={alpha}"] for alpha in ALPHAS]
    for task, searches in searched.items():
        accuracy, score = (
            np.array([search[f"mean_test_{metric}"] for search in searches]) for metric in SCORING
        )
        for k, row in enumerate(rows[: len(CANDIDATES)]):
            spread = accuracy[:, k].std(ddof=1)
            row += [f"{accuracy[:, k].mean():.4f} ± {spread:.4f}", f"{score[:, k].mean():.3f}"]
        for alpha, row in zip(map(str, ALPHAS), rows[len(CANDIDATES) :], strict=True):
            mean, score, _ = np.mean([cell["exact"][alpha] for cell in exact[task]], axis=0)
            row += [f"{mean:.4f}", f"{score:.3f}"]
    header = [f"{task}, {figure}" for task in searched for figure in ("accuracy", "IsoScore")]
    return markdown_table(["fits", *header], rows)


def _choices(searched: Tasks, nested: Tasks) -> str:
    """A row for each rule: what it chooses in each search, and what its choice is worth."""
    rows = []
    for rule, choose in RULES.items():
        choices = []
        for searches in searched.values():
            chosen = [CANDIDATES[choose(_arrays(search))] for search in searches]
            counts = Counter(f"{each['lam']:g}/{each['zeta']:g}" for each in chosen)
            choices.append(", ".join(f"{key} × {count}" for key, count in counts.most_common()))
        folds = [fold for cell in nested["cola"] for fold in cell["outer"][rule]]
        rows.append([rule, *choices, *(f"{mean:.3f}" for mean in np.mean(folds, axis=0))])
    header = [f"{task}, chosen lam/zeta" for task in searched]
    header += [
        f"cola, {figure}" for figure in ("inner accuracy", "outer accuracy", "outer IsoScore")
    ]
    return markdown_table(["rules", *header], rows)
