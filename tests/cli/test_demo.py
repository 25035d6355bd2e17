"""The demo as a user meets it."""

import json
import re

import joblib
import numpy as np
import pytest
from safetensors.numpy import load_file
from sklearn.preprocessing import normalize

from isoadapt import AdaptedEncoder, LogitPreservingWhitening, TeacherReadout, load_checkpoint
from isoadapt.adapters._registry import Variant
from isoadapt.cli import _demo
from isoadapt.cli._options import Console
from isoadapt.cli._sources import Columns, read_labelled
from isoadapt.datasets import load_similarity_pairs
from isoadapt.finetune import IsotropyTrainer
from isoadapt.metrics import retrieval_report, similarity_correlation
from isoadapt.model_selection import Comparison
from tests.cli.command_line import fail, succeed

VARIANTS = [
    Variant("IsotropyLayer", {"max_epochs": 1}),
    Variant("CosRegAdapter", {"max_epochs": 1}),
    Variant("LogitPreservingWhitening", fast=True),
    Variant("Whitening, oas, head refit", {"shrinkage": "oas"}, brief=False),
]
LEFT, RIGHT, SCORES = load_similarity_pairs()
RAW, ADAPTED = "classifier's vectors", "repaired by LogitPreservingWhitening"
BEFORE, TAUGHT = "base model", "with a layer of the base model"
# The few epochs of the small demo end while the scores still rise.
pytestmark = [
    pytest.mark.filterwarnings("ignore:training ended at max_epochs"),
    pytest.mark.usefixtures("fixed_penalty"),
]


@pytest.fixture
def options(tables, checkpoint, monkeypatch, tmp_path_factory):
    """Options of a demo of few texts and adapters; 30 of those to judge are fitted to too."""
    monkeypatch.setattr(_demo, "installed_variants", lambda: VARIANTS)
    train, dev = ((tables / f"{name}.tsv").read_text() for name in ("train", "dev"))
    both = tmp_path_factory.mktemp("demo") / "both.tsv"
    both.write_text("\n".join([dev.strip(), *train.splitlines()[1:31]]))
    files = ["--train", tables / "train.tsv", "--dev", both]
    return [*files, "--label", "label", "--checkpoint", checkpoint]


def test_the_story_the_table_and_the_files(options, tmp_path):
    (tmp_path / "pipeline.joblib").write_text("mine")
    line = ["demo", *options, "--out", tmp_path]
    assert "--overwrite" in fail(*line)
    assert (tmp_path / "pipeline.joblib").read_text() == "mine"
    completed = succeed(*line, "--overwrite")
    text = completed.stdout
    assert re.search("Note: 30 texts of .*both.tsv are in .* too", completed.stderr)
    parts = [RAW, ADAPTED, "Search: ", "Adapters, ", "no adapter", "Spectra", "What next?"]
    assert re.search(".*".join(f"\n{part}" for part in parts), text, re.DOTALL)
    assert "It changes 0 of 90 predictions." in text.replace("\n", " ")
    assert f"{BEFORE}  " not in text  # is not known
    assert max(len(line) for line in text.splitlines() if "/" not in line) <= 100
    assert sum(line[9:] in RIGHT for line in text.splitlines()) == 10  # five before, five after

    table = text.partition("Adapters, ")[2].partition("changed:")[0].splitlines()[4:-1]
    rows = {name: figures for name, *figures in (re.split(r"\s{2,}", line) for line in table)}
    adapters = [VARIANTS[0].name, VARIANTS[2].name]
    assert [*rows] == ["no adapter", "head refit only", "same layer, no penalty", *adapters]
    assert rows[VARIANTS[2].name][:2] == [rows["no adapter"][0], "0"]  # accuracy and changes
    assert rows[VARIANTS[2].name][2:5] != rows["no adapter"][2:5]

    assert {path.name for path in tmp_path.iterdir()} == {"spectra.png", "pipeline.joblib"}
    assert (tmp_path / "spectra.png").read_bytes().startswith(b"\x89PNG")
    names = {each.__name__: each for each in (AdaptedEncoder, LogitPreservingWhitening)}
    names["texts"] = read_labelled(options[1], Columns()).rows
    _, code = re.findall("^  (model = .*)", text, re.MULTILINE)
    exec(code, names)
    saved = joblib.load(tmp_path / "pipeline.joblib")
    assert saved.transform(LEFT) == pytest.approx(names["model"].transform(LEFT), abs=1e-4)


def test_all_adds_the_others_and_the_figures_are_shown_as_json(options, tmp_path, monkeypatch):
    monkeypatch.setattr(_demo, "_save_spectra", lambda *args: None)
    completed = succeed("demo", *options, "--out", tmp_path, "--all", "--json", "--quiet")
    figures = json.loads(completed.stdout)
    assert figures.keys() == {"comparison", "similarity", "spectra", "pipeline", "notes"}
    assert {row["adapter"] for row in figures["comparison"]["rows"]} >= {"CosRegAdapter"}
    assert joblib.load(tmp_path / "pipeline.joblib").predict(LEFT[:2]).shape == (2,)


def test_a_pair_shares_a_batch_and_embeddings_are_kept(checkpoint, tmp_path, monkeypatch, spy):
    monkeypatch.setattr(_demo, "minilm_folder", lambda: checkpoint)
    trained = spy(IsotropyTrainer, "train", lambda each: [*each.get_train_dataloader()])
    settings = [tmp_path, False, _demo._QUICK, Console(quiet=True)]
    folder = _demo._fine_tune(LEFT[:20], np.tile([1, 0], 10), *settings)
    [batches] = trained
    assert [batch["labels"].tolist() for batch in batches] == [[1, 0] * 8, [1, 0] * 2]
    old, new = (load_file(f"{each}/model.safetensors") for each in (checkpoint, folder))
    kept = {name for name in new.keys() & old.keys() if np.array_equal(new[name], old[name])}
    assert kept == {"bert.embeddings.word_embeddings.weight"}


def test_the_vectors_are_those_of_the_public_estimators(checkpoint):
    encoder, head = load_checkpoint(checkpoint)
    texts = LEFT[:40]
    taught = AdaptedEncoder(checkpoint, TeacherReadout(), checkpoint).fit(texts)
    adapted = AdaptedEncoder(checkpoint, LogitPreservingWhitening()).fit(texts)
    expected = {RAW: encoder, ADAPTED: adapted, TAUGHT: taught, BEFORE: encoder}
    found = _demo.repair(encoder, head, texts, encoder.transform(texts), checkpoint)[1]
    assert list(found) == list(expected)
    for name, model in expected.items():
        assert found[name] == pytest.approx(model.transform(LEFT + RIGHT), abs=1e-4)
    pairs = list(zip(texts[::2], texts[1::2], strict=True))  # a classifier of pairs
    of_pairs = _demo.repair(encoder, head, pairs, encoder.transform(pairs), None)[1]
    assert list(of_pairs) == [RAW, ADAPTED]
    assert of_pairs[ADAPTED] == pytest.approx(found[ADAPTED], abs=1e-4)


def test_the_figures_are_those_of_the_public_functions():
    first, second = np.random.default_rng(0).normal(1, 1, (2, len(LEFT), 8))
    found, asked = _demo.similarity(np.vstack([first, second])), np.flatnonzero(SCORES >= 4)
    recall = retrieval_report(first[asked], second, asked, k=1).recall
    assert found.correlation == similarity_correlation(first, second, SCORES)
    assert found.first / found.asked == pytest.approx(recall)
    query = normalize(first)[LEFT.index("He sold his car to pay for the operation.")]
    cosines = dict(zip(RIGHT, normalize(second) @ query, strict=True))
    nearest = sorted(cosines, key=cosines.get)[:-6:-1]
    assert [sentence for _, sentence in found.nearest] == nearest
    assert [cosine for cosine, _ in found.nearest] == pytest.approx([*map(cosines.get, nearest)])


@pytest.mark.parametrize(
    ("before", "ev1", "of_pairs", "expected", "other"),
    [
        (0.8, 0.95, False, ["itself 0.800. The", "nearly on a line"], "as a single text"),
        (None, 0.5, True, ["usually better still", "as a single text"], "nearly on a line"),
    ],
)
def test_the_sentences_follow_from_the_figures(before, ev1, of_pairs, expected, other):
    row = {"use": "classify", "metric": "accuracy", "score": 0.8, "ev1": ev1, "fit_seconds": 0.1}
    row |= {"n_predictions": 90, "changed_predictions": 3}
    rows = [row | {"adapter": name} for name in ("no adapter", "LogitPreservingWhitening")]
    values = {RAW: 0.3, ADAPTED: 0.7}
    values |= {} if before is None else {TAUGHT: 0.75, BEFORE: before}
    found = {name: _demo.PairFigures(value, 7, 34, [(0.5, "A.")]) for name, value in values.items()}
    text = _demo.story(Comparison(rows, "", {}, []), found, "m", of_pairs).replace("\n", " ")
    for part in (*expected, "0.300", "0.700", "7 of 34", f"{ev1:.0%}", "changes 3 of 90"):
        assert part in text
    assert other not in text


@pytest.mark.parametrize(
    ("name", "kind"),
    [("spectra.png", "file"), ("pipeline.joblib", "folder"), ("checkpoint", "file")],
)
def test_results_are_checked_before_anything_is_computed(name, kind, tmp_path, monkeypatch):
    for step in ("_texts_of", "minilm_folder", "load_checkpoint"):
        monkeypatch.setattr(_demo, step, lambda *args: pytest.fail("too late"))
    path = tmp_path / name
    if kind == "folder":
        path.mkdir()
        path /= "mine.txt"
    path.write_text("mine")
    replaceable = kind == "file" and name != "checkpoint"
    for flags in [[]] if replaceable else [[], ["--overwrite"]]:
        assert str(tmp_path) in fail("demo", "--out", tmp_path, *flags)
        assert path.read_text() == "mine"
