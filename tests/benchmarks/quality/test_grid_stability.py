import numpy as np

from benchmarks._data import narrow_cone
from benchmarks.quality import grid_stability as grid


def test_rules_choose_from_the_scores_of_a_search():
    results = {
        "mean_test_accuracy": [0.80, 0.79, 0.70],
        "std_test_accuracy": [0.03, 0.0, 0.0],
        "mean_test_isoscore": [0.1, 0.4, 0.9],
        **{f"split{i}_test_accuracy": [0.8, 0.79, 0.7] for i in range(5)},
    }
    assert grid.most_accurate(results) == 0
    assert grid.one_standard_error(results) == 1
    assert grid.RULES["BestAboveFloor, 0.3"](grid._arrays(results)) == 1


def test_tables_have_all_tasks_beside_each_other(monkeypatch):
    data = narrow_cone(150, 6, seed=0)
    monkeypatch.setattr(grid, "GRID", {"lam": [0.0, 1.0], "zeta": [0.2]})
    monkeypatch.setattr(grid, "CANDIDATES", list(grid.ParameterGrid(grid.GRID)))
    arguments = data.head, data.X_train, data.y_train
    search, exact = grid.search(*arguments, 0), grid.exact(*arguments, 0)
    assert np.shape(search["mean_test_accuracy"]) == (2,)
    assert 0.5 < search["head_alone"] <= 1
    records = [
        {"task": task, "kind": kind, "seed": seed, "setting": "versions", **found}
        for task in ("cola", "mrpc")
        for kind, found in (("search", search), ("exact", exact))
        for seed in range(2)
    ]
    text = grid.text(records)
    accuracy = f"{search['mean_test_accuracy'][0]:.4f} ± 0.0000"
    line = next(line for line in text.splitlines() if line.startswith("| lam=0, zeta=0.2"))
    assert line.count(accuracy) == 2
    assert "| rules, mrpc | chosen lam/zeta |" in text
    assert " × 2 |  |  |  |" in text
