import json

import numpy as np
import pytest
from scipy.stats import binom
from sklearn.model_selection import StratifiedKFold

from benchmarks.quality import _comparison_tasks as tasks, _comparison_trials as trials, comparison
from benchmarks.quality._comparison_blocks import (
    BLOCK,
    Count,
    block_store,
    covered,
    family_errors,
    found_effects,
    obtain_trials,
    stored_trials,
)
from benchmarks.quality._comparison_text import (
    changed_line,
    coverages,
    is_credited,
    task_checks,
    task_table,
)
from benchmarks.quality._comparison_trials import (
    FOLDS,
    TEST_ROWS,
    PlantedAdapter,
    Setting,
    Trial,
    noise_precision,
    planted_pairs,
    planted_rows,
    run_trial,
    spearman,
)
from isoadapt import LinearHead
from isoadapt.adapters._heads import fit_head
from isoadapt.metrics import similarity_correlation


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def made_trial(p, difference=(0.01, 0.05), credited=True):
    return Trial(
        {"classify": [p, 0.5]},
        {"classify": [min(1.0, 2 * p), 0.5]},
        {"classify": credited},
        {"classify": (0.7, 0.8)},
        {"classify": difference},
    )


@pytest.mark.parametrize("discordance", trials.DISCORDANCES)
def test_heads_predict_the_planted_signs_with_the_stated_accuracies(discordance, rng):
    X, y = planted_rows(40_000, discordance, rng)
    Z = PlantedAdapter().fit(X, y).transform(X)
    predictions = [fit_head("logistic", rows[:500], y[:500]).predict(rows) for rows in (X, Z)]
    correct = np.array([each == y for each in predictions])
    error = 4 * np.sqrt(0.25 / len(y))
    assert correct[0].mean() == pytest.approx(trials.BASE_ACCURACY, abs=error)
    assert correct[1].mean() - correct[0].mean() == pytest.approx(trials.EFFECT, abs=error)
    assert (correct[0] != correct[1]).mean() == pytest.approx(discordance, abs=error)


def test_rank_correlations_of_planted_pairs_are_known(rng):
    first, second, scores = planted_pairs(40_000, rng)
    show = PlantedAdapter().transform
    before, after = map(spearman, trials.CORRELATIONS)
    assert similarity_correlation(first, second, scores) == pytest.approx(before, abs=0.02)
    assert similarity_correlation(show(first), show(second), scores) == pytest.approx(
        after, abs=0.02
    )


def test_precision_of_noise_in_stratified_folds_is_known(rng, monkeypatch):
    monkeypatch.setattr(trials, "N_NOISE", 40)
    shares = []
    for _ in range(400):
        y = rng.integers(2, size=40)
        for _, test in StratifiedKFold(trials.N_FOLDS, shuffle=True, random_state=0).split(y, y):
            same = y[test][:, None] == y[test]
            shares.append((same.sum() - len(test)) / (len(test) * (len(test) - 1)))
    assert np.mean(shares) == pytest.approx(noise_precision(FOLDS), abs=0.005)
    assert noise_precision(FOLDS) < noise_precision(TEST_ROWS) - 0.02


@pytest.mark.parametrize("protocol", [TEST_ROWS, FOLDS])
def test_trials_are_reproducible_and_have_all_uses(protocol, monkeypatch):
    monkeypatch.setattr(trials, "N_NOISE", 40)
    found = run_trial(Setting(protocol), 3)
    assert found == run_trial(Setting(protocol), 3)
    assert set(found.p) == {"classify", "neighbours"}
    assert len(found.p["classify"]) == len(trials.cheap_adapters())


def test_an_interrupted_run_goes_on_with_the_missing_blocks(tmp_path):
    seeds = []

    def run(setting, seed):
        seeds.append(seed)
        return made_trial(1 / (1 + seed))

    file, setting = tmp_path / "blocks.jsonl", Setting(FOLDS, 0.1)
    first = obtain_trials(setting, block_store(file), BLOCK, run)
    both = obtain_trials(setting, block_store(file), 2 * BLOCK, run)
    assert seeds == list(range(2 * BLOCK))
    assert [trial.p for trial in both[:BLOCK]] == [trial.p for trial in first]
    assert len(stored_trials(setting, block_store(file))) == 2 * BLOCK
    assert stored_trials(Setting(TEST_ROWS, 0.1), block_store(file)) == []


def test_counts_of_errors_effects_and_coverage():
    own = [made_trial(0.001), made_trial(0.02), made_trial(0.04), made_trial(0.2, (-0.01, 0.02))]
    assert family_errors(own, "classify") == (2, 4)  # 0.04 is adjusted to 0.08
    assert found_effects(own, "classify") == (3, 4)
    assert found_effects(own, "classify", family=10) == (1, 4)
    assert found_effects([made_trial(0.001, (-0.05, -0.01))], "classify") == (0, 1)
    assert covered(own, "classify", "difference", 0.03) == (3, 4)
    assert {kind: count.n for _, kind, count in coverages(Setting(FOLDS, 0.1), own)} == {
        "score": 4,
        "difference": 3,
    }


def test_p_values_of_counts_are_tails_of_the_binomial_distribution():
    assert Count(16, 200).not_above(0.05) == pytest.approx(binom.sf(15, 200, 0.05))
    assert Count(20, 20).equal_to(0.5) == pytest.approx(2 * 0.5**20)


def test_a_gain_is_credited_only_beyond_the_control():
    row = {"difference": 0.1, "p_holm": 0.01, "control": None}
    assert is_credited(row)
    control = {"control": "c", "control_difference": 0.05, "control_p_holm": 0.2}
    assert not is_credited(row | control)
    assert is_credited(row | control | {"control_p_holm": 0.01})
    assert not is_credited(row | {"difference": -0.1})


def test_a_comparison_is_stored_and_reported(tmp_path, rng):
    X = rng.normal(size=(60, 4)).astype(np.float32)
    y = (X[:, 0] > 0).astype(int)
    pairs = rng.normal(size=(20, 4)), rng.normal(size=(20, 4)), rng.random(20)
    head = LinearHead(rng.normal(size=(2, 4)), np.zeros(2), [0, 1])
    data = tasks.TaskData(X[:40], y[:40], X[40:], y[40:], head, pairs)
    assert data.digest() != data._replace(pairs=None).digest()
    found = tasks.measure_task("cola", "LogitPreservingWhitening", data)
    file = tmp_path / "comparison_tasks.jsonl"
    key = tasks.Key("cola", "LogitPreservingWhitening", data.digest())
    tasks.cell_store(file).add(tasks.cell_line(key, found))
    assert tasks.cell_store(file).get(key) == found
    assert set(json.loads(file.read_text())) >= {"task", "verdict", "rows", "cpu_seconds"}
    table = task_table(found)
    assert "head refit only" in table
    assert "0 of 20" in table.splitlines()[-1]


def compared(changed):
    row = {"use": "classify", "kind": "adapter", "n_predictions": 200}
    rows = [row | {"changed_predictions": number} for number in changed]
    return tasks.Compared("rte", "fast", rows, {}, [], 400, 200, 0, 90.0, 30.0, False)


def test_share_of_changed_predictions_leaves_out_adapters_that_change_none():
    assert "changes 10.0% of them at the median" in changed_line(
        {("rte", "fast"): compared([0, 10, 20, 30])}
    )
    assert changed_line({("rte", "fast"): compared([0])}) == ""


def test_a_run_is_fast_enough_below_its_limit_if_all_its_fits_were_timed():
    fast, slow = compared([0]), compared([0])._replace(seconds=181.0)
    (line,) = task_checks({("rte", "fast"): fast})
    assert "under 3 minutes: yes (90 s; 30 s of the CPU)" in line
    for found in (slow, fast._replace(resumed=True)):
        assert "**no**" in task_checks({("rte", "fast"): found})[0]


def test_report_of_stored_results_needs_no_data(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(comparison, "CELLS", tmp_path / "comparison_{}.jsonl")
    monkeypatch.setenv("ISOADAPT_SHARED", str(tmp_path / "missing"))
    blocks = block_store(tmp_path / "comparison_trials.jsonl")
    obtain_trials(Setting(FOLDS, 0.1), blocks, BLOCK, lambda *_: made_trial(0.001))
    assert comparison.main(["--report"]) == 0
    printed = capsys.readouterr().out
    assert f"| cross-validation | 10% | {BLOCK} of {BLOCK}" in printed
