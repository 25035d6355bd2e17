"""AdapterSearchCV(n_jobs=2): candidates trained together in two processes at once."""

import threading

import numpy as np
import pytest
from joblib import Parallel, parallel_config
from sklearn import config_context
from sklearn.datasets import make_classification
from sklearn.decomposition import PCA
from sklearn.exceptions import FitFailedWarning
from sklearn.model_selection import ShuffleSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from isoadapt import IStarAdapter, Whitening
from isoadapt.adapters import _together
from isoadapt.model_selection import AdapterSearchCV
from isoadapt.model_selection._search import _adapter_search as module, _evaluation

X, Y = make_classification(150, 8, n_informative=6, n_classes=3, random_state=0)
ADAPTER = IStarAdapter(max_epochs=2, random_state=0)
GRID = {"lam": [-1, 0.5, 2], "lr": [1e-3, 1e38]}
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


@pytest.mark.filterwarnings("ignore:One or more of the test scores are non-finite:UserWarning")
@pytest.mark.filterwarnings("ignore:9 of 18 fits could not be trained together:UserWarning")
def test_processes_give_the_results_of_one_and_their_results_are_kept(tmp_path, monkeypatch):
    options = {"cv": 3, "refit": False}
    with pytest.warns(FitFailedWarning):
        alone = AdapterSearchCV(ADAPTER, GRID, **options).fit(X, Y)
    with pytest.warns(FitFailedWarning):
        ours = AdapterSearchCV(ADAPTER, GRID, n_jobs=2, cache=tmp_path, **options).fit(X, Y)
    np.testing.assert_allclose(scores(ours), scores(alone), atol=0.021)  # one of 50 rows
    assert np.isnan(ours.cv_results_["mean_test_score"]).tolist() == [False, True] * 3
    assert ours.unbatched_ == alone.unbatched_ != {}

    def run(*arguments):
        raise AssertionError("trained again")

    def sequential(self, return_as):
        return Parallel(1, return_as=return_as)

    grid = {**GRID, "lr": [1e-3]}
    first = AdapterSearchCV(ADAPTER, grid, n_jobs=2, cache=tmp_path, **options).fit(X, Y)
    monkeypatch.setattr(_evaluation, "_run_alone", run)
    monkeypatch.setattr(_evaluation.Evaluation, "_parallel", sequential)
    again = AdapterSearchCV(ADAPTER, grid, n_jobs=2, cache=tmp_path, **options).fit(X, Y)
    np.testing.assert_array_equal(scores(again), scores(first))


@pytest.mark.parametrize(("n_members", "sizes"), [(18, [9, 9]), (4, [3] * 6)])
def test_each_process_gets_a_part(threads, monkeypatch, n_members, sizes):
    found, train = [], _together.fit_members

    def counted(members, *arguments):
        found.append(len(members))
        return train(members, *arguments)

    monkeypatch.setattr(_together, "fit_members", counted)
    monkeypatch.setattr(_evaluation.Group, "limits", lambda self: (n_members, 9))
    AdapterSearchCV(ADAPTER, LAMS, cv=3, n_jobs=2, refit=False).fit(X, Y)
    assert found == sizes


def test_all_groups_share_the_processes(threads, monkeypatch):
    grid = {"lam": [0.0, 10.0], "max_epochs": [1, 8]}  # a group for each number of epochs
    parallel, rounds = _evaluation.Evaluation._parallel, []

    def counted(self, return_as):
        rounds.append(return_as)
        return parallel(self, return_as)

    monkeypatch.setattr(_evaluation.Evaluation, "_parallel", counted)
    adapter = IStarAdapter(lr=0.05, random_state=0)
    options = {"cv": 3, "refit": False, "scoring": "neg_log_loss"}
    ours = AdapterSearchCV(adapter, grid, n_jobs=2, **options).fit(X, Y)
    assert rounds.count("generator_unordered") == 1
    alone = AdapterSearchCV(adapter, grid, **options).fit(X, Y)
    assert np.diff(np.sort(scores(alone), axis=1)).min() > 1e-4  # all candidates differ
    np.testing.assert_allclose(scores(ours), scores(alone), atol=1e-5)


@pytest.mark.filterwarnings("ignore:One or more of the test scores are non-finite:UserWarning")
@pytest.mark.filterwarnings("ignore:1 of 4 fits could not be trained together:UserWarning")
def test_groups_of_one_block_beside_one_that_cannot_be_prepared(threads):
    adapter = IStarAdapter(lr=0.05, max_epochs=4, random_state=0)
    pipe = make_pipeline(PCA(random_state=0), adapter)
    parameters = {"pca__n_components": [1000, 2, 4, 6]}  # a group each; there are 8 features
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


def test_an_error_is_raised_if_wanted(threads):
    search = AdapterSearchCV(ADAPTER, GRID, cv=3, n_jobs=2, error_score="raise")
    with pytest.raises(ValueError, match="training diverged with lr=1e"):
        search.fit(X, Y)


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
