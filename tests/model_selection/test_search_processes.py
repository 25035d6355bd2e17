"""AdapterSearchCV(n_jobs=2): candidates trained together in two workers, here threads, at once."""

import threading

import numpy as np
import pytest
from joblib import parallel_config
from sklearn import config_context
from sklearn.datasets import make_classification
from sklearn.decomposition import PCA
from sklearn.exceptions import FitFailedWarning
from sklearn.model_selection import ShuffleSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from isoadapt import IStarAdapter, Whitening
from isoadapt.model_selection import AdapterSearchCV
from isoadapt.model_selection._search import _adapter_search as module, _evaluation
from tests.model_selection.searches import count_members

X, Y = make_classification(150, 8, n_informative=6, n_classes=3, random_state=0)
ADAPTER = IStarAdapter(max_epochs=2, random_state=0)
pytestmark = pytest.mark.usefixtures("fixed_penalties")
LAMS = {"lam": [-1, 0.0, 0.5, 1, 2, 3]}


@pytest.fixture
def threads():
    """Threads in place of processes, which would have to import everything."""
    before = set(threading.enumerate())
    with parallel_config("threading"):
        yield
    for thread in set(threading.enumerate()) - before:  # an interrupt leaves them at work
        thread.join(timeout=60)


def scores(search):
    return [search.cv_results_[f"split{fold}_test_score"] for fold in range(search.n_splits_)]


@pytest.mark.parametrize(("n_members", "sizes"), [(18, [9, 9]), (4, [3] * 6)])
def test_each_process_gets_a_part(threads, monkeypatch, n_members, sizes):
    found = count_members(monkeypatch, most=n_members)
    AdapterSearchCV(ADAPTER, LAMS, cv=3, n_jobs=2, refit=False).fit(X, Y)
    assert found == sizes


@pytest.mark.filterwarnings("ignore:One or more of the test scores are non-finite:UserWarning")
@pytest.mark.filterwarnings("ignore:1 of 3 fits could not be trained together:UserWarning")
def test_groups_of_one_block_beside_one_that_cannot_be_prepared(threads):
    adapter = IStarAdapter(lr=0.05, max_epochs=2, random_state=0)
    pipe = make_pipeline(PCA(random_state=0), adapter)
    parameters = {"pca__n_components": [1000, 2, 6]}  # a group each; there are 8 features
    options = {"cv": ShuffleSplit(1, random_state=0), "refit": False, "scoring": "neg_log_loss"}
    with pytest.warns(FitFailedWarning):
        ours = AdapterSearchCV(pipe, parameters, n_jobs=2, **options).fit(X, Y)
    with pytest.warns(FitFailedWarning):
        alone = AdapterSearchCV(pipe, parameters, **options).fit(X, Y)
    (found,), (expected,) = scores(ours), scores(alone)
    assert np.isnan(expected[0])
    assert np.diff(np.sort(expected[1:])).min() > 1e-3
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert ours.unbatched_ == alone.unbatched_ == {"training failed with ValueError": 1}


@pytest.mark.filterwarnings("ignore:One or more of the test scores are non-finite:UserWarning")
@pytest.mark.filterwarnings("ignore:[0-9]+ tasks which were still being processed:UserWarning")
@pytest.mark.filterwarnings("ignore:.*successfully executed")  # joblib's
def test_an_interrupt_keeps_the_blocks_that_are_done(threads, monkeypatch):
    class Bar(module.tqdm):
        def update(self, n=1):
            raise KeyboardInterrupt

    monkeypatch.setattr(module, "tqdm", Bar)
    monkeypatch.setattr(_evaluation.Group, "limits", lambda self: (2, 9))
    folds = [(np.arange(100), np.arange(100, 150))]
    with pytest.warns(UserWarning, match="interrupted: 2 of 6 candidates are done"):
        search = AdapterSearchCV(ADAPTER, LAMS, cv=folds, n_jobs=2, refit=False).fit(X, Y)
    assert np.isfinite(scores(search)).sum() == 2


@pytest.mark.filterwarnings("ignore:6 of 6 fits could not be trained together:UserWarning")
@pytest.mark.parametrize(
    ("adapter", "grid"),
    [
        (IStarAdapter(max_epochs=2, random_state=0), {"istaradapter__lam": [-1, 1]}),
        (Whitening(head="logistic"), {"whitening__strength": [0.5, 1.0]}),
    ],
    ids=["together", "one at a time"],
)
def test_the_configuration_of_scikit_learn_is_passed_on(threads, adapter, grid):
    weights = np.random.default_rng(0).integers(0, 4, size=len(X))
    found = []
    with config_context(enable_metadata_routing=True):
        adapter.set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        pipe = make_pipeline(StandardScaler().set_fit_request(sample_weight=False), adapter)
        # In scikit-learn 1.7 a pipeline's score has a sample_weight of its own to request.
        pipe.set_score_request(sample_weight=True)
        for n_jobs in (None, 2):
            search = AdapterSearchCV(pipe, grid, cv=3, n_jobs=n_jobs, refit=False)
            found.append(scores(search.fit(X, Y, sample_weight=weights)))
    assert np.isfinite(found).all()
    np.testing.assert_array_equal(*found)
