import math

from benchmarks._pairs import pair_by_seed


def test_only_seeds_that_both_have_are_paired():
    pairs = pair_by_seed({0: 1.0, 1: 2.0, 3: 5.0}, {1: 2.5, 2: 9.0, 0: math.nan})
    assert pairs.before == {0: 1.0, 1: 2.0}
    assert list(pairs.after) == [0, 1]
    steps = pairs.steps()
    assert steps[1] == 0.5
    assert math.isnan(steps[0])


def test_nothing_is_paired_with_nothing():
    assert pair_by_seed({}, {0: 1.0}) == pair_by_seed({0: 1.0}, {}) == ({}, {})


def test_a_change_may_be_any_function_of_both():
    assert pair_by_seed({0: 2.0}, {0: 6.0}).steps(lambda before, after: after / before) == {0: 3.0}
