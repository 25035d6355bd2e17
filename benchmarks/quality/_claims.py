"""Claims about the adapters, and whether the figures confirm them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks._pairs import pair_by_seed
from benchmarks.quality._adapter_rows import (
    ALL_BARS,
    BASE,
    COSREG,
    EXACT,
    EXPONENTIAL,
    ISOBN,
    ISTAR_DOWN,
    ISTAR_UP,
    MINIBATCH,
    NO_PENALTY,
    NO_PENALTY_RAW,
    POLYNOMIAL,
    PRESERVING,
    SELECTED,
)

NOT_MEASURED = "not measured"
BySeed = dict[int | None, float]
DECIMALS = {"two_nn": 1, "seconds": 2}


@dataclass(frozen=True)
class RowFigures:
    """A row of the table: its figures by seed (None for no seed), and messages of failed fits."""

    name: str
    figures: dict[int | None, Any]
    failures: list[str] = field(default_factory=list)

    def by_seed(self, column: str) -> BySeed:
        """Return one column by seed."""
        return {seed: getattr(figures, column) for seed, figures in self.figures.items()}

    def values(self, column: str) -> NDArray[np.float64]:
        """Return one column as an array with one entry per fit."""
        return np.array([*self.by_seed(column).values()], float)

    def mean(self, column: str) -> float:
        """Return the mean of a column over the fits."""
        return float(self.values(column).mean())


Table = Mapping[str, RowFigures]


def format_figure(value: float, column: str) -> str:
    """Format a figure of a column."""
    if np.isnan(value):
        return "–"
    decimals = DECIMALS.get(column, 4 if abs(value) < 0.01 else 3)
    return f"{value:z.{decimals}f}"


def yes(holds: bool | np.bool) -> str:
    """Format whether a claim holds."""
    return "yes" if holds else "**no**"


def measured(table: Table, *names: str) -> bool:
    """Return whether all these rows have figures."""
    return all(name in table and table[name].figures for name in names)


# --- checks under each table -----------------------------------------------------------------


class Check(NamedTuple):
    """A claim about a single row: its text, whether it holds, and the figure that shows it."""

    text: str
    holds: Callable[[RowFigures], bool]
    figure: Callable[[RowFigures], str]
    claimed_of: tuple[str, ...]


def checks(floor: float) -> tuple[Check, ...]:
    """Return the checks; `floor` is the accuracy of the base minus one standard error."""
    return (
        Check(
            "corrected IsoScore at least 0.15 in every fit",
            lambda row: bool(row.values("corrected").min() >= 0.15),
            lambda row: f"lowest {row.values('corrected').min():.3f}",
            (MINIBATCH,),
        ),
        Check(
            "corrected IsoScore at least 0.55 in every fit, each in under 5 s",
            lambda row: bool(
                row.values("corrected").min() >= 0.55 and row.values("seconds").max() < 5
            ),
            lambda row: f"{row.mean('corrected'):.3f} in {row.mean('seconds'):.2f} s",
            (EXACT, PRESERVING),
        ),
        Check(
            f"mean accuracy at most one standard error below the base's (at least {floor:.4f})",
            lambda row: row.mean("accuracy") >= floor,
            lambda row: (
                f"{row.mean('accuracy'):.4f}; {(row.values('accuracy') >= floor).sum()} of "
                f"{len(row.figures)} fits"
            ),
            (MINIBATCH, EXACT),
        ),
        Check(
            "no prediction changed",
            lambda row: not row.values("changed").any(),
            lambda row: f"{row.values('changed').max():.0f} changed",
            (PRESERVING,),
        ),
    )


def check_lines(table: Table, error: float) -> list[str]:
    """Return one line per check: the rows it is claimed for, then the other rows that pass."""
    floor = table[BASE].mean("accuracy") - error
    return [
        f"{check.text}: {_claimed(check, table)}{_others(check, table)}" for check in checks(floor)
    ]


def _claimed(check: Check, table: Table) -> str:
    parts = [
        f"{name} {yes(check.holds(table[name]))} ({check.figure(table[name])})"
        if measured(table, name)
        else f"{name} {NOT_MEASURED}"
        for name in check.claimed_of
    ]
    return "; ".join(parts)


def _others(check: Check, table: Table) -> str:
    names = [name for name in table if name not in (BASE, *check.claimed_of)]
    passed = [name for name in names if measured(table, name) and check.holds(table[name])]
    failed = [name for name in names if measured(table, name) and name not in passed]
    if not passed and not failed:
        return ""
    if not failed:
        return ". Of the others: all"
    if not passed:
        return ". Of the others: none"
    if len(failed) < len(passed):
        return f". Of the others: all but {'; '.join(failed)}"
    return f". Of the others: {'; '.join(passed)}"


# --- directions of change, over all tasks ----------------------------------------------------

Verdict = Callable[[Table], str]


def rises(row: str, against: str, column: str) -> Verdict:
    """Claim that the mean of a column is higher than in another row."""
    return lambda table: _compare(table, row, against, column, 1)


def falls(row: str, against: str, column: str) -> Verdict:
    """Claim that the mean of a column is lower than in another row."""
    return lambda table: _compare(table, row, against, column, -1)


def stays_below(row: str, column: str, limit: float) -> Verdict:
    """Claim that a column is below a limit in every fit."""

    def verdict(table: Table) -> str:
        if not measured(table, row):
            return NOT_MEASURED
        highest = table[row].values(column).max()
        return f"{yes(highest < limit)}, highest {format_figure(highest, column)}"

    return verdict


def _compare(table: Table, row: str, against: str, column: str, sign: int) -> str:
    if not measured(table, row, against):
        return NOT_MEASURED
    before, after = table[against].mean(column), table[row].mean(column)
    first, second = (table[name].by_seed(column) for name in (against, row))
    pairs = pair_by_seed(_beside(first, second), _beside(second, first))
    steps = [sign * step for step in pairs.steps().values()]
    counted = f", {sum(step > 0 for step in steps)}/{len(steps)}" if len(steps) > 1 else ""
    holds = yes(sign * (after - before) > 0)
    return f"{holds}, {format_figure(before, column)} → {format_figure(after, column)}{counted}"


def _beside(found: BySeed, other: BySeed) -> BySeed:
    """Repeat a figure without a seed for every seed of the other row."""
    return dict.fromkeys(other, found[None]) if None in found else found


CLAIMS: tuple[tuple[str, Verdict], ...] = (
    ("I-STAR, λ=1: IsoScore rises", rises(ISTAR_UP, NO_PENALTY, "isoscore")),
    ("I-STAR, λ=1: TwoNN rises", rises(ISTAR_UP, NO_PENALTY, "two_nn")),
    ("I-STAR, λ=-1: IsoScore falls", falls(ISTAR_DOWN, NO_PENALTY, "isoscore")),
    ("I-STAR, λ=-1: TwoNN falls", falls(ISTAR_DOWN, NO_PENALTY, "two_nn")),
    ("CosReg: mean cosine falls", falls(COSREG, NO_PENALTY_RAW, "mean_cosine")),
    ("CosReg: IsoScore stays below 0.001", stays_below(COSREG, "isoscore", 0.001)),
    (
        "Persistent entropy, selected bars: anisotropy_1 falls",
        falls(SELECTED, NO_PENALTY_RAW, "anisotropy1"),
    ),
    ("the same, centred: EV1 falls", falls(SELECTED, NO_PENALTY_RAW, "ev1")),
    (
        "Persistent entropy: anisotropy_1 falls from all bars to selected bars",
        falls(SELECTED, ALL_BARS, "anisotropy1"),
    ),
    ("the same, centred: EV1 falls from all to selected", falls(SELECTED, ALL_BARS, "ev1")),
    ("IsoBN: EV1 falls", falls(ISOBN, BASE, "ev1")),
    ("Spectrum control, polynomial: EV1 falls", falls(POLYNOMIAL, NO_PENALTY, "ev1")),
    ("Spectrum control, exponential: EV1 falls", falls(EXPONENTIAL, NO_PENALTY, "ev1")),
)


def claim_rows(tables: Sequence[Table]) -> list[list[str]]:
    """Return one row of cells per claim: its text, then its verdict in each table."""
    return [[text, *(verdict(table) for table in tables)] for text, verdict in CLAIMS]
