"""The demo as a user meets it."""

import json
import re
import shutil

import joblib
import numpy as np
import pytest
from safetensors.numpy import load_file

from isoadapt import AdaptedEncoder, LogitPreservingWhitening
from isoadapt.adapters._registry import Variant
from isoadapt.cli import _demo
from isoadapt.cli._options import Console, labelled_texts
from isoadapt.datasets import load_similarity_pairs
from isoadapt.finetune import IsotropyTrainer
from tests.cli.command_line import fail, succeed

VARIANTS = [
    Variant("IsotropyLayer, minibatch", "IsotropyLayer", {"max_epochs": 1}),
    Variant("CosRegAdapter", "CosRegAdapter", {"max_epochs": 1}),
    Variant("LogitPreservingWhitening", "LogitPreservingWhitening", {}),
    Variant("Whitening, oas, head refit", "Whitening", {"shrinkage": "oas"}, brief=False),
]
LEFT, RIGHT, _ = load_similarity_pairs()
# The few epochs of the small demo end while the scores still rise.
pytestmark = [
    pytest.mark.filterwarnings("ignore:training ended at max_epochs"),
    pytest.mark.usefixtures("fixed_penalty"),
]


@pytest.fixture
def options(tables, checkpoint, monkeypatch):
    """Options of a demo of few texts and adapters."""
    monkeypatch.setattr(_demo, "installed_variants", lambda: VARIANTS)
    files = ["--train", tables / "train.tsv", "--dev", tables / "dev.tsv"]
    return [*files, "--label", "label", "--checkpoint", checkpoint]


def test_the_story_the_table_and_the_files(options, tmp_path):
    text = succeed("demo", *options, "--out", tmp_path).stdout
    raw, repaired = "classifier's vectors  ", "repaired by LogitPreservingWhitening  "
    parts = [raw, repaired, "Search: ", "Adapters, ", "no adapter", "Spectra", "What next?"]
    assert re.search(".*".join(f"\n{part}" for part in parts), text, re.DOTALL)
    assert "It changes 0 of 90 predictions." in text.replace("\n", " ")
    assert "encoder before fine-tuning  " not in text  # is not known
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
    names["texts"] = labelled_texts(options[1], None, None)[0]
    [code] = re.findall("^  (model = .*)", text, re.MULTILINE)
    exec(code, names)
    saved = joblib.load(tmp_path / "pipeline.joblib")
    assert saved.transform(LEFT) == pytest.approx(names["model"].transform(LEFT), abs=1e-4)


def test_all_adds_the_others_and_a_flag_replaces_results(options, tmp_path, monkeypatch):
    monkeypatch.setattr(_demo, "_save_spectra", lambda *args: None)
    (tmp_path / "pipeline.joblib").write_text("mine")
    again = ["demo", *options, "--out", tmp_path, "--all", "--json"]
    assert "--overwrite" in fail(*again)
    assert (tmp_path / "pipeline.joblib").read_text() == "mine"
    figures = json.loads(succeed(*again, "--overwrite").stdout)
    assert {row["adapter"] for row in figures["comparison"]["rows"]} >= {"CosRegAdapter"}
    assert joblib.load(tmp_path / "pipeline.joblib").predict(LEFT[:2]).shape == (2,)


def test_sentences_of_a_pair_share_a_batch_and_embeddings_are_kept(
    checkpoint, tmp_path, monkeypatch
):
    batches, train = [], IsotropyTrainer.train
    monkeypatch.setattr(_demo, "minilm_folder", lambda: checkpoint)
    monkeypatch.setattr(
        *(IsotropyTrainer, "train"),
        lambda each: batches.extend(each.get_train_dataloader()) or train(each),
    )
    settings = [tmp_path, False, _demo._QUICK, Console(quiet=True)]
    folder = _demo._fine_tune(LEFT[:20], np.tile([1, 0], 10), *settings)
    assert [batch["labels"].tolist() for batch in batches] == [[1, 0] * 8, [1, 0] * 2]
    old, new = (load_file(f"{each}/model.safetensors") for each in (checkpoint, folder))
    kept = {name for name in new if np.array_equal(new[name], old[name])}
    assert kept == {"bert.embeddings.word_embeddings.weight"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--train", "absent.tsv"], "--train and --dev must be given together"),
        (["--label", "kind"], "give --train and --dev too"),
        (["--out", __file__], "cannot be written to"),
        (["--checkpoint", "{folder}"], "config.json"),
    ],
)
def test_errors_are_one_line(options, message, tables, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the results of `make demo` would be named first
    assert message in fail("demo", *[str(each).format(folder=tables) for each in options])


def test_texts_of_both_tables_are_not_evaluated_on(tables, capsys):
    train, dev, both = (tables / f"{name}.tsv" for name in ("train", "dev", "both"))
    both.write_text("\n".join([dev.read_text().strip(), *train.read_text().splitlines()[1:31]]))
    expected, found = (
        _demo._read_tables(train, each, None, None, Console()) for each in (dev, both)
    )
    assert all(map(np.array_equal, found[2:], expected[2:]))
    assert re.search("Note: 30 texts of .*both.tsv are in .* too", capsys.readouterr().err)
    same = ["--train", train, "--dev", train]
    assert "every text of" in fail("demo", *same, "--checkpoint", "m", "--out", tables / "new")
    assert not (tables / "new").exists()


@pytest.mark.parametrize("kind", ["file", "folder"])
@pytest.mark.parametrize("name", ["spectra.png", "pipeline.joblib", "checkpoint"])
def test_results_are_checked_before_anything_is_computed(name, kind, tmp_path, monkeypatch):
    for step in ("_read_tables", "minilm_folder", "load_checkpoint"):
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


def test_a_checkpoint_is_replaced_with_a_flag_only(checkpoint, tmp_path):
    shutil.copytree(checkpoint, tmp_path / "checkpoint")
    message = fail("demo", "--out", tmp_path)
    assert "exists and is not empty" in message
    assert "--overwrite" in message
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
