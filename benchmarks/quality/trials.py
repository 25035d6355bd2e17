"""Repeated calls of `compare_adapters` on generated rows, where each adapter's effect is known."""

import math
from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import binomtest
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.linear_model import LogisticRegression

from benchmarks._data import Floats
from benchmarks._markdown import markdown_table
from benchmarks._places import RECORDS_FOLDER
from benchmarks.quality import Cells, Record
from isoadapt import AllButTheTop, ClusterIsotropy, IsoBN, Whitening
from isoadapt.model_selection import Similarity, compare_adapters

SECTION = "trials"
RECORDS = RECORDS_FOLDER / "comparison_trials.jsonl"
KEY = ("protocol", "discordance", "first")  # discordance is None if the labels are noise

TEST_ROWS, FOLDS = "test rows", "cross-validation"
PROTOCOLS = (TEST_ROWS, FOLDS)
DISCORDANCES = (None, 0.05, 0.10, 0.20)
REPETITIONS, BLOCK = 200, 10
BASE_ACCURACY, EFFECT = 0.75, 0.03
CORRELATIONS = 0.5, 0.6  # of the latent similarity, before and after the planted adapter
LEVEL = 0.05
FAMILY = 10  # adapters of the larger family in the table of planted effects

SMALL = 1e-3  # scale of the columns that the planted adapter reads
N_NOISE, N_FOLDS = 200, 5
N_PLANTED, N_TRAIN, N_PAIRS = 2_000, 500, 300

# --- what is drawn -------------------------------------------------------------------------------


class PlantedAdapter(TransformerMixin, BaseEstimator):
    """Show the columns that hold a better predictor, which no linear head finds in X.

    Columns 2 and 3 are two signs of which each alone is random; their product is the predictor.
    """

    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> Self:
        """Do nothing."""
        return self

    def transform(self, X: Any) -> Floats:
        """Return rows (n, 3): the product of columns 2 and 3, column 4, and column 5."""
        return np.column_stack([X[:, 2] * X[:, 3] / SMALL**2, X[:, 4] / SMALL, X[:, 5]])


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
    first = np.tile([0.0, 0.0, SMALL, SMALL, 0.0, 0.0], (n, 1))
    second = first.copy()
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


def noise_precision(protocol: str) -> float:
    """Return the expected share of neighbours of the same class if labels are noise.

    Two rows of a sample have the same random label with a probability of one half. Folds are
    stratified: one of n rows with m of the same label has only m - 1 others.
    """
    if protocol == TEST_ROWS:
        return 0.5
    fold = N_NOISE / N_FOLDS
    parts = np.arange(N_FOLDS) / N_FOLDS
    rounding = float(np.mean(parts * (1 - parts)))  # variance of the rows of a label in a fold
    # mean of the sum of the squared shares of both labels in a fold
    squares = 0.5 + 0.5 / N_NOISE + 2 * rounding / fold**2
    return (squares - 1 / fold) / (1 - 1 / fold)


# --- the trials ----------------------------------------------------------------------------------


def cells() -> Cells:
    """Yield blocks of trials with consecutive seeds."""
    for protocol in PROTOCOLS:
        for discordance in DISCORDANCES:
            for first in range(0, REPETITIONS, BLOCK):
                key = protocol, discordance, first
                yield key, partial(run_block, *key)


def run_block(protocol: str, discordance: float | None, first: int) -> dict[str, Any]:
    """Run the trials of a block."""
    seeds = range(first, first + BLOCK)
    return {"trials": [run_trial(protocol, discordance, seed) for seed in seeds]}


def run_trial(protocol: str, discordance: float | None, seed: int) -> dict[str, Any]:
    """Compare on drawn rows; give tests and intervals by use.

    The tests have one p-value for each adapter. The intervals are those of the first adapter: of
    its score and of its difference from no adapter.
    """
    rng = np.random.default_rng(
        [seed, PROTOCOLS.index(protocol), round(1_000 * (discordance or 0))]
    )
    planted = discordance is not None
    n, n_train = (N_PLANTED, N_TRAIN) if planted else (N_NOISE, N_NOISE)

    def draw(n_rows: int) -> tuple[Floats, NDArray[np.int64]]:
        return planted_rows(n_rows, discordance, rng) if planted else noise_rows(n_rows, rng)

    options: dict[str, Any] = {}
    if protocol == TEST_ROWS:
        X, y = draw(n_train)
        options["X_test"], options["y_test"] = draw(n)
        if planted:
            options["uses"] = [Similarity(*planted_pairs(N_PAIRS, rng))]
    else:
        X, y = draw(n)
    cheap = {
        "AllButTheTop": AllButTheTop(n_components=2),
        "ClusterIsotropy": ClusterIsotropy(),
        "IsoBN": IsoBN(),
        "Whitening": Whitening(n_components=4),
    }
    adapters = {"planted": PlantedAdapter()} if planted else cheap
    found = compare_adapters(
        X,
        y,
        adapters,
        # for planted effects a fixed C: its choice takes most of the time
        head=LogisticRegression() if planted else "logistic",
        cv=N_FOLDS,
        encoder_saw=False,
        random_state=seed,
        **options,
    )
    trial: dict[str, Any] = {"p": {}, "p_holm": {}, "score": {}, "difference": {}}
    for use in found.uses:
        rows = [row for row in found.rows if row["use"] == use and row["kind"] == "adapter"]
        trial["p"][use] = [_short(row["p_value"]) for row in rows]
        trial["p_holm"][use] = [_short(row["p_holm"]) for row in rows]
        trial["score"][use] = [_short(rows[0][f"ci_{end}"]) for end in ("low", "high")]
        trial["difference"][use] = [_short(rows[0][f"difference_{end}"]) for end in ("low", "high")]
    return trial


def _short(value: float) -> float:
    return float(f"{value:.5g}")


# --- what is counted in them ---------------------------------------------------------------------


class Count(NamedTuple):
    """How often something happened in independent trials."""

    n: int
    of: int

    def __str__(self) -> str:
        share = self.n / self.of
        half = 1.96 * math.sqrt(share * (1 - share) / self.of)
        return f"{self.n} of {self.of} ({share:.1%} ± {half:.1%})"


def family_errors(trials: Sequence[Record], use: str) -> Count:
    """Trials in which any adapter differs from no adapter after Holm's adjustment."""
    return Count(sum(min(trial["p_holm"][use]) <= LEVEL for trial in trials), len(trials))


def found_effects(trials: Sequence[Record], family: int) -> Count:
    """Trials that find the gain of the first adapter if its p-value is the smallest of a family."""
    found = [
        trial["p"]["classify"][0] * family <= LEVEL and sum(trial["difference"]["classify"]) > 0
        for trial in trials
    ]
    return Count(sum(found), len(trials))


def covered(trials: Sequence[Record], use: str, interval: str, truth: float) -> Count:
    """Trials whose interval, "score" or "difference", holds the true value."""
    intervals = [trial[interval][use] for trial in trials]
    return Count(sum(low <= truth <= high for low, high in intervals), len(trials))


# --- the section ---------------------------------------------------------------------------------

TRUTHS = {
    "classify": (BASE_ACCURACY + EFFECT, EFFECT),
    "similarity": (
        spearman(CORRELATIONS[1]),
        spearman(CORRELATIONS[1]) - spearman(CORRELATIONS[0]),
    ),
}
PROTOCOL = (
    f"Noise: {N_NOISE} judged rows of 8 dimensions (and as many training rows for the protocol "
    "with test rows) with random labels, and four adapters with the default head: AllButTheTop, "
    "ClusterIsotropy, IsoBN, which changes hardly any prediction, and Whitening to 4 components. "
    "“any adapter differs” counts trials with a p-value of at most 0.05 "
    "in either direction after Holm's adjustment; p tests that the true rate is at most 5 %.",
    f"Planted: {N_PLANTED:,} judged rows ({N_TRAIN} other rows to fit to, or cross-validation of "
    f"all). A sign predicts the label with an accuracy of {BASE_ACCURACY}, and the product of two "
    f"other signs with {BASE_ACCURACY + EFFECT:.2f}. A linear head cannot find the product; the "
    "planted adapter computes it, and a logistic head with C = 1 is fitted to the result. "
    "Discordant rows are "
    "those that exactly one of both predicts correctly. “found, family of 1” is the share of "
    "trials in which the adapter is shown to be better if it is the only one, at least 80 % "
    f"wanted; “found, family of {FAMILY}” is that for the smallest p-value among {FAMILY} "
    "adapters, which Holm's adjustment multiplies by their number.",
    "Coverage: share of the 95 % intervals that hold the truth, of the planted adapter, or of "
    f"AllButTheTop for noise; bold where a two-sided binomial test rejects 95 % at the level of "
    f"5 %, as it does for some of so many by chance. Similarity: {N_PAIRS} pairs whose cosines and "
    "scores are joined by a Gaussian copula with a correlation of "
    f"{CORRELATIONS[0]} before and {CORRELATIONS[1]} after the adapter. For noise, the expected "
    "precision of neighbours of the same class is 0.5 among test rows and "
    f"{noise_precision(FOLDS):.3f} in stratified folds. In a cross-validation of noise, a head "
    "predicts the label that is more frequent in the sample more often than the other, and its "
    "accuracy lies above 0.5 on average, so that fewer intervals of the score hold 0.5. Each "
    f"setting has {REPETITIONS} repetitions with the seeds 0, 1, …. ± is 1.96 standard errors.",
)


def text(records: Sequence[Record]) -> str:
    """Return the table of planted effects and coverage of intervals, and the errors for noise."""
    noise, rows = [], []
    for protocol, share in product(PROTOCOLS, DISCORDANCES):
        own = [
            trial
            for block in records
            if (block["protocol"], block["discordance"]) == (protocol, share)
            for trial in block["trials"]
        ]
        if share is None:
            for use in own[0]["p"]:
                errors = family_errors(own, use)
                p = binomtest(*errors, LEVEL, alternative="greater").pvalue
                noise.append(f"{protocol}, {use}: {errors}, p = {p:.3f}")
            counts, drawn = ["", ""], "noise"
        else:
            counts = [str(found_effects(own, family)) for family in (1, FAMILY)]
            drawn = f"planted, {share:.0%} discordant"
        rows.append([protocol, drawn, *counts, *_coverages(own, protocol, share)])
    header = ["protocol", "rows", "found, family of 1", f"found, family of {FAMILY}"]
    uses, kinds = ("accuracy", "similarity", "same class"), ("score", "difference")
    header += [f"coverage of {use}, {kind}" for use, kind in product(uses, kinds)]
    points = (f"Noise, any adapter differs: {'; '.join(noise)}.", *PROTOCOL)
    return f"{markdown_table(header, rows)}\n\n" + "\n".join(f"- {point}" for point in points)


def _coverages(trials: Sequence[Record], protocol: str, share: float | None) -> list[str]:
    """Return the coverage of the intervals of each use, empty where it was not drawn."""
    truths = TRUTHS
    if share is None:
        truths = {"classify": (0.5, 0.0), "neighbours": (noise_precision(protocol), 0.0)}
    cells = []
    for use in ("classify", "similarity", "neighbours"):
        for kind, truth in zip(("score", "difference"), truths.get(use, (None, None)), strict=True):
            if truth is None or use not in trials[0]["p"]:
                cells.append("")
                continue
            n, of = covered(trials, use, kind, truth)
            rejected = binomtest(n, of, 1 - LEVEL).pvalue <= LEVEL
            cells.append(f"**{n / of:.1%}**" if rejected else f"{n / of:.1%}")
    return cells
