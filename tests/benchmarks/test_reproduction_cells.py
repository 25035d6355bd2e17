"""Fine-tuning cells: each run gives all its figures, equal runs are one, judges tell right."""

import math

import numpy as np
import pytest

from benchmarks.reproduction import _training, paper000, paper002, paper004
from benchmarks.reproduction._cells import NOT_RUN, SUITES, Suite
from benchmarks.reproduction._output_embeddings import output_embeddings
from benchmarks.reproduction._training import (
    BASE,
    Condition,
    base_embeddings,
    finetuned,
    job_for,
    load_task,
)
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

    losses = []
    log = _fitting.LoggedTrainer.log

    def keep(self, logs, *rest):
        log(self, logs, *rest)
        losses.append(self.state.log_history[-1].get("task_loss"))

    monkeypatch.setattr(_fitting.LoggedTrainer, "log", keep)
    for condition in (BASE, paper000.SELECTED):
        losses.append("run")
        finetuned(job(condition))
    assert losses[1] == losses[losses.index("run", 1) + 1]


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
    assert figures["metric"] == figures["spearman"]
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
    figures = output_embeddings("spectrum control, polynomial")
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
    judged = judge(paper000, "table 3", "CoLA: selected bars lower centred anisotropy_1 (", found)
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


def test_the_best_lam_must_be_negative_and_gain():
    metrics = [0.5, 0.1, 0.3, 0.2, 0.1]
    negative = lam_records([0.1] * 5, metrics)
    positive = lam_records([0.1] * 5, metrics[::-1])
    assert judge(paper002, "table 1", "beats the base", negative).holds
    assert judge(paper002, "table 1", "beats the base", positive).holds is False


def test_layers_are_compared_by_halves():
    found = records("002", "base", "layers_isoscore_star", [[0.1, 0.1, 0.1, 0.1]] * 3)
    early = records("002", "I-STAR lam=1", "layers_isoscore_star", [[0.4, 0.4, 0.1, 0.2]] * 3)
    late = records("002", "I-STAR lam=1", "layers_isoscore_star", [[0.1, 0.2, 0.4, 0.4]] * 3)
    assert judge(paper002, "figure 6", "CoLA", found + early).holds
    assert judge(paper002, "figure 6", "CoLA", found + late).holds is False


def test_better_than_the_base_is_found_and_corrected_for_the_number():
    base = records("004", "base", "metric", [0.50, 0.51, 0.52])
    worse = records("004", "CosReg", "metric", [0.40, 0.41, 0.42])
    better = records("004", "flow", "metric", [0.60, 0.61, 0.62])
    text = "No method is significantly better"
    assert judge(paper004, "table 1", text, base + worse).holds
    assert judge(paper004, "table 1", text, base + worse + better).holds is False
    assert judge(paper004, "table 1", text, base[:1] + better[:1]) == NOT_RUN


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
