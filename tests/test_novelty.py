"""NoveltyDetector: its scores by brute force, and the rate of rows that it refuses."""

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.metrics.pairwise import cosine_similarity
from sklearn.utils.estimator_checks import parametrize_with_checks

from isoadapt import NoveltyDetector
from tests.refusals import refusals
from tests.small_blocks import small_blocks


@parametrize_with_checks([NoveltyDetector(), NoveltyDetector(rate=0.4)])
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def draw(n, seed, d=12, noise=1.0):
    """Rows about 30 centres, as texts of several topics are."""
    centres = np.random.default_rng(99).normal(size=(30, d))
    rng = np.random.default_rng(seed)
    return 1 + 2 * centres[rng.integers(30, size=n)] + noise * rng.normal(size=(n, d))


@small_blocks(novelty=900)
@pytest.mark.parametrize("with_groups", [False, True])
def test_scores_are_those_of_brute_force(with_groups):
    X, new = draw(120, 0), draw(50, 1)
    X[100:] = 2 * X[:20]  # copies are no neighbours
    new[:5] = 3 * X[:5]
    groups = np.arange(120) % 40 if with_groups else None
    cosines = cosine_similarity(X)
    cosines[cosines > 1 - 1e-9] = -1
    if with_groups:
        cosines[groups[:, None] == groups] = -1
    detector = NoveltyDetector(rate=0.1).fit(X, groups=groups)
    expected = np.quantile(cosines.max(axis=1), 0.1, method="weibull")
    assert detector.offset_ == pytest.approx(expected, abs=1e-6)
    cosines = cosine_similarity(new, X)
    cosines[cosines > 1 - 1e-9] = -1
    scores = detector.score_samples(new)
    np.testing.assert_allclose(scores, cosines.max(axis=1), atol=1e-6)
    np.testing.assert_array_equal(detector.decision_function(new), scores - detector.offset_)
    assert (detector.predict(new) == 1).tolist() == (scores >= detector.offset_).tolist()


@pytest.mark.parametrize("rate", [0.02, 0.05, 0.3])
@pytest.mark.parametrize("calibrated", [False, True])
def test_the_rate_holds_on_fresh_rows_of_the_same_kind(rate, calibrated):
    given = {"X_calibration": draw(1000, 1)} if calibrated else {}
    detector = NoveltyDetector(rate).fit(draw(1000, 0), **given)
    refused = np.mean(detector.predict(draw(4000, 2)) == -1)
    assert abs(refused - rate) < 3 * (rate * (1 - rate) * (1 / 1000 + 1 / 4000)) ** 0.5
    assert np.mean(detector.predict(-draw(100, 3)) == -1) > 0.9


def test_training_rows_that_are_closer_together_need_calibration_rows_or_groups():
    """As vectors of texts that the encoder was fitted to, and of paraphrases, are."""
    X, fresh = draw(1000, 0, noise=0.6), draw(4000, 2)
    calibrated = NoveltyDetector().fit(X, X_calibration=draw(1000, 1)).predict(fresh)
    assert np.mean(calibrated == -1) == pytest.approx(0.05, abs=0.025)
    assert np.mean(NoveltyDetector().fit(X).predict(fresh) == -1) > 0.15
    both = np.vstack([fresh, fresh + 0.1 * draw(4000, 3)])
    grouped = NoveltyDetector().fit(both, groups=np.tile(np.arange(4000), 2)).offset_
    alone = NoveltyDetector().fit(fresh).offset_
    assert abs(grouped - alone) < 0.01 < NoveltyDetector().fit(both).offset_ - alone


def test_lengths_rotations_and_containers_do_not_matter():
    X, new = draw(200, 0).astype(np.float32), draw(100, 1).astype(np.float32)
    expected = NoveltyDetector().fit(X, X_calibration=new)
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(12, 12)))[0]
    lengths = np.random.default_rng(2).uniform(0.1, 10, size=(300, 1))
    changes = [np.split(lengths * np.vstack([X, new]) @ turn, [200])]
    changes += [[kind(X), kind(new)] for kind in (np.ndarray.tolist, pd.DataFrame, torch.tensor)]
    for rows, others in changes:
        found = NoveltyDetector().fit(rows, X_calibration=others)
        scores = found.score_samples(others)
        np.testing.assert_allclose(scores, expected.score_samples(new), atol=1e-6)
        assert found.offset_ == pytest.approx(expected.offset_, abs=1e-6)


def test_copies_do_not_change_the_limit_and_fitted_detectors_are_stored(tmp_path):
    X, new = draw(300, 0), draw(50, 1)
    detector = NoveltyDetector(rate=0.1).fit(X)
    both = NoveltyDetector(rate=0.1).fit(np.repeat(X, 2, axis=0))
    assert both.offset_ == pytest.approx(detector.offset_, abs=2e-3)
    joblib.dump(detector, tmp_path / "detector")
    for mode in (None, "r"):
        stored = joblib.load(tmp_path / "detector", mmap_mode=mode)
        np.testing.assert_array_equal(stored.predict(new), detector.predict(new))
    assert clone(detector).get_params() == {"rate": 0.1}


test_what_does_not_fit_is_refused = refusals(
    (lambda X: NoveltyDetector(rate=0).fit(X), "'rate' parameter .* Got 0"),
    (lambda X: NoveltyDetector().fit(X, groups=[1, 2]), "groups has shape"),
    (lambda X: NoveltyDetector().fit(X, groups=np.ones(60)), "of the groups.*pass others"),
    (lambda X: NoveltyDetector().fit(np.ones((9, 3))), "all rows of X are equal"),
    (lambda X: NoveltyDetector().fit(X, X_calibration=X[:, :3]), "X_calibration: X has 3"),
    (lambda X: NoveltyDetector().fit(X, X_calibration=X * np.nan), "X_calibration: .*NaN"),
    call=lambda call: call(draw(60, 0)),
)
