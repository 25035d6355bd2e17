"""Figures under two conditions, paired by seed; all claims about changes use these pairs."""

from collections.abc import Callable, Hashable, Mapping
from typing import Generic, NamedTuple, TypeVar

Seed = TypeVar("Seed", bound=Hashable)


def difference(before: float, after: float) -> float:
    """Return the increase of a figure."""
    return after - before


class Pairs(NamedTuple, Generic[Seed]):
    """A figure under both conditions, by seed; NaN where it is undefined."""

    before: dict[Seed, float]
    after: dict[Seed, float]

    def steps(self, change: Callable[[float, float], float] = difference) -> dict[Seed, float]:
        """Return the change of the figure for each seed."""
        return {seed: change(self.before[seed], value) for seed, value in self.after.items()}


def pair_by_seed(before: Mapping[Seed, float], after: Mapping[Seed, float]) -> Pairs[Seed]:
    """Pair the figures of the seeds that both mappings have."""
    seeds = [seed for seed in before if seed in after]
    return Pairs({seed: before[seed] for seed in seeds}, {seed: after[seed] for seed in seeds})
