"""Requirements on adapters that are fitted to few rows, checked against the figures."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from benchmarks._pairs import pair_by_seed
from benchmarks.quality._adapter_rows import MINIBATCH, PROBE
from benchmarks.quality._claims import NOT_MEASURED, BySeed, RowFigures, Table, measured, yes

FALSE_ALARMS = 0.1
LEAST_ISOSCORE = 0.3


class SizeResult(NamedTuple):
    """The rows of the table for one task and one number of training rows.

    `n` is None for five-fold cross-validation, and `width` is the number of dimensions. `settings`
    are the versions and hardware that the fits were measured with.
    """

    name: str
    n: int | None
    width: int
    table: Table
    settings: list[str]

    def title(self) -> str:
        """Return a title with the task and the number of rows."""
        return f"{self.name}, n={'all' if self.n is None else self.n}"


class ProbeComparison(NamedTuple):
    """Fits of one adapter, and the probes fitted to the same draws."""

    result: SizeResult
    row: RowFigures
    differences: BySeed
    error: float

    def loses(self) -> bool:
        """Return whether the mean accuracy is more than one standard error below the probe's."""
        return float(np.mean(list(self.differences.values()))) < -self.error

    def harmless(self) -> list[bool]:
        """Return, for each fit that loses at most one standard error, whether it warned."""
        return [
            self.row.figures[draw].warned
            for draw, difference in self.differences.items()
            if difference >= -self.error
        ]


def probe_standard_error(result: SizeResult) -> float:
    """Return the binomial standard error of the mean accuracy of the probe.

    The number of rows is that of the test rows of one draw, or of all folds together.
    """
    probe = result.table[PROBE]
    accuracy, n_judged = probe.mean("accuracy"), probe.values("n_judged")
    n = n_judged.sum() if result.n is None else n_judged[0]
    return float(np.sqrt(accuracy * (1 - accuracy) / n))


def differences(table: Table, name: str) -> BySeed:
    """Return the accuracy of a row minus that of the probe, for each draw that both have."""
    return pair_by_seed(table[PROBE].by_seed("accuracy"), table[name].by_seed("accuracy")).steps()


def comparisons(results: Sequence[SizeResult]) -> list[ProbeComparison]:
    """Return a comparison for each adapter and result that has a probe on the same draws."""
    found = []
    for result in results:
        if not measured(result.table, PROBE):
            continue
        error = probe_standard_error(result)
        for name, row in result.table.items():
            beside = differences(result.table, name)
            if name != PROBE and beside:
                found.append(ProbeComparison(result, row, beside, error))
    return found


def few_rows_checks(results: Sequence[SizeResult]) -> list[str]:
    """Return the three checks: losses of accuracy, false warnings and isotropy."""
    compared = comparisons(results)
    return [_losses(compared), _false_alarms(compared), _isotropy(results)]


def _losses(compared: Sequence[ProbeComparison]) -> str:
    text = "Mean accuracy more than one standard error below the probe's"
    if not compared:
        return f"{text}: {NOT_MEASURED}"
    losing = [each for each in compared if each.loses()]
    warned = [each.row.values("warned").all() for each in losing]
    return "\n".join(
        [
            f"{text}: {len(losing)} of {len(compared)} cells; in {sum(warned)} of these every fit "
            "warned",
            *(f"  - {_loss(each)}" for each in losing),
        ]
    )


def _loss(each: ProbeComparison) -> str:
    fits = [figures.warned for figures in each.row.figures.values()]
    return (
        f"{each.result.title()}: {each.row.name}: {each.row.mean('accuracy'):.3f} against "
        f"{each.result.table[PROBE].mean('accuracy'):.3f}, standard error {each.error:.3f}; every "
        f"fit warned: {yes(all(fits))} ({sum(fits)} of {len(fits)})"
    )


def _false_alarms(compared: Sequence[ProbeComparison]) -> str:
    text = (
        "Share that warned of the fits that lose no more than one standard error (at most "
        f"{100 * FALSE_ALARMS:.0f} % wanted)"
    )
    fits: dict[str, list[bool]] = {"all": []}
    for each in compared:
        for name in ("all", each.row.name):
            fits.setdefault(name, []).extend(each.harmless())
    shares = [_share(name, warned) for name, warned in fits.items() if warned]
    return f"{text}: {'; '.join(shares) or NOT_MEASURED}"


def _share(name: str, warned: Sequence[bool]) -> str:
    share = sum(warned) / len(warned)
    return (
        f"{name} {yes(share <= FALSE_ALARMS)} ({sum(warned)} of {len(warned)}, {100 * share:.1f} %)"
    )


def _isotropy(results: Sequence[SizeResult]) -> str:
    text = (
        f"Lowest corrected IsoScore of {MINIBATCH}, fitted to at least twice as many rows as "
        f"dimensions (at least {LEAST_ISOSCORE} wanted)"
    )
    lowest = [
        (result.title(), result.table[MINIBATCH].values("corrected").min())
        for result in results
        if measured(result.table, MINIBATCH)
        and result.table[MINIBATCH].values("n_fitted").min() >= 2 * result.width
    ]
    if not lowest:
        return f"{text}: {NOT_MEASURED}"
    listed = [
        f"{title}: {value:.3f}" if value >= LEAST_ISOSCORE else f"{title}: **{value:.3f}**"
        for title, value in lowest
    ]
    return f"{text}: {yes(all(value >= LEAST_ISOSCORE for _, value in lowest))}: " + "; ".join(
        listed
    )
