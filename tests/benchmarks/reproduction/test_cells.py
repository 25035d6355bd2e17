"""Fine-tuning cells: each run gives all its figures, adapters reuse the bases' embeddings."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks._commit import commit
from benchmarks.reproduction import (
    _signs,
    _training,
    isotropy_calibration,
    isotropy_layer,
    istar,
    persistent_entropy,
)
from benchmarks.reproduction._cells import Suite
from benchmarks.reproduction._choice import candidates, held_out_figures
from benchmarks.reproduction._output_embeddings import PENALTIES, output_embeddings
from benchmarks.reproduction._plan import known_cells, plan
from benchmarks.reproduction._posthoc import post_hoc_cell, row_named
from benchmarks.reproduction._records import run_cell
from benchmarks.reproduction._statistics import matthews, unpack
from benchmarks.reproduction._training import (
    BASE,
    Condition,
    Job,
    base_embeddings,
    load_task,
)
from benchmarks.reproduction._verdicts import WAITING
from isoadapt.datasets import load_table
from isoadapt.finetune._recipes import Recipe
from tests.tiny_models import WORDS, save_model

RECIPE = Recipe(epochs=2, lr=1e-3)
PAPERS = (persistent_entropy, istar, isotropy_layer, isotropy_calibration)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny BERT in place of MiniLM, with more dimensions than components are shown."""
    return save_model(tmp_path_factory.mktemp("model"), num_labels=2, hidden_size=24)


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch, model):
    """A small CoLA in place of the real one; a text is good if it has a cat."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "data" / "cola"
    folder.mkdir(parents=True)
    for split, n in (("train", 80), ("dev", 40)):
        texts = [" ".join(rng.choice(WORDS, rng.integers(3, 9))) for _ in range(n)]
        lines = [f"{text}\t{int('cat' in text)}" for text in texts]
        (folder / f"{split}.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
    monkeypatch.setenv("ISOADAPT_SHARED", str(tmp_path))
    monkeypatch.setattr(_training, "minilm_folder", lambda: model)


@pytest.fixture
def suite(tmp_path):
    return Suite("tiny", max_rows=48, recipe=RECIPE, cache=tmp_path / "cache")


@pytest.fixture
def job(suite):
    def job(condition=BASE, seed=0):
        return Job("cola", seed, RECIPE, suite, condition)

    return job


def is_finite(value):
    if isinstance(value, dict | str):
        return True
    return all(map(math.isfinite, value)) if isinstance(value, list) else math.isfinite(value)


CONDITIONS = (
    BASE,
    istar.UP,
    istar.istar(-1.0, layer=2),
    istar.cosreg(1.0),
    persistent_entropy.SELECTED,
    isotropy_calibration.POLYNOMIAL,
    isotropy_layer.ISOBN_TRAINED,
)


@pytest.mark.parametrize("condition", CONDITIONS, ids=lambda condition: condition.name)
def test_a_run_gives_every_figure_that_is_shown(condition, job):
    figures = job(condition).run()
    assert all(is_finite(value) for value in figures.values())
    shown = {"metric", "last_two_nn", "batch_anisotropy3_centered", "dev"}
    shown |= {"partition_isotropy", "last_mean_norm", "training_seconds"}
    assert shown <= figures.keys()
    on_tokens = condition == BASE or condition.where != "head_input"
    assert ("isoscore_star" in figures) == on_tokens
    assert len(figures.get("layers_isoscore_star", [0, 0])) == 2
    assert ("batch_penalty_end" in figures) == (condition.penalty is not None)
    assert (figures["shrinkage_seconds"] > 0) == (condition.penalty == "istar")
    json.dumps(figures, allow_nan=False)


def test_figures_are_those_of_the_embeddings_that_are_kept(job):
    from sklearn.metrics import matthews_corrcoef

    from isoadapt.metrics import anisotropy, isoscore, partition_isotropy

    figures, kept = job().run(), base_embeddings(job())
    assert figures["isoscore"] == pytest.approx(isoscore(kept.X_test))
    assert figures["partition_isotropy"] == pytest.approx(partition_isotropy(kept.X_test))
    for k in (1, 2, 3):
        expected = anisotropy(kept.X_test, k, center=True)
        assert figures[f"anisotropy{k}_centered"] == pytest.approx(expected, abs=1e-5)
    predicted = kept.head.predict(kept.X_test)
    assert figures["metric"] == pytest.approx(matthews_corrcoef(kept.y_test, predicted))
    assert kept.X_train.shape == (48, 24)
    labels, packed = unpack(figures["dev"])
    np.testing.assert_array_equal(labels, kept.y_test)
    np.testing.assert_array_equal(packed, predicted)


def test_both_passes_give_the_same_embeddings_in_the_order_of_the_texts(model, suite):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from benchmarks.reproduction._measuring import embed, read
    from isoadapt import TransformerEncoder

    texts = load_task("cola", suite).dev_texts
    live = (
        AutoModelForSequenceClassification.from_pretrained(model),
        AutoTokenizer.from_pretrained(model),
    )
    embeddings, logits = embed(*live, texts, 64)
    reading = read(*live, texts, 64)
    np.testing.assert_array_equal(embeddings, reading.embeddings)
    np.testing.assert_array_equal(logits, reading.outputs)
    np.testing.assert_allclose(embeddings, TransformerEncoder(live).transform(texts), atol=1e-5)


def test_layer_figures_are_the_library_s(model, suite):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from benchmarks.reproduction._measuring import read
    from isoadapt import TransformerEncoder
    from isoadapt.encoders import layer_report
    from isoadapt.metrics import isoscore, mean_cosine_similarity

    texts = load_task("cola", suite).dev_texts
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


def test_the_prior_has_no_more_rows_than_250_000_vectors_need(model, monkeypatch):
    from transformers import AutoTokenizer

    from benchmarks.reproduction import _measuring

    tokenizer = AutoTokenizer.from_pretrained(model)
    texts = ["the cat sat"] * 50
    (length,) = {len(ids) for ids in _measuring.tokenized(tokenizer, texts, 64)["input_ids"]}
    monkeypatch.setattr(_measuring, "PRIOR_VECTORS", 20 * 2 * length)
    rows = _measuring.prior_rows(tokenizer, texts, 64, 2, seed=0)
    assert len(rows) == len(set(rows)) == 20
    assert rows == _measuring.prior_rows(tokenizer, texts, 64, 2, seed=0)
    assert rows != _measuring.prior_rows(tokenizer, texts, 64, 2, seed=1)
    assert sorted(_measuring.prior_rows(tokenizer, texts[:9], 64, 2, seed=0)) == list(range(9))


def test_the_seed_decides(job):
    first, again, other = (
        {name: value for name, value in job(seed=seed).run().items() if "seconds" not in name}
        for seed in (0, 0, 1)
    )
    assert first == again
    assert first["cross_entropy"] != other["cross_entropy"]


def test_penalties_start_from_the_same_head_and_order(monkeypatch, job):
    from benchmarks.reproduction import _fitting

    runs = []
    fine_tune = _fitting.fine_tune

    def keep(*given, **named):
        runs.append(fine_tune(*given, **named))
        return runs[-1]

    monkeypatch.setattr(_training, "SPARSE", 1)
    monkeypatch.setattr(_fitting, "fine_tune", keep)
    for condition in (
        BASE,
        *(replace(item, lam=0.0) for item in (persistent_entropy.SELECTED, istar.UP)),
    ):
        job(condition).run()
    base, *others = (
        [entry["task_loss"] for entry in run.history if "task_loss" in entry] for run in runs
    )
    assert len(set(base)) == 4
    assert all(losses == base for losses in others)


def test_adapters_reuse_the_embeddings_of_their_base(monkeypatch, job):
    runs = []
    run = _training._run
    monkeypatch.setattr(_training, "_run", lambda given: runs.append(given) or run(given))
    base = job().run()
    cell = post_hoc_cell(row_named(isotropy_layer.BASE), job())
    assert runs == [job()]
    found = run_cell(cell)["figures"]
    assert runs == [job()]
    for name in ("metric", "isoscore", "ev1", "dev"):
        assert found[name] == pytest.approx(base[name]) if name != "dev" else base[name]
    assert found["base_commit"] == commit()
    job().file.unlink()
    assert run_cell(cell)["figures"]["metric"] == found["metric"]
    assert len(runs) == 2  # run again where the file is gone


def test_a_candidate_is_trained_on_four_fifths_and_judged_on_the_rest(monkeypatch, suite, model):
    from benchmarks.reproduction import _choice, _fitting

    monkeypatch.setattr(_choice, "minilm_folder", lambda: model)
    asked = []
    fine_tune = _fitting.fine_tune

    def keep(path, texts, labels, recipe, seed, *given, **named):
        asked.append((list(texts), labels.mean(), recipe, seed))
        return fine_tune(path, texts, labels, recipe, seed, *given, **named)

    monkeypatch.setattr(_fitting, "fine_tune", keep)
    recipe = replace(candidates("cola")[0], epochs=1)
    figures = held_out_figures(Job("cola", 0, recipe, suite))
    labels, predicted = unpack(figures["dev"])
    (texts, share, used, seed), data = asked[0], load_task("cola", suite)
    assert (len(texts), len(labels), used, seed) == (38, 10, recipe, 0)
    assert set(texts) <= set(data.train_texts)
    assert share == pytest.approx(labels.mean(), abs=0.06)
    pairs = zip(labels, predicted, strict=True)
    counts = np.zeros((4, 1))
    for label, guess in pairs:
        counts[{(1, 1): 0, (0, 1): 1, (1, 0): 2, (0, 0): 3}[int(label), int(guess)]] += 1
    assert figures["metric"] == pytest.approx(matthews(counts).item())


def test_rows_are_sampled_by_class_and_always_the_same(suite):
    few, whole = suite._replace(max_rows=40), suite._replace(max_rows=None)
    task, again, everything = (load_task("cola", item) for item in (few, few, whole))
    assert task.train_texts == again.train_texts
    assert len(task.train_texts) == 40
    assert len(everything.train_texts) == 80
    assert task.train_labels.mean() == pytest.approx(everything.train_labels.mean(), abs=0.02)
    assert len(task.dev_texts) == 40


def test_settings_hold_the_penalty_s_own_defaults(job):
    assert job(istar.DOWN).settings()["options"] == {
        "zeta": 0.2,
        "reduction": "linear",
        "bias_corrected": False,
    }


def test_settings_tell_runs_apart(job):
    conditions = [*CONDITIONS, istar.istar(1.0, 0.8), istar.istar(3.0)]
    names = {job(condition).file.name for condition in conditions}
    assert len(names) == len(conditions)
    renamed = Condition("another name", "cosreg", {}, 1.0, "last")
    assert job(renamed).settings() == job(istar.cosreg(1.0)).settings()


def test_output_embeddings_are_penalised():
    figures = output_embeddings(PENALTIES[1])
    assert figures["after"] < 0.7 * figures["before"]
    assert figures["after_without"] > figures["after"]


@pytest.mark.slow
def test_one_seed_of_everything_waits_but_is_shown(suite):
    cells = [cell for cell in known_cells(plan(suite), [], suite) if cell.kind != "points"]
    found = [run_cell(cell) for cell in cells]
    assert not [record["error"] for record in found if "error" in record]
    adapters = [record["figures"] for record in found if record["kind"] == "post-hoc"]
    assert {len(figures["explained_variance"]) for figures in adapters} == {20}
    shown = {"metric", "corrected", "partition_isotropy", "seconds", "dev"}
    assert all(shown <= figures.keys() for figures in adapters)
    text = "\n".join(paper.tables(found) for paper in PAPERS)
    assert all(f"| {cell.name} | 1 |" in text for cell in cells)
    assert "nan" not in text
    outcomes = {c.judge(found).outcome for paper in PAPERS for c in paper.claims() if c.task}
    assert outcomes == {WAITING}


def test_another_encoder_and_the_hub_are_other_runs(monkeypatch, model, tmp_path, job, suite):
    asked = []

    def load_hub(path, split="train"):
        asked.append((path, split))
        return load_table(tmp_path / "data" / "cola" / "train.tsv")

    monkeypatch.setattr(_training, "load_hub", load_hub)
    monkeypatch.setattr(_training, "minilm_folder", lambda: pytest.fail("another was asked for"))
    other = suite._replace(model=str(model), from_hub=True)
    elsewhere = Job("sst2_sentence", 0, RECIPE, other)
    assert math.isfinite(elsewhere.run()["cross_entropy"])
    assert asked == [("glue/sst2", "train"), ("glue/sst2", "validation")]
    assert elsewhere.settings() | job().settings() == elsewhere.settings()
    assert elsewhere.settings() != job().settings()


def test_as_released_the_padding_counts_and_nothing_is_clipped(suite, monkeypatch):
    from benchmarks.reproduction import _fitting
    from benchmarks.reproduction._measuring import tokenized

    kept = []
    make = _fitting.LoggedTrainer.train
    monkeypatch.setattr(
        _fitting.LoggedTrainer, "train", lambda self: (make(self), kept.append(self))[0]
    )
    task = load_task("cola", suite)
    recipe = replace(_signs.AS_RELEASED, epochs=1)
    points = []
    for condition in (_signs.released("cola"), replace(_signs.released("cola"), as_released=False)):
        Job("cola", 5, recipe, suite, condition).run()
        log = kept[-1].state.log_history
        points.append(next(entry for entry in log if "shrinkage_points" in entry))
    released, other = kept
    assert (released.args.max_grad_norm, other.args.max_grad_norm) == (0.0, 1.0)
    lengths = [
        len(ids) for ids in tokenized(released.processing_class, task.train_texts, 128)["input_ids"]
    ]
    n_layers = released.model.config.num_hidden_layers
    assert points[1]["shrinkage_points"] == n_layers * sum(lengths)
    assert points[0]["shrinkage_points"] > n_layers * sum(lengths)
    rates = [entry["learning_rate"] for entry in released.state.log_history if "loss" in entry]
    assert set(rates) == {recipe.lr}
