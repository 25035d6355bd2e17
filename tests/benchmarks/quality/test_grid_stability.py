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
