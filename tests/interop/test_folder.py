"""An adapter folder gives back the adapter, to the bit, or says why it cannot."""

import sys

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from isoadapt import AdaptedEncoder, LinearHead, TransformerEncoder, Whitening, adapters
from isoadapt.adapters._registry import MODULES
from isoadapt.interop import load_adapter, save_adapter
from isoadapt.interop._folder import read_folder
from isoadapt.losses import CosRegLoss
from isoadapt.metrics import isotropy_report
from tests.interop.examples import HEAD, LABELS, ROWS, VARIANTS, X, fitted, make, same, targets
from tests.refusals import refusals
from tests.tiny_models import TEXTS

CASES = [(name, "default") for name in MODULES]
for number, variant in enumerate(list(VARIANTS)[1:]):  # each with one of the classes that have it
    having = [name for name in MODULES if make(name, variant) is not None]
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


PARTIAL = ["Whitening", "IsoBN", "LogitPreservingWhitening", "TeacherReadout"]


@pytest.mark.parametrize("name", PARTIAL)
def test_partial_fit_goes_on(name, tmp_path):
    adapter = make(name).set_params(head=HEAD if name == "LogitPreservingWhitening" else None)
    y = targets(name)
    adapter.partial_fit(X[:70], y[:70])
    loaded = load_adapter(save_adapter(adapter, tmp_path / name))
    assert same(vars(loaded.partial_fit(X[70:], y[70:])), vars(adapter.partial_fit(X[70:], y[70:])))


def test_folders_and_pickles_load_without_transformers(tmp_path):
    models = {name: fitted(name) for name in ("Whitening", "TeacherReadout", "FlowAdapter")}
    for name, adapter in models.items():
        save_adapter(adapter, tmp_path / name)
        joblib.dump(adapter, tmp_path / f"{name}.joblib")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in sys.modules if name.startswith(("isoadapt", "transformers"))]:
            patch.setitem(sys.modules, name, None)
            del sys.modules[name]
        patch.setitem(sys.modules, "transformers", None)  # importing it fails
        from isoadapt.interop import load_adapter as load

        for name, adapter in models.items():
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
    adapter = adapters.LogitPreservingWhitening(head).fit(X)
    loaded = load_adapter(save_adapter(adapter, tmp_path / "a"))
    assert same(loaded.predict(X), adapter.predict(X))
    assert same(loaded.classes_, adapter.classes_)


class TestCard:
    def test_says_where_the_adapter_comes_from(self, tmp_path):
        report = isotropy_report(X)
        reports = {"before": report, "after": {"isoscore": 0.5, "accuracy": 0.25}}
        data = {"source": "a|b\nc\udce9.tsv", "rows": 120}  # its name is not UTF-8
        given = {"base_model": "org/some-model", "data": data, "metrics": reports}
        folder = save_adapter(fitted("Whitening", "frozen"), tmp_path / "a", **given)
        card = (folder / "README.md").read_text("utf-8")
        front, body = card.removeprefix("---\n").split("\n---\n")
        assert front.splitlines()[0] == "library_name: isoadapt"
        assert front.splitlines()[-1] == 'base_model: "org/some-model"'
        assert "- Data: source a\\|b c?.tsv, rows 120" in body
        assert f"| isoscore | {report.isoscore:.4g} | 0.5 |" in body
        assert "| accuracy |  | 0.25 |" in body
        assert "Head: LinearHead(n_features=5, classes=['bad', 'fair', 'good'])" in body
        assert read_folder(folder)[1] == "org/some-model"

    @pytest.mark.parametrize("settings", [None, {}, {"pooling": "mean", "layer": 0}])
    def test_the_code_in_it_runs(self, settings, tmp_path, shallow):
        encoder = TransformerEncoder(shallow, **(settings or {}))
        adapter = Whitening(shrinkage=0.1).fit(encoder.transform(ROWS))
        base = encoder if settings else None if settings is None else shallow
        folder = save_adapter(adapter, tmp_path / "a", base_model=base)
        card = (folder / "README.md").read_text("utf-8")
        assert "base_model:" not in card  # a folder is no name on the Hub
        code = card.split("```python\n")[1].split("```")[0]
        scope = {"rows": encoder.transform(ROWS)} if base is None else {"texts": ROWS}
        exec(code.replace("path/to/this/folder", str(folder)), scope)
        assert same(scope["adapted"], adapter.transform(encoder.transform(ROWS)))


@pytest.mark.usefixtures("fixed_penalty")
def test_what_belongs_to_isoadapt_and_scikit_learn_is_saved(tmp_path):
    frozen = FrozenEstimator(LogisticRegression().fit(X, LABELS))
    models = [
        adapters.PenaltyAdapter(CosRegLoss(), head=HEAD, max_epochs=1, random_state=0).fit(
            X, LABELS
        ),
        adapters.LogitPreservingWhitening(frozen).fit(X),
        Whitening().set_output(transform="pandas").fit(X),  # a setting, which is not saved
        adapters.ClusterIsotropy(random_state=np.random.RandomState(0)).fit(X),
    ]
    for number, adapter in enumerate(models):
        loaded = load_adapter(save_adapter(adapter, tmp_path / str(number)))
        np.testing.assert_array_equal(loaded.transform(X), adapter.transform(X))
        assert isinstance(loaded.transform(X), np.ndarray)
    assert isinstance(load_adapter(tmp_path / "1").head, FrozenEstimator)


def penalty(Z):
    return CosRegLoss()(Z)


PENALISED = adapters.PenaltyAdapter(penalty, head=HEAD, max_epochs=1).fit(X, LABELS)
NARROW = Whitening("pca", n_components=3).fit(X)
PRINTING = adapters.IsotropyLayer(HEAD, max_epochs=1).fit(X, LABELS).set_params(scoring=print)
test_what_cannot_be_saved_is_said_before_anything_is_written = refusals(
    ({"adapter": Whitening()}, "not fitted", NotFittedError),
    ({"adapter": PRINTING}, r"builtins\.print"),
    ({"adapter": HEAD}, "not an adapter of isoadapt.*joblib"),
    ({"adapter": make_pipeline(StandardScaler())}, "not an adapter of isoadapt"),
    ({"adapter": make_pipeline("passthrough")}, "Pipeline without an adapter"),
    ({"adapter": make_pipeline(NARROW, PENALISED)}, "test_folder.penalty.*joblib"),
    ({"adapter": make_pipeline(NARROW, Whitening().fit(X))}, "takes 5 features, but receives 3"),
    ({"adapter": NARROW, "base_model": 3}, "^base_model is a int"),
    call=lambda given, tmp_path: save_adapter(folder=tmp_path / "sub" / "a", **given),
    errors=(TypeError, ValueError),
)


PIPELINES = {
    "two": make_pipeline(
        adapters.AllButTheTop(1), adapters.IStarAdapter(HEAD, max_epochs=1, random_state=0)
    ),
    "head": make_pipeline(Whitening(), LogisticRegression()),
    "nested": make_pipeline(
        make_pipeline(Whitening(n_components=3), "passthrough"),
        adapters.LogitPreservingWhitening("logistic"),
    ),
}


class TestPipelines:
    """What merge_into_checkpoint takes, save_adapter takes too."""

    @pytest.mark.parametrize("name", PIPELINES)
    @pytest.mark.usefixtures("fixed_penalty")
    def test_of_adapters(self, name, tmp_path):
        pipeline = PIPELINES[name].fit(X, LABELS)
        folder = save_adapter(pipeline, tmp_path / "a")
        loaded = load_adapter(folder)
        assert isinstance(loaded, Pipeline)
        if name == "head":
            np.testing.assert_allclose(loaded.predict_proba(X), pipeline.predict_proba(X))
            loaded, pipeline = loaded[:-1], pipeline[:-1]
        else:
            np.testing.assert_array_equal(loaded.predict(X), pipeline.predict(X))
        np.testing.assert_array_equal(loaded.transform(X), pipeline.transform(X))
        again = load_adapter(save_adapter(loaded, tmp_path / "b"))
        np.testing.assert_array_equal(again.transform(X), loaded.transform(X))

    def test_from_texts(self, shallow, tmp_path):
        encoder = TransformerEncoder(shallow, max_length=5, device="cpu", cache=tmp_path / "cache")
        model = AdaptedEncoder(encoder, adapters.LogitPreservingWhitening()).fit(TEXTS)
        folder = save_adapter(model, tmp_path / "a")
        loaded = load_adapter(folder)
        assert loaded[0].max_length == 5
        assert loaded[0].cache is None
        np.testing.assert_array_equal(loaded.transform(TEXTS), model.transform(TEXTS))
        np.testing.assert_array_equal(loaded.predict(TEXTS), model.predict(TEXTS))
        card = (folder / "README.md").read_text()
        assert f"- Encoder: {shallow}" in card
        assert "adapted = adapter.transform(texts)" in card
        with pytest.raises(ValueError, match="leave base_model out"):
            save_adapter(model, tmp_path / "b", base_model="another")
