"""Warnings name the line of the code that called the package, through any layers in between."""

import threading
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from isoadapt import EmbeddingCache, IsotropyLayer, TransformerEncoder
from isoadapt.metrics import isotropy_report

X = np.random.default_rng(0).normal(size=(60, 4)) + 1e7
Y = np.arange(60) % 2
LAYER = IsotropyLayer(max_epochs=1, random_state=0)


def fit_alone():
    clone(LAYER).fit(X, Y)


def fit_in_a_pipeline():
    make_pipeline(StandardScaler(with_mean=False), LAYER).fit_transform(X, Y)


def fit_in_a_search():
    GridSearchCV(LAYER, {"alpha": [0.5]}, cv=2).fit(X, Y)


def measure():
    isotropy_report(X[:9])


@pytest.mark.parametrize("call", [fit_alone, fit_in_a_pipeline, fit_in_a_search, measure])
@pytest.mark.parametrize("in_thread", [False, True])
def test_the_line_of_the_caller(call, in_thread):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if in_thread:
            thread = threading.Thread(target=call)
            thread.start()
            thread.join()
        else:
            call()
    assert caught
    assert {each.filename for each in caught} == {__file__}
    assert {each.lineno for each in caught} == {call.__code__.co_firstlineno + 1}


def test_the_line_that_uses_a_damaged_cache(checkpoint, tmp_path):
    encoder = TransformerEncoder(checkpoint, cache=EmbeddingCache(tmp_path))
    encoder.transform(["the cat"])
    encoder.cache._store().close()
    (tmp_path / "rows.lmdb" / "data.mdb").write_bytes(b"damaged" * 10_000)
    with pytest.warns(UserWarning, match="was damaged") as caught:
        encoder.transform(["the cat"])
    assert caught[0].filename == __file__
