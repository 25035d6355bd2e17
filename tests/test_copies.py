"""Equal rows have equal hashes, different rows different ones."""

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp

from isoadapt._utils.copies import copy_hashes, row_hashes
from tests.small_blocks import small_blocks

DTYPES = [np.float16, np.float32, np.float64, np.int8, np.int64, np.bool_]
SHAPES = hnp.array_shapes(min_dims=2, max_dims=2, max_side=12)


@given(st.sampled_from(DTYPES).flatmap(lambda dtype: hnp.arrays(dtype, SHAPES)))
def test_hashes_are_equal_where_rows_are(X):
    X = np.concatenate([X, X[:3]])
    finite = X[~np.isnan(X).any(1)]
    equal = (finite[:, None] == finite[None]).all(2)
    hashes = row_hashes(finite)
    np.testing.assert_array_equal(hashes[:, None] == hashes, equal)


@given(hnp.arrays(np.float32, SHAPES, elements=st.floats(-2, 2, width=32)), st.randoms())
def test_a_hash_depends_on_the_row_alone(X, random):
    order = random.sample(range(len(X)), len(X))
    hashes, wide = row_hashes(X), row_hashes(X.astype(np.float64))
    np.testing.assert_array_equal(row_hashes(np.where(X == 0, -X, X)), hashes)  # -0.0 and 0.0
    with small_blocks(hashes=random.randrange(1, 40)):
        for kind in (np.asfortranarray, torch.tensor):
            np.testing.assert_array_equal(row_hashes(kind(X[order])), hashes[order])
        np.testing.assert_array_equal(row_hashes(X[order].tolist()), wide[order])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_no_two_of_many_rows_of_small_numbers_or_neighbouring_floats_share_a_hash(dtype):
    whole = np.stack(np.meshgrid(np.arange(256), np.arange(-128, 128)), -1).reshape(-1, 2)
    rows = whole.astype(dtype)
    if dtype != np.int64:
        close = 1 + np.finfo(dtype).eps * (whole - whole.min() + 1)
        rows = np.concatenate([rows, close.astype(dtype)])
    assert len(np.unique(row_hashes(rows))) == len(rows)


@pytest.mark.parametrize("d", [2, 3, 40, 384, 3000])
@pytest.mark.parametrize("change", ["none", "shift", "shifts", "scales"])
def test_copies_share_a_hash_up_to_rounding_and_other_rows_do_not(d, change):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, d))
    noise = 0 if change == "scales" else 2e-7  # as float32 rounds
    again = X + noise * rng.normal(size=X.shape)
    shift = {"shift": 1e3, "shifts": 1e5 * np.arange(d)}.get(change, 0)
    scale = np.where((np.arange(d) == 1) & (change == "scales"), 1e7, 1)
    rows, again = scale * X + shift, scale * again + shift
    hashes, others = copy_hashes(rows), copy_hashes(again, rows.mean(axis=0))
    assert len(np.unique(hashes)) == len(X) or d < 4
    assert len(np.unique(hashes)) > 0.98 * len(X)
    assert (hashes == others).mean() > 0.98
    np.testing.assert_array_equal(copy_hashes(X[::-1], 0.0)[::-1], copy_hashes(X, 0.0))
