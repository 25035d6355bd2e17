"""The demo as a user meets it."""

import json
import re
import shutil

import joblib
import numpy as np
import pytest

from isoadapt import AdaptedEncoder, LogitPreservingWhitening
from isoadapt.adapters import _heads
from isoadapt.adapters._registry import Variant
from isoadapt.cli import _demo
from isoadapt.cli._options import Console
from isoadapt.datasets import load_similarity_pairs
from tests.cli.command_line import fail, succeed

VARIANTS = [
    Variant("IsotropyLayer, minibatch", "IsotropyLayer", {"max_epochs": 1}),
    Variant("CosRegAdapter", "CosRegAdapter", {"max_epochs": 1}),
    Variant("AllButTheTop, head refit", "AllButTheTop", {}),
    Variant("LogitPreservingWhitening", "LogitPreservingWhitening", {}),
    Variant("Whitening, oas, head refit", "Whitening", {"shrinkage": "oas"}, brief=False),
]
# The few epochs of the small demo end while the scores still rise.
pytestmark = pytest.mark.filterwarnings("ignore:training ended at max_epochs")


@pytest.fixture(scope="module", autouse=True)
def few_and_quick():
    """A few adapters, and logistic heads whose penalty is not searched."""
    fit = _heads._fit_logistic
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_heads, "_fit_logistic", lambda *rows: fit(*rows[:3], 0 * rows[3]))
        patch.setattr(_demo, "installed_variants", lambda: VARIANTS)
        yield


@pytest.fixture(scope="module")
def options(tables, checkpoint):
    """The options of a demo of 90 texts, whose labels are in a column of another name."""
    for name in ("train.tsv", "dev.tsv"):
        kinds = (tables / name).read_text().replace("label", "kind", 1)
        (tables / f"kinds-{name}").write_text(kinds)
    files = ["--train", tables / "kinds-train.tsv", "--dev", tables / "kinds-dev.tsv"]
    return [*files, "--label", "kind", "--checkpoint", checkpoint]


@pytest.fixture(scope="module")
def result(options, tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "out"
    return succeed("demo", *options, "--out", out), out


def rows_of(text):
    """The lines of the table of adapters, without its header."""
    table = text.partition("Adapters, judged")[2].partition("changed:")[0]
    return [re.split(r"\s{2,}", line) for line in table.splitlines()[4:] if line]


class TestOutput:
    def test_the_story_is_told_before_the_table_of_adapters(self, result):
        text = result[0].stdout
        starts = [text.find(f"\n{start}") for start in _parts()]
        assert -1 not in starts
        assert starts == sorted(starts)
        assert "It changes 0 of 90 predictions." in text.replace("\n", " ")
        assert "encoder before fine-tuning  " not in text  # is not known
        assert max(map(len, (line for line in text.splitlines() if "/" not in line))) <= 100

    def test_the_table_has_the_fast_adapters_one_other_and_the_controls(self, result):
        controls = ["no adapter", "head refit only", "same layer, no penalty"]
        adapters = [variant.name for variant in (VARIANTS[0], *VARIANTS[2:4])]
        assert [row[0] for row in rows_of(result[0].stdout)] == controls + adapters

    def test_the_repair_keeps_the_predictions(self, result):
        rows = {name: figures for name, *figures in rows_of(result[0].stdout)}
        base, kept = rows["no adapter"], rows["LogitPreservingWhitening"]
        assert kept[:2] == [base[0], "0"]
        assert kept[3:5] != base[3:5]  # IsoScore and EV1

    def test_the_search_lists_neighbours_before_and_after(self, result):
        texts = load_similarity_pairs().right
        assert sum(line[9:] in texts for line in result[0].stdout.splitlines()) == 10

    def test_the_code_runs(self, result):
        code = [line.strip() for line in result[0].stdout.splitlines() if line[:3] == "  m"]
        names = {each.__name__: each for each in (AdaptedEncoder, LogitPreservingWhitening)}
        names["texts"] = load_similarity_pairs().left
        exec(code[0], names)
        repaired = joblib.load(result[1] / "pipeline.joblib")
        assert (names["model"].predict(names["texts"]) == repaired.predict(names["texts"])).all()

    def test_picture_and_pipeline(self, result):
        assert (result[1] / "spectra.png").read_bytes().startswith(b"\x89PNG")
        assert {path.name for path in result[1].iterdir()} == {"spectra.png", "pipeline.joblib"}


def _parts():
    raw, adapted = "classifier's vectors  ", "repaired by LogitPreservingWhitening  "
    return [raw, adapted, "Search: ", "Adapters, judged", "no adapter", "Spectra", "What next?"]


def test_all_adds_the_others_and_replaces_the_results(result, options):
    before = {path.name: path.read_bytes() for path in result[1].iterdir()}
    again = ["demo", *options, "--out", result[1], "--all"]
    assert "--overwrite" in fail(*again)
    assert {path.name: path.read_bytes() for path in result[1].iterdir()} == before
    figures = json.loads(succeed(*again, "--overwrite", "--json").stdout)
    assert "CosRegAdapter" in {row["adapter"] for row in figures["comparison"]["rows"]}
    assert (result[1] / "spectra.png").read_bytes() != before["spectra.png"]


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
    train, dev = tables / "train.tsv", tables / "dev.tsv"
    (tables / "both.tsv").write_text(
        "\n".join([*dev.read_text().splitlines(), *train.read_text().splitlines()[1:31]])
    )
    expected = _demo._read_tables(train, dev, None, None, Console())[2:]
    found = _demo._read_tables(train, tables / "both.tsv", None, None, Console())[2:]
    assert all(map(np.array_equal, found, expected))
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
