"""The demo as a user meets it."""

import re
import shutil

import joblib
import pytest

from isoadapt import AdaptedEncoder, LogitPreservingWhitening
from isoadapt.adapters import _registry
from isoadapt.adapters._registry import METHODS
from isoadapt.cli._demo import _read_tables
from isoadapt.cli._options import Console
from isoadapt.datasets import load_similarity_pairs
from tests.cli.command_line import fail, run


@pytest.fixture(scope="module")
def result(tables, checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    for name in ("train.tsv", "dev.tsv"):
        (folder / name).write_text((tables / name).read_text().replace("label", "kind", 1))
    options = ["--train", folder / "train.tsv", "--dev", folder / "dev.tsv", "--label", "kind"]
    out = folder / "out"
    return run("demo", *options, "--checkpoint", checkpoint, "--out", out), out


# The few epochs of the small demo end while the scores still rise.
@pytest.mark.filterwarnings("ignore:training ended at max_epochs")
class TestDemo:
    def test_one_table_and_one_sentence(self, result):
        completed, _ = result
        assert completed.code in (None, 0), completed
        lines = completed.stdout.splitlines()
        header = next(line for line in lines if "accuracy" in line and "EV1" in line)
        for column in (
            "MCC",
            "loss",
            "IsoScore",
            "cosine",
        ):
            assert column in header
        for row in (
            "no adapter",
            "head refit only",
            "same layer, no penalty",
            "IsotropyLayer, minibatch",
            "IsotropyLayer, exact",
            *(name for name in METHODS.values() if name != "IsotropyLayer"),
        ):
            assert sum(line.startswith(row) for line in lines) == 1
        assert max(len(line) for line in lines if "/" not in line) <= 100  # paths may be longer
        assert "Traceback" not in completed.stderr

    def test_logits_are_preserved_in_the_table(self, result):
        lines = result[0].stdout.splitlines()
        base = next(line for line in lines if line.startswith("no adapter")).split()
        kept = next(line for line in lines if line.startswith("LogitPreserving")).split()
        assert base[2:5] == kept[1:4]

    def test_it_ends_with_similarity(self, result):
        table = result[0].stdout.partition("102 graded sentence pairs")[2]
        starts = ("classifier's vectors  ", "classifier's vectors, centred", "adapted by LogitPre")
        assert all(f"\n{start}" in table for start in starts)
        assert "It changed 0 of 90 predictions" in table
        assert "\nencoder before fine-tuning" not in table
        assert "is usually better still at similarity" in table

    def test_the_end_is_a_search_and_its_code(self, result, checkpoint):
        lines = result[0].stdout.partition("\nSearch among ")[2].splitlines()
        texts = load_similarity_pairs().right
        nearest = [line[9:] for line in lines if line[:1] in {" ", "*"} and line[9:] in texts]
        assert len(nearest) == 10  # five before, five after
        assert str(checkpoint) in lines[-1]
        names = {each.__name__: each for each in (AdaptedEncoder, LogitPreservingWhitening)}
        model = eval(lines[-1].strip(), names | {"texts": texts})
        assert model.predict(texts[:2]).shape == (2,)

    def test_picture_and_pipeline(self, result):
        _, out = result
        assert (out / "spectra.png").read_bytes().startswith(b"\x89PNG")
        pipeline = joblib.load(out / "pipeline.joblib")
        assert pipeline.predict(["the cat sat", "a dog ran"]).shape == (2,)
        assert {path.name for path in out.iterdir()} == {"spectra.png", "pipeline.joblib"}

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--train", "absent.tsv"], "--train and --dev must be given together"),
            (["--label", "kind"], "give --train and --dev too"),
            (["--out", __file__], "cannot be written to"),
            (["--checkpoint", "{folder}"], "config.json"),
        ],
    )
    def test_errors_are_one_line(self, options, message, tables, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)  # the results of `make demo` would be named first
        options = [str(option).format(folder=tables) for option in options]
        assert message in fail("demo", *options)


def test_texts_of_both_tables_are_not_evaluated_on(tables, capsys):
    arguments = [tables / "train.tsv", tables / "dev.tsv", None, None, Console()]
    _, _, all_dev, labels = _read_tables(*arguments)
    lines = (tables / "train.tsv").read_text().splitlines()
    both = (tables / "dev.tsv").read_text() + "\n".join(lines[1:31]) + "\n"
    (tables / "both.tsv").write_text(both)
    _, _, dev, dev_labels = _read_tables(arguments[0], tables / "both.tsv", *arguments[2:])
    assert list(dev) == list(all_dev)
    assert dev_labels.tolist() == labels.tolist()
    assert re.search("Note: 30 texts of .*both.tsv are in .* too", capsys.readouterr().err)
    same = ["--train", tables / "train.tsv", "--dev", tables / "train.tsv"]
    assert "every text of" in fail("demo", *same, "--checkpoint", "m", "--out", tables / "new")


@pytest.mark.parametrize("options", [[], ["--checkpoint", "no/such/checkpoint"]])
def test_a_failed_demo_leaves_no_folders(options, tables, tmp_path):
    texts = ["--train", tables / "train.tsv", "--dev", "absent.tsv"]
    if options:
        texts[-1] = tables / "dev.tsv"
    fail("demo", *texts, *options, "--out", tmp_path / "a" / "b")
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_is_replaced_with_a_flag_only(tables, checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr("isoadapt.cli._demo.minilm_folder", lambda: checkpoint)
    shutil.copytree(checkpoint, tmp_path / "checkpoint")
    before = (tmp_path / "checkpoint" / "model.safetensors").read_bytes()
    texts = ["--train", tables / "train.tsv", "--dev", tables / "dev.tsv"]
    message = fail("demo", *texts, "--out", tmp_path)
    assert "exists and is not empty" in message
    assert "--overwrite" in message
    assert (tmp_path / "checkpoint" / "model.safetensors").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


@pytest.mark.parametrize("name", ["spectra.png", "pipeline.joblib", "checkpoint"])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_results_are_checked_before_anything_is_computed(name, kind, tables, tmp_path, monkeypatch):
    for step in ("_read_tables", "minilm_folder", "load_checkpoint"):
        monkeypatch.setattr(f"isoadapt.cli._demo.{step}", lambda *args: pytest.fail("too late"))
    path = tmp_path / name
    if kind == "folder":
        path.mkdir()
        path /= "mine.txt"
    path.write_text("mine")
    texts = ["--train", tables / "train.tsv", "--dev", tables / "dev.tsv", "--out", tmp_path]
    assert "choose another" in fail("demo", *texts)
    assert path.read_text() == "mine"
    if kind == "folder" or name == "checkpoint":  # of the wrong kind
        fail("demo", *texts, "--overwrite")
        assert path.read_text() == "mine"


def test_results_are_replaced_with_a_flag_only(result, tables, checkpoint, monkeypatch):
    _, out = result
    few = (*_registry.VARIANTS[:2], _registry.VARIANTS[-1])
    monkeypatch.setattr(_registry, "VARIANTS", few)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    again = ["--train", tables / "train.tsv", "--dev", tables / "dev.tsv"]
    again += ["--checkpoint", checkpoint, "--out", out]
    assert "--overwrite" in fail("demo", *again)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert run("demo", *again, "--overwrite").code in (None, 0)
    assert joblib.load(out / "pipeline.joblib").predict(["the cat sat"]).shape == (1,)
