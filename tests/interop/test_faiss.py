"""An adapter in front of a FAISS index."""

import sys

import numpy as np
import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import normalize

from isoadapt import FlowAdapter, LogitPreservingWhitening, Whitening
from isoadapt.interop import to_faiss

faiss = pytest.importorskip("faiss")

rng = np.random.default_rng(0)


def cone(n, d=24):
    """Vectors of a narrow cone, whose first direction holds most of the variance."""
    return (rng.normal(size=(n, d)) * np.r_[8, np.full(d - 1, 0.3)] + 2).astype(np.float32)


X, QUERIES = cone(400), cone(30)


@pytest.mark.parametrize(
    "adapter",
    [
        Whitening(),
        Whitening(n_components=6),
        LogitPreservingWhitening("logistic"),
        make_pipeline(Whitening(), Whitening(strength=0.5)),
    ],
    ids=["square", "narrow", "head", "pipeline"],
)
def test_the_transform_is_the_adapter(adapter):
    adapter.fit(X, X[:, 0] > 2)
    expected = adapter.transform(X.astype(np.float64))
    found = to_faiss(adapter).apply(X)
    np.testing.assert_allclose(found, expected, atol=2e-6 * np.abs(expected).max())


def test_a_stored_flat_index_is_repaired_without_encoding():
    stored = faiss.IndexFlatIP(X.shape[1])
    stored.add(normalize(X))
    vectors = stored.reconstruct_n(0, stored.ntotal)
    adapter = Whitening().fit(vectors)  # to the vectors as they are stored
    repaired = faiss.IndexPreTransform(to_faiss(adapter), faiss.IndexFlatL2(X.shape[1]))
    repaired.add(vectors)
    found = repaired.search(normalize(QUERIES), 5)[1]
    expected = faiss.IndexFlatL2(X.shape[1])
    expected.add(adapter.transform(normalize(X)))
    assert (found == expected.search(adapter.transform(normalize(QUERIES)), 5)[1]).mean() > 0.99
    assert (found != stored.search(normalize(QUERIES), 5)[1]).mean() > 0.3


def test_what_is_no_linear_transform(monkeypatch):
    with pytest.raises(ValueError, match="not an affine map"):
        to_faiss(FlowAdapter(max_epochs=1).fit(X))
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ImportError, match=r"isoadapt\[search\]"):
        to_faiss(Whitening().fit(X))
