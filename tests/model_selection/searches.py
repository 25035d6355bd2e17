"""AdapterSearchCV and GridSearchCV side by side."""

import numpy as np
from sklearn.model_selection import GridSearchCV

from isoadapt.adapters import _together
from isoadapt.model_selection import AdapterSearchCV
from isoadapt.model_selection._search import _evaluation


def assert_same_results(ours, theirs, atol=3e-3):
    """Equal candidates and, up to `atol`, equal scores on every fold."""
    assert set(ours.cv_results_) == set(theirs.cv_results_)
    assert ours.cv_results_["params"] == theirs.cv_results_["params"]
    for name, column in theirs.cv_results_.items():
        if name.startswith("param_"):
            assert ours.cv_results_[name].tolist() == column.tolist()
        elif "score" in name and "time" not in name and "rank" not in name:
            np.testing.assert_allclose(ours.cv_results_[name], column, atol=atol)
    assert ours.n_splits_ == theirs.n_splits_


def agree(estimator, grid, X, y, given=None, *, atol=3e-3, alone=(), **options):
    """Both searches, whose scores agree; `alone`: numbers of fits that ours did one at a time."""
    kinds = AdapterSearchCV, GridSearchCV
    ours, theirs = (kind(estimator, grid, **options).fit(X, y, **(given or {})) for kind in kinds)
    assert_same_results(ours, theirs, atol)
    assert alone is None or list(ours.unbatched_.values()) == [*alone]
    return ours, theirs


def count_members(monkeypatch, most=None, folds=9):
    """Note how many members each network has, which are at most `most`."""
    calls, train_adapters = [], _together.train_adapters

    def counted(adapters, *arguments):
        calls.append(len(adapters))
        return train_adapters(adapters, *arguments)

    monkeypatch.setattr(_together, "train_adapters", counted)
    if most is not None:
        monkeypatch.setattr(_evaluation, "limits", lambda *_: (most, folds))
    return calls
