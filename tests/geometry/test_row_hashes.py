"""Equal rows have equal hashes, different rows different ones."""

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp

from isoadapt._utils.copies import row_hashes
from isoadapt.geometry import _chunks

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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_chunks, "_HASHED", random.randrange(1, 40))
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


def test_hashing_needs_little_memory():
    X = np.ones((20_000, 64), np.float32)
    tracemalloc.start()
    row_hashes(X)
    assert tracemalloc.get_traced_memory()[1] < X.nbytes / 8
    tracemalloc.stop()
