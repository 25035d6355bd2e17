"""Repeated calls of `compare_adapters` on generated rows, where each adapter's effect is known."""

import math
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import binomtest
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import FunctionTransformer

from benchmarks._data import Floats
from benchmarks._markdown import frame_table, markdown_table
from benchmarks._store import rounded
from benchmarks.quality import Cells
from isoadapt import AllButTheTop, ClusterIsotropy, IsoBN, Whitening
from isoadapt.model_selection import Similarity, compare_adapters

KEY = ("protocol", "discordance", "first")  # discordance is None if the labels are noise

PROTOCOLS = TEST_ROWS, FOLDS = "test rows", "cross-validation"
DISCORDANCES = (None, 0.05, 0.10, 0.20)
REPETITIONS, BLOCK = 200, 10
BASE_ACCURACY, EFFECT = 0.75, 0.03
CORRELATIONS = 0.5, 0.6  # of the latent similarity, before and after the planted adapter
LEVEL = 0.05
FOUND = {f"found, family of {n}": n for n in (1, 10)}  # columns of planted effects: adapters

SMALL = 1e-3  # scale of the columns that the planted adapter reads
N_NOISE, N_FOLDS = 200, 5
N_PLANTED, N_TRAIN, N_PAIRS = 2_000, 500, 300


def planted(X: Floats) -> Floats:
    """Show the columns (n, 3) that hold a better predictor, which no linear head finds in X.

    Columns 2 and 3 are two signs of which each alone is random; their product is the predictor.
    """
    return np.column_stack([X[:, 2] * X[:, 3] / SMALL**2, X[:, 4] / SMALL, X[:, 5]])


CHEAP = {
    type(adapter).__name__: adapter
    for adapter in (
        AllButTheTop(n_components=2),
        ClusterIsotropy(),
        IsoBN(),
        Whitening(n_components=4),
    )
}


def planted_rows(
    n: int, discordance: float, rng: np.random.Generator
) -> tuple[Floats, NDArray[np.int64]]:
    """Draw rows (n, 6), and labels that column 0 predicts with `BASE_ACCURACY`.

    The product of columns 2 and 3 predicts them with an accuracy that is higher by `EFFECT`. A
    share `discordance` of the rows is predicted correctly by exactly one of both.
    """
    y = rng.integers(2, size=n)
    gained, lost = (discordance + EFFECT) / 2, (discordance - EFFECT) / 2
    kind = rng.choice(4, size=n, p=[BASE_ACCURACY - lost, lost, gained, 1 - BASE_ACCURACY - gained])
    sign = 2.0 * y - 1
    before, after = (np.where(np.isin(kind, right), sign, -sign) for right in ((0, 1), (0, 2)))
    random_sign = rng.choice([-1.0, 1.0], size=n)
    noise = rng.normal(size=(n, 3)) * [0.1, 0.1 * SMALL, 0.1]
    hidden = SMALL * np.column_stack([random_sign, random_sign * after])
    return np.column_stack([before, noise[:, 0], hidden, noise[:, 1:]]), y


def planted_pairs(n: int, rng: np.random.Generator) -> tuple[Floats, Floats, Floats]:
    """Draw n pairs of rows whose cosines follow their scores by a Gaussian copula.

    No row is in two pairs, since such pairs are not independent.
    """
    scores, angle = rng.normal(size=n), rng.uniform(0, 2 * math.pi, size=n)
    first, second = np.tile([0.0, 0.0, SMALL, SMALL, 0.0, 0.0], (2, n, 1))
    before, after = (
        np.arccos(np.tanh(r * scores + math.sqrt(1 - r**2) * rng.normal(size=n)))
        for r in CORRELATIONS
    )
    first[:, :2], second[:, :2] = _directions(angle), _directions(angle + before)
    second[:, [2, 4]] = SMALL * _directions(after)
    return first, second, scores


def _directions(angle: Floats) -> Floats:
    return np.column_stack([np.cos(angle), np.sin(angle)])


def noise_rows(n: int, rng: np.random.Generator) -> tuple[Floats, NDArray[np.int64]]:
    """Draw anisotropic rows (n, 8) and labels that do not depend on them."""
    X = rng.normal(size=(n, 8)) * np.arange(1, 9) ** -1.0 + 0.5
    return X, rng.integers(2, size=n)


def spearman(correlation: float) -> float:
    """Return the rank correlation of two normal variables with this correlation."""
    return 6 / math.pi * math.asin(correlation / 2)


def cells() -> Cells:
    """Yield blocks of trials with consecutive seeds."""
    for key in product(PROTOCOLS, DISCORDANCES, range(0, REPETITIONS, BLOCK)):
        yield key, partial(run_block, *key)


def run_block(protocol: str, discordance: float | None, first: int) -> dict[str, Any]:
    """Run the trials of a block."""
    seeds = range(first, first + BLOCK)
    return {"trials": [run_trial(protocol, discordance, seed) for seed in seeds]}


def run_trial(protocol: str, discordance: float | None, seed: int) -> Any:
    """Compare on drawn rows; give tests and intervals by use.

    The tests have one p-value for each adapter. The intervals are those of the first adapter: of
    its score and of its difference from no adapter.
    """
    drawn = PROTOCOLS.index(protocol), round(1_000 * (discordance or 0))
    rng = np.random.default_rng([seed, *drawn])
    options: dict[str, Any] = {}
    if discordance is None:
        n = n_train = N_NOISE
        draw, head, adapters = partial(noise_rows, rng=rng), "logistic", CHEAP
    else:  # a fixed C, since its choice takes most of the time
        n, n_train = N_PLANTED, N_TRAIN
        draw = partial(planted_rows, discordance=discordance, rng=rng)
        head, adapters = LogisticRegression(), {"planted": FunctionTransformer(planted)}
    X, y = draw(n_train if protocol == TEST_ROWS else n)
    if protocol == TEST_ROWS:
        options["X_test"], options["y_test"] = draw(n)
        if discordance is not None:
            options["uses"] = [Similarity(*planted_pairs(N_PAIRS, rng))]
    found = compare_adapters(
        X, y, adapters, head=head, cv=N_FOLDS, encoder_saw=False, random_state=seed, **options
    )
    trial: dict[str, Any] = {"p": {}, "p_holm": {}, "score": {}, "difference": {}}
    for use in found.uses:
        rows = [row for row in found.rows if row["use"] == use and row["kind"] == "adapter"]
        trial["p"][use] = [row["p_value"] for row in rows]
        trial["p_holm"][use] = [row["p_holm"] for row in rows]
        trial["score"][use] = [rows[0][f"ci_{end}"] for end in ("low", "high")]
        trial["difference"][use] = [rows[0][f"difference_{end}"] for end in ("low", "high")]
    return rounded(trial, 5)


GAINS = [spearman(r) for r in CORRELATIONS]
TRUTHS = {  # score and difference of planted rows, and those of noise, where they are known
    "classify": ((BASE_ACCURACY + EFFECT, EFFECT), (0.5, 0.0)),
    "similarity": ((GAINS[1], GAINS[1] - GAINS[0]), None),
}


def text(frame: pd.DataFrame) -> str:
    """Return the table of planted effects and coverage of intervals, and the errors for noise."""
    noise, rows = [], []
    for protocol, share in product(PROTOCOLS, DISCORDANCES):
        drawn = frame["discordance"].isna() if share is None else frame["discordance"].eq(share)
        blocks = frame.loc[drawn & frame["protocol"].eq(protocol), "trials"]
        trials = pd.json_normalize([trial for block in blocks for trial in block])
        row = {"protocol": protocol, "rows": "noise", **dict.fromkeys(FOUND, "")}
        if share is None:
            for use in ("classify", "neighbours"):
                errors = trials[f"p_holm.{use}"].map(min).le(LEVEL)
                p = binomtest(errors.sum(), len(errors), LEVEL, alternative="greater").pvalue
                noise.append((protocol, use, _share(errors), f"{p:.3f}"))
        else:
            better = trials["difference.classify"].map(sum) > 0
            row["rows"] = f"planted, {share:.0%} discordant"
            for title, n in FOUND.items():
                row[title] = _share(better & trials["p.classify"].map(min).mul(n).le(LEVEL))
        for use, truths in TRUTHS.items():
            for i, kind in enumerate(("score", "difference")):
                truth, found = truths[share is None], trials.get(f"{kind}.{use}")
                known = truth is not None and found is not None
                row[f"coverage of {use}, {kind}"] = _coverage(found, truth[i]) if known else ""
        rows.append(row)
    table = frame_table(pd.DataFrame(rows).set_index("protocol"))
    header = ("protocol, rows of noise", "use", "any adapter differs", "p")
    return f"{table}\n\n{markdown_table(header, noise)}"


def _share(found: pd.Series) -> str:
    half = 1.96 * math.sqrt(found.mean() * (1 - found.mean()) / len(found))
    return f"{found.sum()} of {len(found)} ({found.mean():.1%} ± {half:.1%})"


def _coverage(intervals: pd.Series, truth: float) -> str:
    """Return the share of intervals that hold the truth, bold if a test rejects 95 %."""
    held = intervals.map(lambda ends: ends[0] <= truth <= ends[1])
    rejected = binomtest(held.sum(), len(held), 1 - LEVEL).pvalue <= LEVEL
    return f"**{held.mean():.1%}**" if rejected else f"{held.mean():.1%}"
