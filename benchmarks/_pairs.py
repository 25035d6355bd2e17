"""The same figure under two conditions, paired by seed: what every claim on a change rests on."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

Seed = int | None


def difference(before: float, after: float) -> float:
    """Return how much a figure rises."""
    return after - before


class Pairs(NamedTuple):
    """A figure before and after, by seed; NaN where undefined."""

    before: dict[Seed, float]
    after: dict[Seed, float]

    def steps(self, change: Callable[[float, float], float] = difference) -> dict[Seed, float]:
        """Return the change of each seed."""
        return {seed: change(self.before[seed], value) for seed, value in self.after.items()}


def pair_by_seed(before: Mapping[Seed, float], after: Mapping[Seed, float]) -> Pairs:
    """Pair what both have; a figure without a seed (None) stands beside every seed of the other."""
    seeds = [seed for seed in {**before, **after} if seed is not None] or [None]
    kept = [seed for seed in seeds if all(seed in side or None in side for side in (before, after))]
    first, second = (
        {seed: side[seed] if seed in side else side[None] for seed in kept}
        for side in (before, after)
    )
    return Pairs(first, second)
