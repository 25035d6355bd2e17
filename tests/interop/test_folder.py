"""An adapter folder gives back the adapter, to the bit, or says why it cannot."""

import json
import re
import sys

import joblib
import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from isoadapt import (
    FlowAdapter,
    IsotropyLayer,
    LinearHead,
    LogitPreservingWhitening,
    Whitening,
)
from isoadapt.adapters._registry import ADAPTERS
from isoadapt.geometry import Moments
from isoadapt.geometry._chunks import RowSketch
from isoadapt.interop import AdapterFolderError, load_adapter, save_adapter
from isoadapt.interop._folder import provenance, read_config
from isoadapt.metrics import isoscore, isotropy_report
from tests.encoders.test_store import forks, in_fork
from tests.interop.examples import HEAD, LABELS, VARIANTS, X, checksum, fitted, make, targets
from tests.tiny_models import WORDS

CASES = [(name, v) for name in ADAPTERS for v in VARIANTS if make(name, v) is not None]
METHODS = ["transform", "predict", "predict_proba", "predict_log_proba", "decision_function"]


def same(first, second):
    """Equal through and through: types, dtypes, shapes and every bit."""
    if type(first) is not type(second):
        return False
    if isinstance(first, np.ndarray):
        return first.dtype == second.dtype and np.array_equal(first, second)
    if isinstance(first, LinearHead | RowSketch):
        return same(vars(first), vars(second))
    if hasattr(first, "to_arrays"):
        return same(first.to_arrays(), second.to_arrays())
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[k], second[k]) for k in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return first == second or (first != first and second != second)


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


@pytest.mark.parametrize(
    ("name", "parameter"), [("FlowAdapter", "scoring"), ("Whitening", "shrinkage")]
)
def test_a_parameter_that_was_added_later_has_its_default(name, parameter, tmp_path):
    adapter = fitted(name)
    folder = save_adapter(adapter, tmp_path / "a")
    config = json.loads((folder / "config.json").read_text())
    del config["parameters"][parameter]
    config["sha256"] = checksum(config)
    (folder / "config.json").write_text(json.dumps(config))
    loaded = load_adapter(folder)
    assert getattr(loaded, parameter) == getattr(type(adapter)(), parameter)
    assert same(loaded.transform(X), adapter.transform(X))


@forks
def test_a_new_process_without_transformers_loads_every_folder_and_pickle(tmp_path):
    expected = {}
    for name in ADAPTERS:
        adapter = fitted(name)
        save_adapter(adapter, tmp_path / name)
        joblib.dump(adapter, tmp_path / f"{name}.joblib")
        expected[name] = adapter.transform(X)

    def load():
        for name in [name for name in sys.modules if name.startswith(("isoadapt", "transformers"))]:
            del sys.modules[name]
        sys.modules["transformers"] = None  # importing it fails
        from isoadapt.interop import load_adapter

        for name in ADAPTERS:
            pickled = joblib.load(tmp_path / f"{name}.joblib")
            for loaded in (load_adapter(tmp_path / name), pickled):
                assert np.array_equal(loaded.transform(X), expected[name]), name

    assert in_fork(load) == 0


@pytest.mark.parametrize("name", ADAPTERS)
def test_partial_fit_goes_on(name, tmp_path):
    head = HEAD if name == "LogitPreservingWhitening" else None
    adapter = make(name).set_params(head=head)
    if not hasattr(adapter, "partial_fit"):
        with pytest.raises(AttributeError):
            adapter.partial_fit(X)
        return
    y = targets(name)
    adapter.partial_fit(X[:70], y[:70])
    loaded = load_adapter(save_adapter(adapter, tmp_path / "a"))
    rest = X[70:], y[70:]
    assert same(vars(loaded.partial_fit(*rest)), vars(adapter.partial_fit(*rest)))


def test_names_of_features_and_labels_stay(tmp_path):
    frame = pd.DataFrame(X, columns=[f"größe {i}" for i in range(5)])
    adapter = Whitening(head="logistic").fit(frame, LABELS.astype(object))
    loaded = load_adapter(save_adapter(adapter, tmp_path / "a"))
    assert same(loaded.feature_names_in_, adapter.feature_names_in_)
    assert same(loaded.classes_, adapter.classes_)
    assert loaded.get_feature_names_out().tolist() == adapter.get_feature_names_out().tolist()
    with pytest.raises(ValueError, match="feature names"):
        loaded.transform(frame[frame.columns[::-1]])


@pytest.mark.parametrize("labels", [[True, False], [3, 1], [1.0, -2.0], [10**12, 0]])
def test_labels_of_any_kind_stay(labels, tmp_path):
    y = np.array(labels)[np.arange(120) % 2]
    adapter = IsotropyLayer(solver="exact").fit(X, y)
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
    adapter = fitted("IsotropyLayer", "exact")
    first, second = (save_adapter(adapter, tmp_path / name, data="x") for name in "ab")
    names = ["README.md", "adapter.safetensors", "config.json", "isoadapt.txt"]
    assert sorted(path.name for path in first.iterdir()) == names
    for path in first.iterdir():
        assert path.read_bytes() == (second / path.name).read_bytes()
    again = save_adapter(load_adapter(first), tmp_path / "c", data="x")
    assert (again / "config.json").read_bytes() == (first / "config.json").read_bytes()


def test_moments_saved_by_earlier_versions_load_and_go_on(tmp_path):
    adapter = fitted("LogitPreservingWhitening", "frozen")
    arrays = adapter.moments_.to_arrays()
    for name in ("third", "fourth"):
        del arrays[name]
    adapter.moments_ = Moments.from_arrays(arrays)
    folder = save_adapter(adapter, tmp_path / "a")
    assert "state.moments_.fourth" not in load_file(folder / "adapter.safetensors")
    again = load_adapter(folder)
    assert again.moments_.fourth is None
    again.partial_fit(X)
    assert again.moments_.count == 2 * len(X)
    with pytest.raises(ValueError, match="fourth moment"):
        isoscore(again.moments_, bias_corrected=True)


class TestCard:
    FRONT = "library_name: isoadapt", "tags:", "- isoadapt", "- isotropy", "- embeddings"

    def test_says_where_the_adapter_comes_from(self, tmp_path):
        adapter = fitted("Whitening", "pca")
        reports = {"before": isotropy_report(X), "after": {"isoscore": 0.5, "accuracy": 0.25}}
        data = {"source": "a|b\nc.tsv", "rows": 120}
        given = {"base_model": "org/some-model", "data": data, "metrics": reports}
        folder = save_adapter(adapter, tmp_path / "a", **given)
        card = (folder / "README.md").read_text("utf-8")
        front, body = card.removeprefix("---\n").split("\n---\n")
        assert front.splitlines() == [*self.FRONT, 'base_model: "org/some-model"']
        assert "# Whitening for org/some-model" in body
        assert "- Data: source a\\|b c.tsv, rows 120" in body
        assert "|  | before | after |" in body
        assert f"| isoscore | {isotropy_report(X).isoscore:.4g} | 0.5 |" in body
        assert "| accuracy |  | 0.25 |" in body
        assert "width 5 to 2. Its linear head has 3 classes: bad, fair, good." in body
        assert "- numpy " + np.__version__ in body
        origin = provenance(read_config(folder))
        assert origin["base_model"] == "org/some-model"
        assert origin["data"] == data
        assert origin["metrics"]["before"]["ev1"] == isotropy_report(X).ev1

    def test_the_code_in_it_runs(self, tmp_path, checkpoint):
        from isoadapt import TransformerEncoder

        texts = [f"the cat sat on the {word} " + "very " * i for i, word in enumerate(WORDS)]
        adapter = Whitening(shrinkage=0.1).fit(TransformerEncoder(checkpoint).transform(texts))
        folder = save_adapter(adapter, tmp_path / "a", base_model=checkpoint)
        card = (folder / "README.md").read_text("utf-8")
        assert "base_model:" not in card  # a folder is no name on the Hub
        code = card.split("```python\n")[1].split("```")[0]
        scope = {"texts": texts}
        exec(code.replace("path/to/this/folder", str(folder)), scope)
        assert same(scope["adapted"], adapter.transform(scope["embeddings"]))

    def test_a_name_cannot_break_out_of_the_front_matter(self, tmp_path):
        folder = save_adapter(make("Whitening").fit(X), tmp_path / "a", base_model="x\n---\ny: z")
        card = (folder / "README.md").read_text("utf-8")
        assert card.split("\n---\n")[0].splitlines()[1:] == [*self.FRONT]


class TestRefusals:
    """What cannot be saved is said before anything is written."""

    def refuse(self, adapter, folder, error, message, **options):
        with pytest.raises(error, match=message):
            save_adapter(adapter, folder / "sub" / "a", **options)
        assert list(folder.iterdir()) == []

    def test_unfitted(self, tmp_path):
        self.refuse(Whitening(), tmp_path, NotFittedError, "not fitted")

    def test_a_generator(self, tmp_path):
        rng = np.random.RandomState(0)
        adapter = IsotropyLayer(HEAD, max_epochs=1, random_state=rng).fit(X, LABELS)
        message = r"parameters.random_state=RandomState.*an integer as random_state"
        self.refuse(adapter, tmp_path, TypeError, message)
        save_adapter(adapter.set_params(random_state=0), tmp_path / "a")

    def test_a_callable(self, tmp_path):
        def scoring(estimator, X, y):
            return 0.0

        adapter = IsotropyLayer(HEAD, max_epochs=1, scoring=scoring).fit(X, LABELS)
        message = r"parameters.scoring=<function.*scikit-learn scorer"
        self.refuse(adapter, tmp_path, TypeError, message)

    @pytest.mark.parametrize("other", [HEAD, make_pipeline(StandardScaler()), "Whitening", None])
    def test_no_adapter(self, other, tmp_path):
        self.refuse(other, tmp_path, TypeError, "not an adapter of isoadapt.*joblib")

    def test_a_subclass_of_elsewhere(self, tmp_path):
        class Mine(Whitening):
            pass

        self.refuse(Mine().fit(X), tmp_path, TypeError, "not an adapter of isoadapt")

    def test_parameters_that_were_set_after_the_fit(self, tmp_path):
        adapter = fitted("Whitening", "pca").set_params(head="ridge")
        self.refuse(adapter, tmp_path, ValueError, "head_ is not a regressor.*fit .* again")
        adapter = fitted("IsotropyLayer", "mlp").set_params(network="linear")
        self.refuse(adapter, tmp_path, ValueError, "not affine.*fit the adapter again")

    def test_arrays_as_data(self, tmp_path):
        adapter = Whitening().fit(X)
        self.refuse(adapter, tmp_path, TypeError, "data.rows is an array", data={"rows": X})


class TestFolders:
    def test_only_an_adapter_is_replaced(self, tmp_path):
        first, second = Whitening().fit(X), Whitening(strength=0.5).fit(X)
        folder = save_adapter(first, tmp_path / "a")
        with pytest.raises(FileExistsError, match=r"folder=.*not empty.*overwrite=True"):
            save_adapter(second, folder)
        assert load_adapter(folder).strength == 1.0
        save_adapter(second, folder, overwrite=True)
        assert load_adapter(folder).strength == 0.5

    def test_an_empty_folder_serves(self, tmp_path):
        (tmp_path / "a").mkdir()
        assert load_adapter(save_adapter(Whitening().fit(X), tmp_path / "a")).method == "zca"

    def test_a_missing_folder(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="save_adapter wrote"):
            load_adapter(tmp_path / "absent")

    def test_another_folder(self, checkpoint):
        with pytest.raises(AdapterFolderError, match=re.escape("its format is not")):
            load_adapter(checkpoint)

    def test_another_format(self, tmp_path):
        folder = save_adapter(Whitening().fit(X), tmp_path / "a")
        config = json.loads((folder / "config.json").read_text())
        config |= {"format_version": 3, "isoadapt_version": "9.1"}
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(AdapterFolderError, match=r"format_version=3.*reads 1, 2.*'9.1'"):
            load_adapter(folder)


def test_a_flow_that_overflows_is_refused(tmp_path):
    rows = np.random.default_rng(0).normal(size=(60, 5))
    flow = FlowAdapter(n_blocks=1, max_epochs=1, random_state=0).fit(rows)
    last = flow.map_.last
    flow.map_ = flow.map_._replace(last=last._replace(log_scale=last.log_scale + 800))
    with pytest.raises(ValueError, match="to 5 finite numbers"):
        save_adapter(flow, tmp_path / "flow")
    assert not (tmp_path / "flow").exists()
