"""How stable is the λ that a grid search chooses.

Searches IStarAdapter over lam and zeta, under the checkpoint's own head, on rows that the encoder
was not fitted to.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from sklearn.model_selection import ParameterGrid, StratifiedKFold, cross_validate

from benchmarks._data import load_embeddings, load_unseen
from benchmarks._markdown import frame_table
from benchmarks.quality import Cells
from isoadapt import IStarAdapter
from isoadapt.model_selection import AdapterSearchCV, BestAboveFloor, make_isotropy_scorer

KEY = ("task", "kind", "seed")
TASKS = {"cola": (5, 1), "mrpc": (3, 0)}  # searches and nested cross-validations, other folds each
GRID = {"lam": [0.0, 0.1, 1.0, 10.0], "zeta": [0.2, 0.8]}
CANDIDATES = list(ParameterGrid(GRID))
OUTER = ("inner accuracy", "outer accuracy", "outer IsoScore")
FLOOR, N_FOLDS = 0.3, 5
ISOTROPY = make_isotropy_scorer("isoscore", bias_corrected=True)
SCORING = {"accuracy": "accuracy", "isoscore": ISOTROPY}

Scores = Mapping[str, Any]  # the columns of `cv_results_` that hold scores


def most_accurate(results: Scores) -> int:
    """Choose as `refit="accuracy"` does."""
    return int(np.argmax(results["mean_test_accuracy"]))


def one_standard_error(results: Scores) -> int:
    """Choose the most isotropic candidate within one standard error of the best accuracy.

    The standard error is that of the mean over the folds of the most accurate candidate.
    """
    accuracy, best = np.array(results["mean_test_accuracy"]), most_accurate(results)
    error = results["std_test_accuracy"][best] / (N_FOLDS - 1) ** 0.5
    close = accuracy >= accuracy[best] - error
    return int(np.argmax(np.where(close, results["mean_test_isoscore"], -np.inf)))


RULES: dict[str, Callable[[Scores], int]] = {
    'refit="accuracy"': most_accurate,
    "one standard error": one_standard_error,
    f"BestAboveFloor, {FLOOR}": BestAboveFloor("accuracy", "isoscore", FLOOR),
}


def cells() -> Cells:
    """Yield the searches and the nested cross-validations."""
    for task, numbers in TASKS.items():
        for run, n in zip((search, nested), numbers, strict=True):
            for seed in range(n):
                yield (task, run.__name__, seed), partial(run, task, seed)


def search(task: str, seed: int) -> dict[str, Any]:
    """Search once, and give the scores of each candidate."""
    head, X, y, adapter, options = _parts(task, seed)
    found = AdapterSearchCV(adapter, GRID, refit=False, **options).fit(X, y).cv_results_
    scores = {key: value.tolist() for key, value in found.items() if "_test_" in key}
    return {**scores, "head_alone": float(head.score(X, y))}


def nested(task: str, seed: int) -> dict[str, Any]:
    """Choose by each rule within four fifths of the rows, and judge the choice on the rest."""
    _, X, y, adapter, options = _parts(task, seed)
    outer = {}
    for rule, choose in RULES.items():
        inside = AdapterSearchCV(adapter, GRID, refit=choose, **options)
        judged = cross_validate(inside, X, y, **options, return_estimator=True)
        chosen = [
            each.cv_results_["mean_test_accuracy"][each.best_index_] for each in judged["estimator"]
        ]
        columns = (chosen, judged["test_accuracy"], judged["test_isoscore"])
        outer[rule] = np.column_stack(columns).tolist()
    return {"outer": outer}


def _parts(task: str, seed: int) -> tuple[Any, ...]:
    """Return the head, unseen rows and their labels, the adapter, and the options of a search."""
    head, (X, y) = load_embeddings(task).head, load_unseen(task)
    folds = StratifiedKFold(N_FOLDS, shuffle=True, random_state=seed)
    adapter = IStarAdapter(head, random_state=seed)
    return head, X, y, adapter, {"cv": folds, "scoring": SCORING}


def text(frame: pd.DataFrame) -> str:
    """Return the scores of the candidates, and the choices of the rules."""
    searches, nests = (frame[frame["kind"].eq(kind)] for kind in ("search", "nested"))
    fits = pd.DataFrame(index=pd.MultiIndex.from_frame(pd.DataFrame(CANDIDATES)))
    for task in TASKS:
        own = searches[searches["task"].eq(task)]
        accuracy, score = (np.stack(own[f"mean_test_{name}"]) for name in SCORING)
        figures = zip(accuracy.mean(0), accuracy.std(0, ddof=1), score.mean(0), strict=True)
        fits[task] = ["{:.4f} ± {:.4f} · {:.3f}".format(*each) for each in figures]
    fits = fits.unstack("zeta").rename_axis("lam: accuracy · IsoScore")
    fits.columns = pd.Index([f"{task}, zeta={zeta:g}" for task, zeta in fits.columns])
    rules = pd.DataFrame(index=pd.Index(RULES, name="rules"))
    for rule, choose in RULES.items():
        for task in TASKS:  # what the rule chooses in each search
            own = searches[searches["task"].eq(task)].to_dict("records")
            chosen = [CANDIDATES[choose(search)] for search in own]
            counts = Counter(f"{each['lam']:g}/{each['zeta']:g}" for each in chosen).most_common()
            shown = ", ".join(f"{key} × {n}" for key, n in counts)
            rules.loc[rule, f"{task}, chosen lam/zeta"] = shown
        folds = [fold for outer in nests["outer"] for fold in outer[rule]]
        for name, value in zip(OUTER, np.mean(folds, axis=0), strict=True):
            rules.loc[rule, f"cola, {name}"] = f"{value:.3f}"
    alone = searches.groupby("task")["head_alone"].first()
    heads = ", ".join(f"{task} {accuracy:.3f}" for task, accuracy in alone.items())
    return f"{frame_table(fits)}\n\n{frame_table(rules)}\n\nAccuracy of the head alone: {heads}."
