"""Repeated comparisons of generated rows, in which the true effect of each adapter is known."""

import math
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, TransformerMixin

from benchmarks._data import Floats
from isoadapt import AllButTheTop, ClusterIsotropy, IsoBN, Whitening
from isoadapt.model_selection import Comparison, compare_adapters

TEST_ROWS, FOLDS = "test rows", "cross-validation"
PROTOCOLS = (TEST_ROWS, FOLDS)

BASE_ACCURACY, EFFECT = 0.75, 0.03
CORRELATIONS = 0.5, 0.6  # of the latent similarity, before and after the planted adapter
DISCORDANCES = (0.10, 0.20, 0.05)

_SMALL = 1e-3  # scale of the columns that the planted adapter reads
N_NOISE = 200
N_FOLDS = 5
N_PLANTED = 2_000
N_TRAIN = 500  # training rows of a planted trial with test rows
N_PAIRS = 300


class Setting(NamedTuple):
    """What a trial draws; `discordance` is None if the labels are noise."""

    protocol: str
    discordance: float | None = None


SETTINGS = (
    *(Setting(protocol) for protocol in PROTOCOLS),
    *(Setting(protocol, share) for share in DISCORDANCES for protocol in PROTOCOLS),
)


class Trial(NamedTuple):
    """Tests and intervals of one comparison, each by its use.

    `p` and `p_holm` have one value for each adapter. The intervals are those of the first adapter:
    of its score and of its difference from no adapter.
    """

    p: dict[str, list[float]]
    p_holm: dict[str, list[float]]
    credited: dict[str, bool]
    score: dict[str, tuple[float, float]]
    difference: dict[str, tuple[float, float]]


class PlantedAdapter(TransformerMixin, BaseEstimator):
    """Show the columns that hold a better predictor, which no linear head finds in X.

    Columns 2 and 3 are two signs of which each alone is random; their product is the predictor.
    """

    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> Self:
        """Do nothing."""
        return self

    def transform(self, X: Any) -> Floats:
        """Return rows (n, 3): the product of columns 2 and 3, column 4, and column 5."""
        return np.column_stack([X[:, 2] * X[:, 3] / _SMALL**2, X[:, 4] / _SMALL, X[:, 5]])


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
    noise = rng.normal(size=(n, 3)) * [0.1, 0.1 * _SMALL, 0.1]
    hidden = _SMALL * np.column_stack([random_sign, random_sign * after])
    return np.column_stack([before, noise[:, 0], hidden, noise[:, 1:]]), y


def planted_pairs(n: int, rng: np.random.Generator) -> tuple[Floats, Floats, Floats]:
    """Draw n pairs of rows whose cosines follow their scores by a Gaussian copula."""
    scores = rng.normal(size=n)
    first = np.tile([1.0, 0.0, _SMALL, _SMALL, 0.0, 0.0], (n, 1))
    second = first.copy()
    for columns, scale, correlation in (((0, 1), 1.0, 0), ((2, 4), _SMALL, 1)):
        r = CORRELATIONS[correlation]
        latent = r * scores + math.sqrt(1 - r**2) * rng.normal(size=n)
        cosine = np.tanh(latent)
        second[:, columns] = scale * np.column_stack([cosine, np.sqrt(1 - cosine**2)])
    return first, second, scores


def spearman(correlation: float) -> float:
    """Return the rank correlation of two normal variables with this correlation."""
    return 6 / math.pi * math.asin(correlation / 2)


def noise_rows(n: int, rng: np.random.Generator) -> tuple[Floats, NDArray[np.int64]]:
    """Draw anisotropic rows (n, 8) and labels that do not depend on them."""
    X = rng.normal(size=(n, 8)) * np.arange(1, 9) ** -1.0 + 0.5
    return X, rng.integers(2, size=n)


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


def cheap_adapters() -> dict[str, Any]:
    """Return adapters that change many predictions of a refitted head and are fitted at once."""
    return {
        "AllButTheTop": AllButTheTop(n_components=2),
        "ClusterIsotropy": ClusterIsotropy(),
        "IsoBN": IsoBN(),
        "Whitening": Whitening(n_components=4),
    }


def run_trial(setting: Setting, seed: int) -> Trial:
    """Draw rows with a seed and compare."""
    planted = setting.discordance is not None
    rng = np.random.default_rng(
        [seed, PROTOCOLS.index(setting.protocol), round(1_000 * (setting.discordance or 0))]
    )
    n, n_train = (N_PLANTED, N_TRAIN) if planted else (N_NOISE, N_NOISE)

    def draw(n_rows: int) -> tuple[Floats, NDArray[np.int64]]:
        if setting.discordance is None:
            return noise_rows(n_rows, rng)
        return planted_rows(n_rows, setting.discordance, rng)

    options: dict[str, Any] = {}
    if setting.protocol == TEST_ROWS:
        X, y = draw(n_train)
        options["X_test"], options["y_test"] = draw(n)
        if planted:
            options["pairs"] = planted_pairs(N_PAIRS, rng)
    else:
        X, y = draw(n)
    found = compare_adapters(
        X,
        y,
        {"planted": PlantedAdapter()} if planted else cheap_adapters(),
        cv=N_FOLDS,
        encoder_saw=False,
        random_state=seed,
        **options,
    )
    return trial_of(found)


def trial_of(comparison: Comparison) -> Trial:
    """Return what is stored of a comparison."""
    trial = Trial({}, {}, {}, {}, {})
    for use in comparison.uses:
        rows = [row for row in comparison.rows if row["use"] == use and row["kind"] == "adapter"]
        trial.p[use] = [_short(row["p_value"]) for row in rows]
        trial.p_holm[use] = [_short(row["p_holm"]) for row in rows]
        trial.credited[use] = comparison.best_adapter(use) is not None
        first = rows[0]
        trial.score[use] = _short(first["ci_low"]), _short(first["ci_high"])
        trial.difference[use] = _short(first["difference_low"]), _short(first["difference_high"])
    return trial


def _short(value: float) -> float:
    return float(f"{value:.5g}")
