"""Uses of vectors: scope, a new class, wrong labels, new topics and duplicates."""

from functools import cache, partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import log_softmax
from sklearn import metrics
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from sklearn.preprocessing import normalize

from benchmarks._data import Floats, distinct_texts, read_table
from benchmarks._markdown import frame_table
from benchmarks.quality import Cells, _figures as figures, _intents, _texts as texts
from benchmarks.quality._checkpoints import CHECKPOINTS, INTENTS, drawn
from benchmarks.quality.dual_use import ALIGNED, BASE, OWN, POOLED, RAW, Embed, fitted
from isoadapt import NoveltyDetector, load_checkpoint
from isoadapt.metrics import find_duplicates

KEY = ("checkpoint", "vectors")
CASES = ("clinc150-minilm", "banking77-minilm", "cola-minilm")
HEAD, BESIDE = "max softmax, and own loss", ", raw beside"
ROWS = (HEAD, RAW, OWN, OWN + BESIDE, POOLED, POOLED + BESIDE, ALIGNED, ALIGNED + BESIDE, BASE)
FALSE_ALARMS, CLAIMED, WRONG = 0.05, 0.01, 0.05  # shares of rows
N_EXAMPLES, DRAWS = 8, 5
N_PLANTED, N_OTHERS = 100, 2000  # pairs of near-duplicates, and sentences among which they are
FOUND = {"among the first": 2000.0, "above the threshold": 10.0}  # false pairs
Labels, Figures = NDArray[Any], dict[str, figures.Figure]


def cells() -> Cells:
    """Yield the figures of each kind of vectors of each classifier."""
    for case in CASES:
        for row in ROWS:
            yield (case, row), partial(measure, case, row)


def measure(case: str, name: str) -> dict[str, Any]:
    """Compute the figures of the head, or of one kind of vectors."""
    checkpoint, task, found = CHECKPOINTS[case], CHECKPOINTS[case].task, {}
    own, logits = texts.own_texts(task), load_checkpoint(checkpoint.folder())[1].outputs
    embed, model = fitted(RAW if name == HEAD else name.removesuffix(BESIDE), checkpoint, own.fit)
    if model is not None:
        model.set_params(passthrough=name.endswith(BESIDE))
    score: Any = NoveltyDetector().fit(embed(own.fit)).score_samples
    if name == HEAD:
        score = partial(largest_probability, logits)
    old, labels = _intents.unseen_texts(task) if task in INTENTS else (own.inputs, own.labels)
    for kind, rows in foreign(task).items():
        of_scope = scope(score(embed(old)), score(embed(rows)))
        found |= {f"{kind}, {figure}": pair for figure, pair in of_scope.items()}
    if task in INTENTS:
        outputs = logits if name == HEAD else None
        found["wrong labels, AP"] = wrong_labels(embed(old), labels, outputs)
    if task in INTENTS and name != HEAD:
        new, names = _intents.unseen_texts(task, kept=False)
        found["wrong labels of left-out classes, AP"] = wrong_labels(embed(new), names, None)
        found["new class, recall"] = new_class(embed(old), embed(new), names)
        found["new topics, NMI"] = topics(embed(new), names)
    found |= duplicates(embed) if name != HEAD else {}
    return {"figures": {name: [round(part, 6) for part in pair] for name, pair in found.items()}}


def largest_probability(logits: Any, X: Floats) -> Floats:
    """Logarithm of the largest probability of each row."""
    return log_softmax(logits(X), axis=1).max(axis=1)


def foreign(task: str) -> dict[str, list[str]]:
    """Return texts that are out of the scope of a task."""
    if task not in INTENTS:
        near = texts.singles(read_table("mrpc", "test")[0])
        return {"WikiText": texts.foreign_texts(), "MRPC": near}
    found = {"left-out classes": _intents.unseen_texts(task, kept=False)[0]}
    return found | ({"its own oos": read_table(task, "oos_test")[0]} if task == "clinc150" else {})


def scope(inside: Floats, outside: Floats) -> Figures:
    """AUROC of scores, and the share of foreign texts that is accepted at 5 % false alarms."""
    scores, known = np.concatenate([inside, outside]), np.arange(len(inside) + len(outside))
    accepted, known = outside >= np.quantile(inside, FALSE_ALARMS), known < len(inside)
    return {"AUROC": _sampled(metrics.roc_auc_score, known, scores), "accepted": _mean(accepted)}


def new_class(old: Floats, new: Floats, names: Labels) -> figures.Figure:
    """Mean recall by the cosine to the mean of 8 examples of a class; 1 % of old rows claimed."""
    old, new, recalls = normalize(old), normalize(new), []
    for name in np.unique(names):
        rng, own = np.random.default_rng(0), np.flatnonzero(names == name)
        for rows in (rng.permutation(own) for _ in range(DRAWS)):
            mean = new[rows[:N_EXAMPLES]].mean(axis=0)
            limit = np.quantile(old @ mean, 1 - CLAIMED)
            recalls.append((new[rows[N_EXAMPLES:]] @ mean > limit).mean())
    return _mean(np.reshape(recalls, (-1, DRAWS)).mean(axis=1))


def wrong_labels(X: Floats, names: Labels, outputs: Any) -> figures.Figure:
    """Average precision of the loss, by a head or out of fold, where 5 % of labels are wrong."""
    rng, labels = np.random.default_rng(0), np.unique(names, return_inverse=True)[1]
    wrong, n_classes = rng.random(len(labels)) < WRONG, labels.max() + 1
    given = (labels + wrong * rng.integers(1, n_classes, len(labels))) % n_classes
    if outputs is None:
        logistic, options = LogisticRegression(C=10, max_iter=1000), {"method": "predict_log_proba"}
        found = cross_val_predict(logistic, normalize(X), given, **options)
    else:
        found = log_softmax(outputs(X), axis=1)
    return _sampled(metrics.average_precision_score, wrong, -found[np.arange(len(given)), given])


def topics(X: Floats, names: Labels) -> figures.Figure:
    """Normalised mutual information of k-means, with as many means as classes, and the classes."""
    means = KMeans(len({*names}), n_init=10, random_state=0).fit_predict(normalize(X))
    return _sampled(metrics.normalized_mutual_info_score, names, means)


@cache
def planted() -> tuple[set[tuple[int, int]], list[str]]:
    """Row numbers of pairs of STS-B that are of grade 5, and all rows: these and WikiText."""
    rows: list[str] = []
    graded, scores = read_table("stsb", "train")
    for pair in drawn([graded[i] for i in np.flatnonzero(scores == 5)], len(graded)):
        if len({text.lower() for text in pair}) == 2 and not {*pair} & {*rows}:
            rows += pair
    rows = rows[: 2 * N_PLANTED]
    pairs = {(i, i + 1) for i in range(0, len(rows), 2)}
    return pairs, rows + distinct_texts("wikitext2", "sentences")[:N_OTHERS]


def duplicates(embed: Embed) -> Figures:
    """Share of planted pairs among as many first ones, and that above a threshold."""
    (pairs, rows), shares = planted(), {}
    X, n = embed(rows), len(pairs)
    for name, asked in FOUND.items():
        found = find_duplicates(X, false_pairs=asked).pairs[:n].tolist()
        hits = np.arange(n) < sum(tuple(pair) in pairs for pair in found)
        shares[f"duplicates, {name}"] = _mean(hits)
    return shares


def text(frame: pd.DataFrame) -> str:
    """Return a table of each classifier, and how exact the figures are."""
    whole, tables = pd.DataFrame([*frame["figures"]], frame.set_index([*KEY]).index), []
    for case in frame["checkpoint"].unique():
        one = whole.loc[case].dropna(axis=1, how="all").rename_axis(case)
        tables.append(frame_table(one.map(lambda pair: f"{pair[0]:.3f}", na_action="ignore")))
    error = max(pair[1] for one in frame["figures"] for pair in one.values())
    return "\n\n".join([*tables, f"Largest standard error: {error:.3f}."])


def _mean(items: NDArray[Any]) -> figures.Figure:
    return figures.mean(np.asarray(items, np.float64))


def _sampled(metric: Any, *arrays: NDArray[Any]) -> figures.Figure:
    return figures.bootstrapped(lambda rows: metric(*(a[rows] for a in arrays)), len(arrays[0]))
