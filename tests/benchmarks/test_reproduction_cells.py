"""Fine-tuning cells: each run gives all its figures, equal runs are one, judges tell right."""

import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.reproduction import (
    _output_embeddings,
    _training,
    paper000,
    paper002,
    paper002_scores,
    paper003,
    paper004,
)
from benchmarks.reproduction._cells import NOT_RUN, SUITES, Suite
from benchmarks.reproduction._output_embeddings import PENALTIES, output_embeddings
from benchmarks.reproduction._training import (
    BASE,
    Condition,
    base_embeddings,
    finetuned,
    job_for,
    load_task,
)
from isoadapt import FlowAdapter
from isoadapt.datasets import load_table
from isoadapt.finetune._recipes import RECIPES
from tests.tiny_models import WORDS, save_model

TINY = Suite("cpu", seeds=1, max_rows=48, tasks=("cola",), epochs=2)
PAPERS = (paper000, paper002, paper004)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny BERT in place of MiniLM."""
    return save_model(tmp_path_factory.mktemp("model"), num_labels=2)


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch, model):
    """A small CoLA, STS-B and cache in place of the real ones; a text is good if it has a cat."""
    rng = np.random.default_rng(0)
    for task in ("cola", "stsb"):
        folder = tmp_path / "data" / task
        folder.mkdir(parents=True)
        for split, n in (("train", 80), ("dev", 40)):
            texts = [" ".join(rng.choice(WORDS, rng.integers(3, 9))) for _ in range(n)]
            labels = ["cat" in text for text in texts]
            lines = [f"{text}\t{int(label)}" for text, label in zip(texts, labels, strict=True)]
            header = "sentence\tlabel"
            if task == "stsb":
                lines = [f"{text}\tthe mat\t{len(text) / 9:.1f}" for text in texts]
                header = "sentence1\tsentence2\tlabel"
            (folder / f"{split}.tsv").write_text("\n".join([header, *lines]) + "\n")
    monkeypatch.setenv("ISOADAPT_SHARED", str(tmp_path))
    monkeypatch.setattr(_training, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(_training, "minilm_folder", lambda: model)


def job(condition=BASE, task="cola", seed=0):
    return job_for("002", task, seed, TINY, condition)


def is_finite(value):
    return all(map(math.isfinite, value)) if isinstance(value, list) else math.isfinite(value)


CONDITIONS = (
    BASE,
    paper002.UP,
    paper002.istar(-1.0, layer=2),
    paper002.cosreg(1.0),
    paper000.SELECTED,
    paper004.POLYNOMIAL,
)


@pytest.mark.parametrize("condition", CONDITIONS, ids=lambda condition: condition.name)
def test_a_run_gives_every_figure_that_is_shown(condition):
    figures = finetuned(job(condition))
    assert all(is_finite(value) for value in figures.values())
    shown = {"metric", "isoscore_star", "last_two_nn", "batch_anisotropy3_centered"}
    shown |= {"partition_isotropy", "last_mean_norm", "training_seconds"}
    assert shown <= figures.keys()
    assert len(figures["layers_isoscore_star"]) == 2
    assert ("batch_penalty_end" in figures) == (condition.penalty is not None)
    shrinks = condition.penalty == "istar"
    assert (figures["shrinkage_seconds"] > 0) == shrinks


def test_figures_are_those_of_the_embeddings_that_are_kept(tmp_path):
    from sklearn.metrics import matthews_corrcoef

    from isoadapt.metrics import anisotropy, isoscore, partition_isotropy

    figures, kept = finetuned(job()), base_embeddings("cola", 0, TINY, "002")
    assert figures["isoscore"] == pytest.approx(isoscore(kept.X_test))
    assert figures["partition_isotropy"] == pytest.approx(partition_isotropy(kept.X_test))
    for k in (1, 2, 3):
        expected = anisotropy(kept.X_test, k, center=True)
        assert figures[f"anisotropy{k}_centered"] == pytest.approx(expected, abs=1e-5)
    predicted = kept.head.predict(kept.X_test)
    assert figures["metric"] == pytest.approx(matthews_corrcoef(kept.y_test, predicted))
    assert kept.X_train.shape == (48, 16)


def test_layer_figures_are_the_library_s(model):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from benchmarks.reproduction._measuring import read
    from isoadapt import TransformerEncoder
    from isoadapt.encoders import layer_report
    from isoadapt.metrics import isoscore, mean_cosine_similarity

    texts = load_task("cola", None).dev_texts
    live = (
        AutoModelForSequenceClassification.from_pretrained(model),
        AutoTokenizer.from_pretrained(model),
    )
    found = read(*live, texts, 64)
    for ours, theirs, cosine in zip(
        found.layers,
        layer_report(TransformerEncoder(live), texts)[1:],
        found.mean_cosines(),
        strict=True,
    ):
        assert ours.count == theirs.n_tokens
        assert isoscore(ours) == pytest.approx(theirs.isoscore, rel=1e-5)
        assert cosine == pytest.approx(theirs.mean_cosine, rel=1e-4)
    first = TransformerEncoder(live, pooling="cls", layer=2).transform(texts)
    np.testing.assert_allclose(found.first_tokens[1], first, atol=1e-5)
    assert mean_cosine_similarity(first) < 1


def test_the_seed_decides(tmp_path):
    runs = [
        finetuned(job(seed=seed), folder=tmp_path / name)
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    ]
    first, again, other = (
        {name: value for name, value in figures.items() if "seconds" not in name}
        for figures in runs
    )
    assert first == again
    assert first["cross_entropy"] != other["cross_entropy"]


def test_penalties_start_from_the_same_head_and_order(monkeypatch):
    from benchmarks.reproduction import _fitting

    runs = []
    fit = _fitting.fit

    def keep(*given, **named):
        runs.append(fit(*given, **named))
        return runs[-1]

    monkeypatch.setattr(_training, "SPARSE", 1)
    monkeypatch.setattr(_fitting, "fit", keep)
    for condition in (BASE, *(replace(item, lam=0.0) for item in (paper000.SELECTED, paper002.UP))):
        finetuned(job(condition))
    base, *others = (
        [entry["task_loss"] for entry in run.history if "task_loss" in entry] for run in runs
    )
    assert len(set(base)) == 4
    assert all(losses == base for losses in others)


def test_a_run_that_papers_share_is_run_once(monkeypatch):
    runs = []
    run = _training._run
    monkeypatch.setattr(_training, "_run", lambda *given: runs.append(given[0]) or run(*given))
    bases = [cell for paper in PAPERS for cell in paper.cells(TINY) if cell.name == BASE.name]
    figures = [cell.run() for cell in bases]
    base_embeddings("cola", 0, TINY)
    assert [cell.paper for cell in bases] == ["000", "002", "004"]
    assert figures[0] == figures[1] == figures[2]
    assert len(runs) == 1


def test_the_flow_is_judged_on_the_base_run():
    figures = paper004.flow_figures("cola", 0, TINY)
    assert all(is_finite(value) for value in figures.values())
    assert figures["training_seconds"] > finetuned(job())["training_seconds"]


def test_a_regression_has_correlations():
    figures = finetuned(job(task="stsb"))
    assert figures["metric"] == figures["pearson"]
    assert base_embeddings("stsb", 0, TINY).head.classes_ is None


def test_rows_are_sampled_by_class_and_always_the_same():
    task, again, whole = (load_task("cola", rows) for rows in (40, 40, None))
    assert task.train_texts == again.train_texts
    assert len(task.train_texts) == 40
    assert len(whole.train_texts) == 80
    assert task.train_labels.mean() == pytest.approx(whole.train_labels.mean(), abs=0.02)
    assert len(task.dev_texts) == 40


def test_whole_tasks_are_trained_as_the_papers_say():
    gpu = SUITES["gpu"]
    assert job_for("000", "mrpc", 0, gpu).recipe.lr == 8e-5
    assert job_for("004", "mrpc", 0, gpu).recipe.epochs == 5
    assert job_for("002", "cola", 0, gpu).recipe == RECIPES["002"]
    assert job_for("002", "cola", 0, gpu).rows is None


def test_keys_change_with_what_is_measured(monkeypatch):
    suite = SUITES["cpu"]
    papers = (*PAPERS, paper002_scores, paper003)

    def keys():
        return [cell.key for paper in papers for cell in paper.cells(suite)]

    before = keys()
    for module in (_training, paper002_scores, _output_embeddings):
        monkeypatch.setattr(module, "FIGURES", -1)
    assert not set(before) & set(keys())


@pytest.mark.parametrize(
    ("module", "name", "value", "cell"),
    [
        (_output_embeddings, "STEPS", 1, "CosReg/tiny T5"),
        (paper002_scores, "LARGE", (2.0,), paper002_scores.NAME),
        (paper004, "FlowAdapter", lambda: FlowAdapter(n_blocks=1), "flow/cola"),
    ],
)
def test_keys_change_with_constants(monkeypatch, module, name, value, cell):
    def key():
        cells = [*paper004.cells(SUITES["cpu"]), *paper002_scores.cells(SUITES["cpu"])]
        return next(item.key for item in cells if cell in item.key)

    before = key()
    monkeypatch.setattr(module, name, value)
    assert key() != before


def test_settings_hold_the_penalty_s_own_defaults():
    assert job(paper002.DOWN).settings()["options"] == {
        "zeta": 0.2,
        "reduction": "linear",
        "bias_corrected": False,
    }


def test_settings_tell_runs_apart():
    conditions = [BASE, *CONDITIONS[1:], paper002.istar(1.0, 0.8), paper002.istar(3.0)]
    digests = {job(condition).file(_training.CACHE, "").name for condition in conditions}
    assert len(digests) == len(conditions)
    renamed = Condition("another name", "cosreg", {}, 1.0, "last")
    assert job(renamed).settings() == job(paper002.cosreg(1.0)).settings()


@pytest.mark.parametrize("suite", SUITES.values(), ids=SUITES)
def test_cells_are_all_different(suite):
    cells = [cell for paper in PAPERS for cell in paper.cells(suite)]
    assert len({cell.key for cell in cells}) == len(cells)
    first = min(cells, key=lambda cell: cell.decides)
    assert (first.paper, first.name, first.task) == ("002", "base", "cola")


def test_output_embeddings_are_penalised():
    figures = output_embeddings(PENALTIES[1])
    assert figures["after"] < 0.7 * figures["before"]
    assert figures["after_without"] > figures["after"]


# --- judges --------------------------------------------------------------------------------------


def records(paper, name, figure, values, task="cola"):
    return [
        {"paper": paper, "name": name, "task": task, "seed": seed, "figures": {figure: value}}
        for seed, value in enumerate(values)
    ]


def judge(paper, where, text, found):
    (claim,) = [c for c in paper.claims() if c.where == where and text in c.claim]
    return claim.judge(found)


@pytest.mark.parametrize(
    ("lowered", "holds"), [([0.4, 0.5, 0.45], True), ([0.6, 0.65, 0.6], False)]
)
def test_selected_bars_must_cut_by_15_percent(lowered, holds):
    figure = "anisotropy1_centered"
    found = records("000", "base", figure, [0.7, 0.68, 0.69])
    found += records("000", "selected bars", figure, lowered)
    judged = judge(paper000, "table 3", "by 15 % or more (whole", found)
    assert judged.holds is holds
    assert judged.n_seeds == 3


@pytest.mark.parametrize(("raised", "holds"), [([0.3, 0.3, 0.3], True), ([0.2, 0.2, 0.2], False)])
def test_isoscore_must_rise_by_half(raised, holds):
    found = records("002", "base", "isoscore_star", [0.15, 0.15, 0.15])
    found += records("002", "I-STAR lam=1", "isoscore_star", raised)
    assert judge(paper002, "figure 3", "CoLA: lam=1 raises", found).holds is holds


@pytest.mark.parametrize(("after", "holds"), [(0.05, True), (0.2, False)])
def test_cosreg_must_leave_isoscore(after, holds):
    found = records("002", "base", "last_isoscore_star", [0.04] * 3)
    found += records("002", "CosReg lam=1", "last_isoscore_star", [after] * 3)
    assert judge(paper002, "figure 4", "CoLA: CosReg leaves", found).holds is holds


def lam_records(scores, metrics):
    names = ["base" if lam == 0 else f"I-STAR lam={lam:g}" for lam in (-5, -1, 0, 1, 5)]
    found = []
    for name, score, metric in zip(names, scores, metrics, strict=True):
        found += [
            {
                "paper": "002",
                "name": name,
                "task": "cola",
                "seed": seed,
                "figures": {"isoscore_star": score, "metric": metric + seed / 1000},
            }
            for seed in range(3)
        ]
    return found


def test_isoscore_follows_lam_and_the_metric_falls():
    scores = [0.01, 0.02, 0.1, 0.3, 0.4]
    inverse = lam_records(scores, [0.5, 0.4, 0.3, 0.2, 0.1])
    assert judge(paper002, "figure 3", "IsoScore* rises with lam", inverse).holds
    assert judge(paper002, "figure 3", "the metric falls", inverse).holds
    mixed = lam_records(scores, [0.1, 0.4, 0.3, 0.2, 0.5])
    assert judge(paper002, "figure 3", "the metric falls", mixed).holds is False
    assert judge(paper002, "figure 3", "the metric falls", inverse[:6]).holds is None


def test_a_lam_without_figures_is_left_out_of_the_ranks():
    found = lam_records([None, 0.02, 0.1, 0.3, 0.4], [0.5, 0.4, 0.3, 0.2, 0.1])
    judged = judge(paper002, "figure 3", "the metric falls", found)
    assert judged.holds is None
    assert "over lam = -1, 0, 1, 5 (1 undefined)" in judged.reason


def test_a_trend_that_is_there_without_being_significant_is_not_shown():
    found = lam_records([0.01, 0.02, 0.1, 0.3, 0.4], [0.3, 0.5, 0.2, 0.4, 0.1])
    assert judge(paper002, "figure 3", "the metric falls", found).holds is None


def test_the_best_lam_must_be_negative_and_gain():
    metrics = [0.5, 0.1, 0.3, 0.2, 0.1]
    negative = lam_records([0.1] * 5, metrics)
    positive = lam_records([0.1] * 5, metrics[::-1])
    judged = judge(paper002, "table 1", "beats the base", negative)
    assert judged.holds
    assert "best lam=-5, chosen" in judged.reason
    assert judge(paper002, "table 1", "beats the base", positive).holds is False
    cosreg = records("002", "CosReg lam=1", "metric", [0.1, 0.101, 0.102])
    assert judge(paper002, "table 1", "beats CosReg", positive + cosreg).holds


def test_the_best_lam_waits_for_those_to_come():
    found = lam_records([0.01, 0.02, 0.1, 0.3, 0.4], [0.5, 0.4, 0.3, 0.2, 0.1])
    found.append({"paper": "002", "name": "I-STAR lam=3", "task": "cola", "seed": 0})
    judged = judge(paper002, "table 1", "beats the base", found)
    assert judged.holds is None
    assert judged.reason.startswith("1 of 5 lam have yet to run; best lam=-5")
    assert judge(paper002, "figure 3", "the metric falls", found).holds


def test_the_choice_of_lam_and_of_zeta_is_paid_for():
    base = records("002", "base", "metric", [0.30, 0.31, 0.32])
    gain = [0.31, 0.325, 0.338]  # p = 0.014 by itself
    tried = records("002", "I-STAR lam=-1", "metric", gain)
    assert judge(paper002, "table 1", "beats the base", base + tried).holds
    for lam in (-5, -3, 1, 3, 5):
        tried += records("002", f"I-STAR lam={lam}", "metric", [0.2, 0.2, 0.2])
    judged = judge(paper002, "table 1", "beats the base", base + tried)
    assert judged.holds is None
    assert "times 6 for the choice" in judged.reason
    zero = records("002", "I-STAR lam=-1 zeta=0", "metric", [0.30, 0.31, 0.32])
    other = records("002", "I-STAR lam=-1 zeta=0.8", "metric", [0.2, None, 0.2])
    judged = judge(paper002, "figure 7", "without shrinkage", zero + tried + other)
    assert "best zeta=0.2" in judged.reason
    assert "times 2 for the choice" in judged.reason
    assert judged.holds


def test_layers_are_compared_by_halves():
    found = records("002", "base", "layers_isoscore_star", [[0.1, 0.1, 0.1, 0.1]] * 3)
    early = records("002", "I-STAR lam=1", "layers_isoscore_star", [[0.4, 0.4, 0.1, 0.2]] * 3)
    late = records("002", "I-STAR lam=1", "layers_isoscore_star", [[0.1, 0.2, 0.4, 0.4]] * 3)
    assert judge(paper002, "figure 6", "CoLA", found + early).holds
    assert judge(paper002, "figure 6", "CoLA", found + late).holds is False


def test_a_layer_without_a_figure_does_not_count_as_moved():
    found = records("002", "base", "layers_isoscore_star", [[0.1, 0.1, 0.1, 0.1]] * 3)
    layers = [[0.4, 0.4, 0.1, 0.2], [0.4, 0.4, 0.1, 0.2], [0.4, 0.4, None, 0.2]]
    found += records("002", "I-STAR lam=1", "layers_isoscore_star", layers)
    judged = judge(paper002, "figure 6", "CoLA", found)
    assert judged.holds is False
    assert judged.reason == "in 2 of 3 seeds, 1 undefined"
    assert "nan" not in judged.ours


@pytest.mark.parametrize(
    ("first", "holds"), [([0.6, 0.61, 0.62], False), ([0.6, 0.61, 0.41], True)]
)
def test_one_layer_better_in_every_seed_is_enough(first, holds):
    found = records("002", "I-STAR lam=-1", "metric", [0.4, 0.41, 0.42])
    for layer, values in ((1, first), (3, [0.39, 0.40, 0.41]), (6, [0.3, 0.3, 0.3])):
        found += records("002", f"I-STAR lam=-1 layer {layer}", "metric", values)
    assert judge(paper002, "figure 8", "no layer alone", found).holds is holds


def test_cosreg_must_leave_isoscore_in_every_seed():
    found = records("002", "base", "last_isoscore_star", [0.04] * 3)
    found += records("002", "CosReg lam=1", "last_isoscore_star", [0.004, 0.004, 0.11])
    judged = judge(paper002, "figure 4", "CoLA: CosReg leaves", found)
    assert judged.holds is False
    assert judged.reason == "in 0 of 3 seeds, largest change 10"
    found = records("004", "base", "partition_isotropy", [0.9] * 3)
    found += records("004", "CosReg", "partition_isotropy", [0.6, 0.99, 1.11])
    assert judge(paper004, "table 4", "CosReg leaves I1", found).holds is False


@pytest.mark.parametrize(
    ("base", "after", "holds"),
    [
        ([0.5, 0.51, 0.52], [0.499, 0.509, 0.519], False),
        ([0.5, 0.51, 0.52], [0.0, 0.0, 0.1], True),
        ([0.0, 0.0, 0.0], [0.0, 0.0, 0.0], None),
    ],
)
def test_ruin_is_at_least_half_of_something(base, after, holds):
    found = records("004", "base", "metric", base)
    found += records("004", "spectrum control, polynomial", "metric", after)
    assert judge(paper004, "table 1", "polynomial ruins", found).holds is holds


def test_a_collapsed_seed_has_not_raised_i1():
    found = records("004", "base", "partition_isotropy", [0.9] * 5)
    raised = [0.95, 0.95, 0.95, None, None]
    found += records("004", "spectrum control, polynomial", "partition_isotropy", raised)
    judged = judge(paper004, "table 4", "CoLA: spectrum control, polynomial raises I1", found)
    assert (judged.holds, judged.n_seeds) == (False, 5)
    assert judged.reason.startswith("in 3 of 5 seeds, 2 undefined")


def test_none_better_needs_every_comparison_of_the_suite():
    text = "No method is significantly better"
    base = records("004", "base", "metric", [0.50, 0.51, 0.52])
    worse = records("004", "CosReg", "metric", [0.40, 0.41, 0.42])
    better = records("004", "CosReg", "metric", [0.60, 0.61, 0.62])
    waiting = {"paper": "004", "name": "flow", "task": "cola", "seed": 0}
    judged = judge(paper004, "table 1", text, [*base, *worse, waiting])
    assert judged.holds is None
    assert judged.reason == "1 of 2 comparisons run"
    assert judge(paper004, "table 1", text, [*base, *better, waiting]).holds is False


def test_better_than_the_base_is_found_and_corrected_for_the_number():
    base = records("004", "base", "metric", [0.50, 0.51, 0.52])
    worse = records("004", "CosReg", "metric", [0.40, 0.41, 0.42])
    better = records("004", "flow", "metric", [0.60, 0.61, 0.62])
    text = "No method is significantly better"
    assert judge(paper004, "table 1", text, base + worse).holds
    assert judge(paper004, "table 1", text, base + worse + better).holds is False
    one = judge(paper004, "table 1", text, base[:1] + better[:1])
    assert (one.holds, one.n_seeds, one.reason) == (None, 1, "too few seeds for a test")
    assert judge(paper004, "table 1", text, base) == NOT_RUN


def test_holm_multiplies_by_what_is_left_and_stays_in_order():
    assert paper004.holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert paper004.holm([0.9, 0.8]) == [1.0, 1.0]


@pytest.mark.parametrize("paper", PAPERS)
def test_without_records_nothing_is_judged_and_nothing_shown(paper):
    judged = [claim.judge([]) for claim in paper.claims()]
    assert all(found.holds is None and found.n_seeds == 0 for found in judged)
    assert paper.tables([]) == ""


@pytest.mark.parametrize("paper", PAPERS)
def test_one_seed_of_a_run_can_be_judged_and_shown(paper):
    cells = [cell for cell in paper.cells(TINY) if cell.name in (BASE.name, *shown_names(paper))]
    found = [
        {
            "paper": cell.paper,
            "name": cell.name,
            "task": cell.task,
            "seed": cell.seed,
            "figures": cell.run(),
        }
        for cell in cells
    ]
    judged = [claim.judge(found) for claim in paper.claims()]
    assert any(item.n_seeds == 1 for item in judged)
    text = paper.tables(found)
    assert all(cell.name in text for cell in cells)
    assert "nan" not in text


def shown_names(paper):
    return {
        paper000: [paper000.SELECTED.name],
        paper002: [paper002.UP.name, paper002.cosreg(1.0).name],
        paper004: [paper004.COSREG.name, paper004.FLOW],
    }[paper]


def test_another_encoder_and_the_hub_are_other_runs(monkeypatch, model, tmp_path):
    asked = []

    def load_hub(path, split="train"):
        asked.append((path, split))
        return load_table(tmp_path / "data" / "cola" / "train.tsv")

    monkeypatch.setattr(_training, "load_hub", load_hub)
    monkeypatch.setattr(_training, "minilm_folder", lambda: pytest.fail("another was asked for"))
    elsewhere = job_for("002", "cola", 0, TINY._replace(model=str(model), from_hub=True))
    assert math.isfinite(finetuned(elsewhere)["cross_entropy"])
    assert asked == [("glue/cola", "train"), ("glue/cola", "validation")]
    assert elsewhere.settings() | job().settings() == elsewhere.settings()
    assert elsewhere.settings() != job().settings()


@pytest.mark.parametrize(("gpu", "holds"), [(None, None), ("a GPU", True)])
def test_time_is_judged_on_a_gpu_only(gpu, holds):
    found = [
        {**record, "versions": {"cuda": gpu}}
        for name, seconds in (("base", [1.0, 1.1, 0.9]), ("flow", [4.0, 4.2, 4.4]))
        for record in records("004", name, "training_seconds", seconds)
    ]
    judged = next(c for c in paper004.claims() if "multiple of the time" in c.claim).judge(found)
    assert judged.holds is holds
    assert judged.n_seeds == 3
    assert ("cannot tell" in judged.reason) == (gpu is None)
