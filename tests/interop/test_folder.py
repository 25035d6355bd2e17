"""An adapter folder gives back the adapter, to the bit, or says why it cannot."""

import json
import sys

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from isoadapt import FlowAdapter, LinearHead, LogitPreservingWhitening, Whitening
from isoadapt.adapters._registry import ADAPTERS
from isoadapt.interop import AdapterFolderError, load_adapter, save_adapter
from isoadapt.interop._folder import provenance, read_config
from isoadapt.metrics import isotropy_report
from tests.interop.examples import (
    HEAD,
    LABELS,
    ROWS,
    VARIANTS,
    X,
    edit_json,
    fitted,
    make,
    same,
    targets,
)

CASES = [(name, "default") for name in ADAPTERS]
for number, variant in enumerate(list(VARIANTS)[1:]):  # each with one of the classes that have it
    having = [name for name in ADAPTERS if make(name, variant) is not None]
    CASES += [(having[number % len(having)], variant)]
METHODS = ["transform", "predict", "predict_proba", "predict_log_proba", "decision_function"]


@pytest.mark.parametrize(("name", "variant"), CASES)
@pytest.mark.usefixtures("fixed_penalty")
def test_the_loaded_adapter_is_the_saved_one(name, variant, tmp_path):
    adapter = fitted(name, variant)
    loaded = load_adapter(save_adapter(adapter, tmp_path / "a"))
    assert type(loaded) is type(adapter)
    assert same(vars(loaded), vars(adapter))
    fresh = np.random.default_rng(1).normal(size=(30, 5)) * 3
    for rows in (fresh, fresh.astype(np.float32), fresh[:1]):
        for method in METHODS:
            assert hasattr(loaded, method) == hasattr(adapter, method)
            if hasattr(adapter, method):
                assert same(getattr(loaded, method)(rows), getattr(adapter, method)(rows))
    assert hasattr(loaded, "inverse_transform") == hasattr(adapter, "inverse_transform")
    if hasattr(adapter, "inverse_transform"):
        adapted = adapter.transform(fresh)
        assert same(loaded.inverse_transform(adapted), adapter.inverse_transform(adapted))
    assert same(clone(loaded).get_params(), clone(adapter).get_params())


PARTIAL = ["Whitening", "IsoBN", "LogitPreservingWhitening", "AllButTheTop", "TeacherReadout"]


@pytest.mark.parametrize("name", PARTIAL)
def test_partial_fit_goes_on(name, tmp_path):
    adapter = make(name).set_params(head=HEAD if name == "LogitPreservingWhitening" else None)
    y = targets(name)
    adapter.partial_fit(X[:70], y[:70])
    loaded = load_adapter(save_adapter(adapter, tmp_path / name))
    assert same(vars(loaded.partial_fit(X[70:], y[70:])), vars(adapter.partial_fit(X[70:], y[70:])))


def test_a_parameter_that_was_added_later_has_its_default(tmp_path):
    folder = save_adapter(fitted("Whitening"), tmp_path / "a")
    parameters = json.loads((folder / "config.json").read_text())["parameters"]
    del parameters["shrinkage"]
    edit_json(folder / "config.json", sign=True, parameters=parameters)
    assert load_adapter(folder).shrinkage == Whitening().shrinkage


def test_every_folder_and_pickle_loads_without_transformers(tmp_path):
    adapters = {name: fitted(name) for name in ADAPTERS}
    for name, adapter in adapters.items():
        save_adapter(adapter, tmp_path / name)
        joblib.dump(adapter, tmp_path / f"{name}.joblib")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in sys.modules if name.startswith(("isoadapt", "transformers"))]:
            patch.setitem(sys.modules, name, None)
            del sys.modules[name]
        patch.setitem(sys.modules, "transformers", None)  # importing it fails
        from isoadapt.interop import load_adapter as load

        for name, adapter in adapters.items():
            for loaded in (load(tmp_path / name), joblib.load(tmp_path / f"{name}.joblib")):
                assert type(loaded) is not type(adapter)  # of modules that were imported anew
                assert np.array_equal(loaded.transform(X), adapter.transform(X)), name
        for name in [name for name in sys.modules if name.startswith("isoadapt")]:
            del sys.modules[name]  # before the others come back


def test_names_of_features_and_labels_stay(tmp_path):
    frame = pd.DataFrame(X, columns=[f"größe {i}" for i in range(5)])
    adapter = Whitening(head=HEAD).fit(frame, LABELS.astype(object))
    adapter.head_.classes_ = adapter.head_.classes_.astype(object)
    loaded = load_adapter(save_adapter(adapter, tmp_path / "a"))
    assert same(loaded.feature_names_in_, adapter.feature_names_in_)
    assert same(loaded.classes_, adapter.classes_)
    assert loaded.get_feature_names_out().tolist() == adapter.get_feature_names_out().tolist()
    with pytest.raises(ValueError, match="feature names"):
        loaded.transform(frame[frame.columns[::-1]])


@pytest.mark.parametrize("labels", [[True, False], [3, 1], [1.0, -2.0], [10**12, 0]])
def test_labels_of_any_kind_stay(labels, tmp_path):
    head = LinearHead(HEAD.coef_[:2], HEAD.intercept_[:2], labels)
    adapter = LogitPreservingWhitening(head).fit(X)
    loaded = load_adapter(save_adapter(adapter, tmp_path / "a"))
    assert same(loaded.predict(X), adapter.predict(X))
    assert same(loaded.classes_, adapter.classes_)


def test_a_fitted_estimator_as_head_becomes_its_linear_head(tmp_path):
    model = LogisticRegression().fit(X, LABELS)
    adapter = LogitPreservingWhitening(FrozenEstimator(model)).fit(X)
    loaded = load_adapter(save_adapter(adapter, tmp_path / "a"))
    assert isinstance(loaded.head, LinearHead)
    assert same(loaded.head.coef_, model.coef_)
    assert same(loaded.predict_proba(X), adapter.predict_proba(X))


def test_the_same_adapter_gives_the_same_bytes(tmp_path):
    adapter = fitted("IsotropyLayer", "frozen")
    first, second = (save_adapter(adapter, tmp_path / name, data="x") for name in "ab")
    names = ["README.md", "adapter.safetensors", "config.json", "isoadapt.txt"]
    assert sorted(path.name for path in first.iterdir()) == names
    again = save_adapter(load_adapter(first), tmp_path / "c", data="x")
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes()
        assert (again / name).read_bytes() == (first / name).read_bytes()


class TestCard:
    FRONT = "library_name: isoadapt", "tags:", "- isoadapt", "- isotropy", "- embeddings"

    def test_says_where_the_adapter_comes_from(self, tmp_path):
        report = isotropy_report(X)
        reports = {"before": report, "after": {"isoscore": 0.5, "accuracy": 0.25}}
        data = {"source": "a|b\nc.tsv", "rows": 120}
        given = {"base_model": "org/some-model", "data": data, "metrics": reports}
        folder = save_adapter(fitted("Whitening", "frozen"), tmp_path / "a", **given)
        card = (folder / "README.md").read_text("utf-8")
        front, body = card.removeprefix("---\n").split("\n---\n")
        assert front.splitlines() == [*self.FRONT, 'base_model: "org/some-model"']
        assert "# Whitening for org/some-model" in body
        assert "- Data: source a\\|b c.tsv, rows 120" in body
        assert "|  | before | after |" in body
        assert f"| isoscore | {report.isoscore:.4g} | 0.5 |" in body
        assert "| accuracy |  | 0.25 |" in body
        assert "width 5 to 5. Its linear head has 3 classes: bad, fair, good." in body
        origin = provenance(read_config(folder))
        assert origin["base_model"] == "org/some-model"
        assert origin["data"] == data
        assert origin["metrics"]["before"]["ev1"] == report.ev1

    @pytest.mark.parametrize("settings", [{}, {"pooling": "mean", "layer": 0}])
    def test_the_code_in_it_runs(self, settings, tmp_path, shallow):
        from isoadapt import TransformerEncoder

        encoder = TransformerEncoder(shallow, **settings)
        adapter = Whitening(shrinkage=0.1).fit(encoder.transform(ROWS))
        base = encoder if settings else shallow
        folder = save_adapter(adapter, tmp_path / "a", base_model=base)
        card = (folder / "README.md").read_text("utf-8")
        assert "base_model:" not in card  # a folder is no name on the Hub
        code = card.split("```python\n")[1].split("```")[0]
        scope = {"texts": ROWS}
        exec(code.replace("path/to/this/folder", str(folder)), scope)
        assert same(scope["adapted"], adapter.transform(encoder.transform(ROWS)))

    def test_a_name_cannot_break_out_of_the_front_matter(self, tmp_path):
        folder = save_adapter(make("Whitening").fit(X), tmp_path / "a", base_model="x\n---\ny: z")
        card = (folder / "README.md").read_text("utf-8")
        assert card.split("\n---\n")[0].splitlines()[1:] == [*self.FRONT]


def test_only_an_adapter_is_replaced(tmp_path):
    first, second = Whitening().fit(X), Whitening(strength=0.5).fit(X)
    folder = save_adapter(first, tmp_path)  # an empty folder serves
    with pytest.raises(FileExistsError, match=r"folder=.*not empty.*overwrite=True"):
        save_adapter(second, folder)
    assert load_adapter(folder).strength == 1.0
    assert load_adapter(save_adapter(second, folder, overwrite=True)).strength == 0.5


def test_folders_that_hold_no_adapter(checkpoint, tmp_path):
    with pytest.raises(FileNotFoundError, match="save_adapter wrote"):
        load_adapter(tmp_path / "absent")
    with pytest.raises(AdapterFolderError, match="its format is not"):
        load_adapter(checkpoint)
    folder = save_adapter(Whitening().fit(X), tmp_path / "a")
    edit_json(folder / "config.json", format_version=3, isoadapt_version="9.1")
    with pytest.raises(AdapterFolderError, match=r"format_version=3.*reads 1, 2.*'9.1'"):
        load_adapter(folder)


class Mine(Whitening):
    """A class that load_adapter does not know."""


def overflowing():
    rows = np.random.default_rng(0).normal(size=(60, 5))
    flow = FlowAdapter(n_blocks=1, max_epochs=1, random_state=0).fit(rows)
    last = flow.map_.last
    flow.map_ = flow.map_._replace(last=last._replace(log_scale=last.log_scale + 800))
    return flow


def layer(**changes):
    """A layer with a parameter that was changed after the fit."""
    return fitted("IsotropyLayer", "mlp").set_params(**changes)


@pytest.mark.parametrize(
    ("adapter", "error", "named"),
    [
        (Whitening, NotFittedError, "not fitted"),
        (lambda: layer(random_state=np.random.RandomState(0)), TypeError, "random_state="),
        (lambda: layer(scoring=print), TypeError, "parameters.scoring="),
        (lambda: layer(network="linear"), ValueError, "map_ is not affine"),
        (lambda: layer(head="ridge"), ValueError, "head_ is not a regressor"),
        (lambda: HEAD, TypeError, "not an adapter of isoadapt.*joblib"),
        (lambda: make_pipeline(StandardScaler()), TypeError, "not an adapter of isoadapt"),
        (lambda: Mine().fit(X), TypeError, "not an adapter of isoadapt"),
        (overflowing, ValueError, "to 5 finite numbers"),
    ],
)
def test_what_cannot_be_saved_is_said_before_anything_is_written(adapter, error, named, tmp_path):
    with pytest.raises(error, match=named):
        save_adapter(adapter(), tmp_path / "sub" / "a")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "named"),
    [({"data": {"rows": X}}, "data.rows"), ({"base_model": 3}, "^base_model is a int")],
)
def test_what_cannot_be_recorded_is_named(options, named, tmp_path):
    with pytest.raises(TypeError, match=named):
        save_adapter(Whitening().fit(X), tmp_path / "a", **options)
    assert list(tmp_path.iterdir()) == []
