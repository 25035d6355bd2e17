import json

import numpy as np
import pytest

from benchmarks.quality import _dual_measures as measure, _layer_vectors, dual_use
from benchmarks.quality._checkpoints import RECIPES, checkpoint_folder
from benchmarks.quality._dual_cells import (
    CHECKPOINTS,
    COLUMNS,
    HUBNESS,
    SEARCH,
    SIGN_BITS,
    STSB,
    Cell,
    Key,
    cell_line,
    cell_store,
)
from benchmarks.quality._dual_claims import check_lines, comparison_lines
from benchmarks.quality._dual_rows import BEST_LAYER, OWN, RAW, ROWS
from benchmarks.quality._dual_texts import (
    entailment_search,
    evaluated_texts,
    paraphrase_search,
    target_texts,
)
from benchmarks.quality._layer_vectors import HEAD_INPUT, cached_vectors, layer_name, layer_vectors
from isoadapt import TransformerEncoder, load_checkpoint
from isoadapt.datasets import load_table
from isoadapt.metrics import hubness, retrieval_report, similarity_correlation


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_figures_equal_the_public_metrics(rng):
    A, B, scores = rng.normal(size=(60, 5)), rng.normal(size=(60, 5)), rng.random(60)
    assert measure.similarity(A, B, scores).value == similarity_correlation(A, B, scores)
    relevant = rng.integers(40, size=60)
    assert measure.reciprocal_rank(A, B[:40], relevant).value == pytest.approx(
        retrieval_report(A, B[:40], relevant, k=10).mrr
    )
    assert measure.first_hit(A, B[:40], relevant).value == pytest.approx(
        retrieval_report(A, B[:40], relevant, k=1).recall
    )
    assert measure.hubness(A).value == pytest.approx(hubness(A).skewness)


def test_error_of_a_mean_is_that_of_the_mean_of_its_rows(rng):
    y = rng.integers(2, size=900)
    figure = measure.agreement(y, np.ones_like(y), matthews=False)
    assert figure.value == pytest.approx(y.mean())
    assert figure.error == pytest.approx(y.std() / 30, rel=0.25)


def test_bits_depend_on_thresholds_alone(rng):
    A, B, scores = rng.normal(size=(80, 6)), rng.normal(size=(80, 6)), rng.random(80)
    thresholds = rng.normal(size=6)
    plain = measure.one_bit(A, B, scores, thresholds)
    scaled = measure.one_bit(3 * A, 3 * B, scores, 3 * thresholds)
    moved = measure.one_bit(A - thresholds, B - thresholds, scores, 0.0)
    assert plain == scaled == moved


def test_separate_groups_are_found(rng):
    groups = np.repeat([0, 1], 30)
    X = np.eye(8)[groups] + 0.01 * rng.normal(size=(60, 8))
    assert measure.same_class(X, groups).value == 1
    assert measure.outliers(X[:20], X[30:50], X[20:30]).value == 1
    assert measure.outliers(X[30:50], X[:20], X[20:30]).value == 0


TEXTS = ["One text.", "Another text, which is longer.", "A third one"]


def test_layers_equal_those_of_the_encoder(checkpoint):
    vectors = layer_vectors(checkpoint, TEXTS)
    encoder, _ = load_checkpoint(checkpoint)
    np.testing.assert_allclose(vectors[HEAD_INPUT], encoder.transform(TEXTS), atol=1e-6)
    for layer in (0, 1):
        mean = TransformerEncoder(checkpoint, pooling="mean", layer=layer).transform(TEXTS)
        np.testing.assert_allclose(vectors[layer_name(layer)], mean, atol=1e-6)
    pairs = [(text, TEXTS[0]) for text in TEXTS]
    np.testing.assert_allclose(
        layer_vectors(checkpoint, pairs)[HEAD_INPUT], encoder.transform(pairs), atol=1e-6
    )


def test_texts_are_encoded_once(checkpoint, monkeypatch, tmp_path):
    monkeypatch.setattr(_layer_vectors, "FOLDER", tmp_path)
    expected = layer_vectors(checkpoint, TEXTS)[HEAD_INPUT]
    first = cached_vectors(checkpoint, "tiny", TEXTS, HEAD_INPUT)
    np.testing.assert_allclose(first, expected, atol=1e-6)
    monkeypatch.delattr(_layer_vectors, "layer_vectors")
    repeated = cached_vectors(checkpoint, "tiny", [*TEXTS[::-1], TEXTS[0]], HEAD_INPUT)
    np.testing.assert_array_equal(repeated, first[[2, 1, 0, 0]])


def cell(value, changed=0, error=1e-7):
    figures = {name: measure.Figure(value, 0.01) for name in COLUMNS}
    return Cell(figures, changed, 100, error, "")


def table(**raised):
    cells = {row: cell(0.3) for row in ROWS}
    cells[OWN] = cell(0.8)
    figures = {**cells[OWN].figures, **{k: measure.Figure(v, 0.01) for k, v in raised.items()}}
    cells[OWN] = cells[OWN]._replace(figures=figures)
    return {"cola-minilm": cells}


def test_checks_hold_or_fail_with_the_figures():
    assert all(": yes (" in line for line in check_lines(table()))
    for column in (STSB, SEARCH, SIGN_BITS):
        failing = [line for line in check_lines(table(**{column: 0.5})) if ": no (" in line]
        assert len(failing) == 1
        assert column in failing[0]
    assert not any(": no (" in line for line in check_lines(table(**{HUBNESS: 99})))
    close = table()
    close["cola-minilm"][BEST_LAYER] = cell(0.7)
    assert sum(": no (" in line for line in check_lines(close)) == 1
    close["cola-minilm"][OWN] = cell(0.9, changed=1)
    assert "(1 of 100" in check_lines(close)[-1]
    assert ": no (" in check_lines(close)[-1]


def test_comparisons_count_differences_beyond_the_errors():
    cells = table(**{SEARCH: 0.305, STSB: 0.1, HUBNESS: 0.9})
    against_raw = comparison_lines(cells)[0]
    better, worse = against_raw.split("Worse in ")
    assert worse == f"{STSB}; {HUBNESS}"
    assert SIGN_BITS in better
    assert SEARCH not in against_raw


def test_cells_are_read_back(tmp_path):
    path = tmp_path / "cells.jsonl"
    key = Key("cola-minilm", RAW, "digest")
    cell_store(path).add(cell_line(key, cell(0.5)))
    assert cell_store(path).get(key) == cell(0.5)
    assert json.loads(path.read_text())["vectors"] == RAW


def test_table_has_a_line_for_each_checkpoint_and_row():
    text = dual_use.dual_use_text(table(), "nothing")
    assert text.count("| cola-minilm |") == len(ROWS)
    assert "0.800 ± 0.010" in text


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_no_map_is_fitted_on_an_evaluated_text(shared, name):
    own = CHECKPOINTS[name].own_texts()
    evaluated = evaluated_texts() | set(own.singles)
    assert len(own.fit) > 1000
    assert not evaluated & set(own.fit)
    assert not evaluated_texts() & set(target_texts())
    assert len(own.inputs) == len(own.labels)
    assert len(own.train_inputs) == len(own.train_labels)


def test_searches_name_the_right_documents(shared):
    for search in (entailment_search(), paraphrase_search()):
        assert len(search.queries) == len(search.relevant)
        assert len(set(search.documents)) == len(search.documents)
    premises, hypotheses = entailment_search().documents, entailment_search().queries
    assert (len(hypotheses), len(premises)) == (1249, 2379)
    pairs, labels = load_table(shared / "data" / "rte" / "train.tsv")
    entailed = {pair for pair, label in zip(pairs, labels, strict=True) if label == 0}
    found = zip(entailment_search().relevant, hypotheses, strict=True)
    assert {(premises[number], hypothesis) for number, hypothesis in found} == entailed


@pytest.mark.usefixtures("shared")
def test_recipes_have_folders_of_their_own():
    folders = {checkpoint_folder(recipe, epoch) for recipe in RECIPES.values() for epoch in (1, 5)}
    assert len(folders) == 2 * len(RECIPES)
    assert {one.task for one in CHECKPOINTS.values() if one.epochs} <= set(RECIPES)
