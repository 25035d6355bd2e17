"""Blocks of trials in a file, so that an interrupted run goes on, and what is counted in them."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scipy.stats import binomtest

from benchmarks._store import CellStore
from benchmarks.quality._comparison_trials import Setting, Trial, run_trial

PROTOCOL = 1  # raise it when a trial is drawn or judged in another way
REPETITIONS, BLOCK = 200, 10
LEVEL = 0.05


class Key(NamedTuple):
    """A block of trials, whose seeds begin with `first`."""

    setting: Setting
    first: int
    version: int


Blocks = CellStore[Key, list[Trial]]


def block_store(path: Path, fresh: bool = False) -> Blocks:
    """Open a file of blocks."""
    return CellStore(path, _parse, fresh)


def _parse(line: Mapping[str, Any]) -> tuple[Key, list[Trial]]:
    key = Key(Setting(line["protocol"], line["discordance"]), line["first"], line["version"])
    return key, [Trial(**trial) for trial in line["trials"]]


def block_line(key: Key, trials: Sequence[Trial]) -> dict[str, Any]:
    """Return the entry of a block in the file."""
    return {
        **key.setting._asdict(),
        "first": key.first,
        "version": key.version,
        "trials": [trial._asdict() for trial in trials],
    }


def obtain_trials(
    setting: Setting,
    blocks: Blocks,
    repetitions: int = REPETITIONS,
    run: Callable[[Setting, int], Trial] = run_trial,
) -> list[Trial]:
    """Read the trials of a setting from the file, and run and save those that are missing."""
    found: list[Trial] = []
    for first in range(0, repetitions, BLOCK):
        key = Key(setting, first, PROTOCOL)
        trials = blocks.get(key)
        if trials is None:
            print(f"trials {first} to {first + BLOCK - 1}: {setting}", file=sys.stderr, flush=True)
            trials = [run(setting, seed) for seed in range(first, first + BLOCK)]
            blocks.add(block_line(key, trials))
        found += trials
    return found[:repetitions]


def stored_trials(setting: Setting, blocks: Blocks) -> list[Trial]:
    """Read the trials of a setting that are in the file."""
    keys = [Key(setting, first, PROTOCOL) for first in range(0, REPETITIONS, BLOCK)]
    return [trial for key in keys for trial in blocks.get(key) or ()]


class Count(NamedTuple):
    """How often something happened in independent trials."""

    n: int
    of: int

    @property
    def share(self) -> float:
        """Share of the trials."""
        return self.n / self.of

    def not_above(self, rate: float) -> float:
        """Return the p-value of the hypothesis that the true rate is at most `rate`."""
        return float(binomtest(self.n, self.of, rate, alternative="greater").pvalue)

    def equal_to(self, rate: float) -> float:
        """Return the two-sided p-value of the hypothesis that the true rate is `rate`."""
        return float(binomtest(self.n, self.of, rate).pvalue)


def family_errors(trials: Sequence[Trial], use: str) -> Count:
    """Trials in which any adapter differs from no adapter after Holm's adjustment."""
    return Count(sum(min(trial.p_holm[use]) <= LEVEL for trial in trials), len(trials))


def found_effects(trials: Sequence[Trial], use: str, family: int = 1) -> Count:
    """Trials that find the gain of the first adapter if its p-value is the smallest of a family."""
    found = [
        trial.p[use][0] * family <= LEVEL and sum(trial.difference[use]) > 0 for trial in trials
    ]
    return Count(sum(found), len(trials))


def covered(trials: Sequence[Trial], use: str, interval: str, truth: float) -> Count:
    """Trials whose interval, "score" or "difference", holds the true value."""
    intervals = [getattr(trial, interval)[use] for trial in trials]
    return Count(sum(low <= truth <= high for low, high in intervals), len(trials))
