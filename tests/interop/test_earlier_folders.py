"""Adapter folders that an earlier version wrote: they load, and give the same vectors."""

import json
from pathlib import Path

import numpy as np

from isoadapt.adapters._maps import STORABLE_MAPS, map_class, map_name
from isoadapt.geometry import Moments
from isoadapt.interop import load_adapter, save_adapter
from tests.interop.examples import X, fitted

FOLDERS = Path(__file__).parent / "folders"
EXPECTED = json.loads((FOLDERS / "expected.json").read_text())


def test_they_load_and_adapt_as_before():
    for name, expected in EXPECTED["adapted"].items():
        adapter = load_adapter(FOLDERS / name)
        found = adapter.transform(np.array(EXPECTED["rows"]))
        np.testing.assert_allclose(found, expected, rtol=1e-9, err_msg=name)
        assert np.isnan(adapter._recognise(EXPECTED["rows"])).all()  # they do not tell their rows


def test_they_hold_every_map_that_may_be_stored():
    configs = "".join((FOLDERS / name / "config.json").read_text() for name in EXPECTED["adapted"])
    assert {name for name in STORABLE_MAPS if f'"type": "{name}"' in configs} == {*STORABLE_MAPS}
    assert [map_name(tuple.__new__(map_class(name))) for name in STORABLE_MAPS] == [*STORABLE_MAPS]


def test_moments_without_the_higher_ones_load_and_go_on(tmp_path):
    adapter = fitted("LogitPreservingWhitening", "frozen")
    arrays = adapter.moments_.to_arrays()
    lower = {name: arrays[name] for name in ("count", "mean", "scatter")}
    adapter.moments_ = Moments.from_arrays(lower)
    again = load_adapter(save_adapter(adapter, tmp_path / "a")).partial_fit(X)
    assert again.moments_.count == 2 * len(X)
    assert again.moments_.fourth is None


def test_a_multi_label_head_had_a_class_of_its_own():
    adapter = load_adapter(FOLDERS / "multi-label")
    rows = np.array(EXPECTED["rows"])
    for head in (adapter.head, adapter.head_):
        assert head.multi_label_
        assert head.classes_.tolist() == [0, 1]
        np.testing.assert_array_equal(head.intercept_, [0.5, -1.0])
    logits = adapter.head_.outputs(rows)
    np.testing.assert_allclose(adapter.decision_function(rows), logits, atol=1e-9)
    np.testing.assert_array_equal(adapter.predict(rows), (logits > 0).astype(int))
