"""An adapter in front of a FAISS index."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

from isoadapt import FlowAdapter, LinearHead, LogitPreservingWhitening, Whitening
from isoadapt.interop import to_faiss

faiss = pytest.importorskip("faiss")

rng = np.random.default_rng(0)


def cone(n, d=24):
    """Vectors of a narrow cone, whose first direction holds most of the variance."""
    return (rng.normal(size=(n, d)) * np.r_[8, np.full(d - 1, 0.3)] + 2).astype(np.float32)


X, QUERIES = cone(400), cone(30)


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


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
    stored.add(unit(X))

    vectors = stored.reconstruct_n(0, stored.ntotal)
    adapter = Whitening().fit(vectors)  # to the vectors as they are stored
    repaired = faiss.IndexPreTransform(to_faiss(adapter), faiss.IndexFlatL2(X.shape[1]))
    repaired.add(vectors)

    found = repaired.search(unit(QUERIES), 5)[1]
    expected = faiss.IndexFlatL2(X.shape[1])
    expected.add(adapter.transform(unit(X)))
    assert (found == expected.search(adapter.transform(unit(QUERIES)), 5)[1]).mean() > 0.99
    assert (found != stored.search(unit(QUERIES), 5)[1]).mean() > 0.3


def recall(index, queries, truth, wanted):
    """Share of the ten nearest rows in a flat index of `truth` that `index` finds."""
    flat = faiss.IndexFlatL2(truth.shape[1])
    flat.add(np.ascontiguousarray(truth, np.float32))
    pairs = zip(
        index.search(np.ascontiguousarray(queries, np.float32), 10)[1],
        flat.search(np.ascontiguousarray(wanted, np.float32), 10)[1],
        strict=True,
    )
    return np.mean([len({*found} & {*best}) / 10 for found, best in pairs])


def repaired_codes(X, queries, adapter, make, new):
    """Recall of an index of codes that is repaired from its decoded vectors."""
    stored = make()
    stored.train(X)
    stored.add(X)
    vectors = stored.reconstruct_n(0, stored.ntotal)
    own = clone(adapter).fit(vectors)
    repaired = faiss.IndexPreTransform(to_faiss(own), new())
    repaired.train(vectors)
    repaired.add(vectors)
    adapter.fit(X)
    return recall(repaired, queries, adapter.transform(X), adapter.transform(queries))


@pytest.mark.parametrize(("make", "new"), [("PQ12x4", "PQ12x4"), ("IVF4,PQ12x4", "Flat")])
def test_an_index_of_codes_is_repaired_from_decoded_vectors(make, new):
    factory = [lambda kind=kind: faiss.index_factory(X.shape[1], kind) for kind in (make, new)]
    found = repaired_codes(X, QUERIES, Whitening(shrinkage=0.1), *factory)
    raw = factory[1]()
    raw.train(X)
    raw.add(X)
    adapter = Whitening(shrinkage=0.1).fit(X)
    without = recall(raw, QUERIES, adapter.transform(X), adapter.transform(QUERIES))
    assert found > without + 0.1


def cells(first):
    """Numbers of the rows of the serving page's tables whose first cell begins with a text."""
    page = (Path(__file__).parents[2] / "docs" / "guide" / "serving.rst").read_text()
    (row,) = re.findall(rf"   \* - {re.escape(first)}\n((?:     - .*\n)+)", page)
    return [float(number) for number in re.findall(r"\.\d+|\d+(?= %)", row)]


def embeddings(shared, task):
    with np.load(shared / "embeddings" / f"{task}.npz") as file:
        head = LinearHead(file["W"], file["b"], classes=[0, 1])
        return file["E_train"], file["E_dev"][:400], head


@pytest.mark.slow
@pytest.mark.parametrize("task", ["CoLA", "MRPC"])
@pytest.mark.parametrize("name", ["Whitening(shrinkage=0.1)", "LogitPreservingWhitening"])
def test_the_pages_figures_of_an_index_of_codes(task, name, shared):
    rows, queries, head = embeddings(shared, task.lower())
    adapter = LogitPreservingWhitening(head) if "Logit" in name else Whitening(shrinkage=0.1)

    def coded():
        index = faiss.IndexPQ(rows.shape[1], 48, 8)
        index.pq.cp.niter = 15
        return index

    adapted, asked = (adapter.fit(rows).transform(each) for each in (rows, queries))
    fresh = coded()
    fresh.train(adapted.astype(np.float32))
    fresh.add(adapted.astype(np.float32))
    flat = lambda: faiss.IndexFlatL2(rows.shape[1])  # noqa: E731
    found = [recall(fresh, asked, adapted, asked)]
    found += [repaired_codes(rows, queries, adapter, coded, new) for new in (flat, coded)]
    np.testing.assert_allclose(found, cells(f"{task}, {name}"), atol=0.03)


def test_what_is_no_linear_transform(monkeypatch):
    with pytest.raises(ValueError, match="not an affine map"):
        to_faiss(FlowAdapter(max_epochs=1).fit(X))
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ImportError, match=r"isoadapt\[search\]"):
        to_faiss(Whitening().fit(X))
