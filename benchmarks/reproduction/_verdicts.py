"""Whether a claim holds: figures taken seed by seed, and the verdict they allow."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import ttest_1samp

from benchmarks.reproduction._cells import NOT_RUN, QUICK, Judge, Judged, Record, Suite

SEEDS_NEEDED = 3
LEVEL = 0.05

Fields = Mapping[str, Any]


def verdict(judged: Judged, suite: Suite) -> str:
    """Return the word for the table: to decide needs 3 seeds of more than a smoke run."""
    if judged == NOT_RUN:
        return "not run"
    if judged.n_seeds == 0:
        return "not testable here"
    if not is_enough(judged, suite):
        return "smoke only"
    return {True: "**holds**", False: "**fails**", None: "not shown"}[judged.holds]


def is_enough(judged: Judged, suite: Suite) -> bool:
    """Whether there is enough to decide by."""
    return suite.name != QUICK.name and judged.n_seeds >= SEEDS_NEEDED


def decide(effect: float, p: float) -> bool | None:
    """Return what an effect that should be above 0, and its one-sided p-value, decide."""
    if effect > 0:
        return True if p < LEVEL else None
    return False


def selected(records: Sequence[Record], fields: Fields) -> list[Record]:
    """Return the records whose fields have the given values."""
    wanted = fields.items()
    return [record for record in records if all(record[name] == value for name, value in wanted)]


def arrays_by_seed(
    records: Sequence[Record], fields: Fields, figure: str
) -> dict[int, NDArray[np.float64]]:
    """Return a list of figures of each seed that has run: NaN where it failed or is undefined."""
    found = {}
    for record in sorted(selected(records, fields), key=lambda record: record["seed"]):
        if "figures" in record or "error" in record:
            values = np.atleast_1d(np.array(record.get("figures", {}).get(figure), np.float64))
            found[record["seed"]] = np.where(np.isfinite(values), values, math.nan)
    return found


def by_seed(records: Sequence[Record], fields: Fields, figure: str) -> dict[int, float]:
    """Return a figure of each seed that has run: NaN where it failed or is undefined."""
    found = arrays_by_seed(records, fields, figure)
    return {seed: values.item() for seed, values in found.items()}


def defined(values: Sequence[float]) -> list[float]:
    """Leave out what is NaN."""
    return [value for value in values if not math.isnan(value)]


def mean_of(values: Sequence[float]) -> float:
    """Mean of what is defined; NaN of nothing."""
    found = defined(values)
    return float(np.mean(found)) if found else math.nan


def mean_sd(values: Sequence[float]) -> str:
    """Write mean ± standard deviation; of one value the value alone."""
    found = defined(values)
    undefined = f" ({len(values) - len(found)} undefined)" if len(found) < len(values) else ""
    if not found:
        return f"–{undefined}"
    mean = float(np.mean(found))
    if len(found) == 1:
        return _digits(mean) + undefined
    return _with_spread(mean, float(np.std(found, ddof=1))) + undefined


def _with_spread(mean: float, sd: float) -> str:
    """Two digits of the spread, and of the mean those that it leaves, four at most."""
    if sd <= 1e-9 * abs(mean):
        return f"{_digits(mean)} ± 0"
    if max(abs(mean), sd) < 1e-4:
        return f"{mean:.2g} ± {sd:.2g}"
    places = min(_places(sd, 2), _places(mean, 4)) if mean else _places(sd, 2)
    spread = f"{sd:.{_places(sd, 2)}f}" if sd >= 1e-5 else f"{sd:.2g}"
    return f"{mean:.{places}f} ± {spread}"


def _places(value: float, digits: int) -> int:
    """Decimal places that show so many digits of a number."""
    return max(0, digits - 1 - math.floor(math.log10(abs(value))))


def _digits(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"


def tally(kept: int, n: int, undefined: int) -> str:
    """Write in how many seeds something is so."""
    return f"in {kept} of {n} seeds" + (f", {undefined} undefined" if undefined else "")


class Pairs(NamedTuple):
    """The same figure before and after, of the seeds that have run both; NaN where undefined."""

    before: list[float]
    after: list[float]

    @property
    def steps(self) -> list[float]:
        """Differences, seed by seed."""
        return [after - before for before, after in zip(self.before, self.after, strict=True)]

    @property
    def undefined(self) -> int:
        """Number of seeds without a difference."""
        return len(self.steps) - len(defined(self.steps))

    @property
    def means(self) -> tuple[float, float]:
        """Means before and after, of the seeds with a difference."""
        both = [pair for pair in zip(self.before, self.after, strict=True) if defined([sum(pair)])]
        return mean_of([before for before, _ in both]), mean_of([after for _, after in both])

    @property
    def shown(self) -> str:
        """Both means with their spread."""
        return f"{mean_sd(self.before)} → {mean_sd(self.after)}"


def paired(records: Sequence[Record], before: Fields, after: Fields, figure: str) -> Pairs:
    """Take a figure under two conditions, seed by seed."""
    first, second = by_seed(records, before, figure), by_seed(records, after, figure)
    seeds = [seed for seed in first if seed in second]
    return Pairs([first[seed] for seed in seeds], [second[seed] for seed in seeds])


def moves(before: Fields, after: Fields, figure: str, sign: int, by: float = 1.0) -> Judge:
    """Judge that a positive figure rises (`sign` 1) or falls (-1) in every seed.

    The means must differ by the factor `by` at least. A seed that failed has not moved.
    """

    def judge(records: Sequence[Record]) -> Judged:
        pairs = paired(records, before, after, figure)
        n = len(pairs.steps)
        if n == 0:
            return NOT_RUN
        start, end = pairs.means
        if sign < 0 and start <= 0:
            return Judged(pairs.shown, None, n, "the base has nothing to lose")
        moved = sum(sign * step > 0 for step in pairs.steps)
        high, low = (end, start) if sign > 0 else (start, end)
        factor = high / low if low > 0 else math.inf
        reason = tally(moved, n, pairs.undefined)
        if math.isfinite(factor):
            reason += f", by a factor of {factor:.3g}"
        return Judged(pairs.shown, moved == n and factor >= by, n, reason)

    return judge


def stays(
    before: Fields, after: Fields, figure: str, change: Callable[[float, float], float], most: float
) -> Judge:
    """Judge that a figure changes by no more than `most` in every seed."""

    def judge(records: Sequence[Record]) -> Judged:
        pairs = paired(records, before, after, figure)
        n = len(pairs.steps)
        if n == 0:
            return NOT_RUN
        changes = [change(*pair) for pair in zip(*pairs, strict=True)]
        kept = sum(value <= most for value in changes)
        largest = max(defined(changes), default=math.nan)
        reason = f"{tally(kept, n, pairs.undefined)}, largest change {largest:.3g}"
        return Judged(pairs.shown, kept == n, n, reason)

    return judge


def gains(before: Fields, after: Fields, figure: str, choices: int = 1) -> Judge:
    """Judge that a noisy figure rises: one-sided paired t-test over the seeds at 0.05.

    If the condition after is the best of several, their number multiplies p (Bonferroni).
    """

    def judge(records: Sequence[Record]) -> Judged:
        pairs = paired(records, before, after, figure)
        n = len(pairs.steps)
        if n == 0:
            return NOT_RUN
        effect = mean_of(pairs.steps)
        gain = f"{effect:+.3g}"
        if pairs.undefined:
            undefined = f"{pairs.undefined} of {n} seeds undefined"
            return Judged(pairs.shown, None if effect > 0 else False, n, f"{gain}; {undefined}")
        if n < SEEDS_NEEDED:
            return Judged(pairs.shown, None, n, f"{gain}; too few seeds for a test")
        p = min(1.0, choices * _paired_p(pairs.steps))
        test = "paired, one-sided" + (f", times {choices} for the choice" if choices > 1 else "")
        return Judged(pairs.shown, decide(effect, p), n, f"{gain}, p = {p:.2g} ({test})")

    return judge


def _paired_p(steps: Sequence[float]) -> float:
    if np.ptp(steps) == 0:
        return float(steps[0] <= 0)
    return float(ttest_1samp(steps, 0.0, alternative="greater").pvalue)
