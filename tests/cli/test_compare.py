"""The comparison as a user meets it."""

import json

import numpy as np
import pandas as pd
import pytest

from isoadapt.interop import load_adapter
from isoadapt.model_selection import Comparison
from tests.cli.command_line import fail, run, succeed
from tests.tiny_models import save_model

pytestmark = pytest.mark.usefixtures("fixed_penalty")
NAMES = ["--adapters", "logit-preserving-whitening", "--adapters", "Whitening"]


@pytest.fixture(scope="module")
def pairs(tables):
    rows = [(tables / name).read_text().splitlines()[1:] for name in ("train.tsv", "dev.tsv")]
    lines = [
        f"{first.split(chr(9))[0]}\t{second.split(chr(9))[0]}\t{number % 6}"
        for number, (first, second) in enumerate(zip(*rows, strict=True))
    ]
    path = tables / "pairs.tsv"
    path.write_text("\n".join(["sentence1\tsentence2\tlabel", *lines]) + "\n")
    return path


class TestCompare:
    def test_tables_and_verdicts(self, tables, checkpoint, pairs, tmp_path):
        train, dev = ((tables / name).read_text() for name in ("train.tsv", "dev.tsv"))
        test = tmp_path / "test.tsv"
        test.write_text(dev + "\n".join(train.splitlines()[1:6]) + "\n")
        completed = succeed(
            "compare",
            tables / "train.tsv",
            *["--model", checkpoint, "--test", test, "--encoder-saw"],
            *["--pairs", pairs, "--foreign", pairs, "--out", tmp_path / "out", *NAMES],
        )
        assert "5 of the 95 rows to judge on equal rows that are fitted to" in completed.stderr
        assert completed.stdout.startswith("Fitted to 90 rows and judged on 90 test rows")
        for name in ("no adapter", "head refit only", "LogitPreservingWhitening", "Whitening"):
            lines = completed.stdout.splitlines()
            assert sum(line.startswith(f"{name}  ") for line in lines) == 6
        assert max(map(len, lines)) <= 100
        verdict = completed.stdout.split("\n\n")[-1].replace("\n  ", " ").splitlines()
        starts = ["On classification, ", "For similarity, ", "For neighbours ", "For outliers, "]
        assert all(line.startswith(start) for line, start in zip(verdict, starts, strict=True))
        assert "Encoding the 185 texts" in completed.stderr  # of both tables in one call
        saved = json.loads((tmp_path / "out" / "comparison.json").read_text())
        assert [*saved["verdict"].values()] == verdict

    def test_best_adapters_are_saved(self, tables, checkpoint, tmp_path, monkeypatch):
        best = lambda self, use=None, same_predictions=False: self.estimators["Whitening"]  # noqa: E731
        monkeypatch.setattr(Comparison, "best_adapter", best)
        arguments = [tables / "dev.tsv", "--model", checkpoint, "--encoder-unseen", *NAMES[2:]]
        completed = succeed("compare", *arguments, "--out", tmp_path / "out")
        assert "Note:" not in completed.stderr
        folders = {path.name for path in (tmp_path / "out").iterdir() if path.is_dir()}
        assert folders == {"best-for-classify", "best-for-neighbours"}
        adapter = load_adapter(tmp_path / "out" / "best-for-classify")
        assert type(adapter).__name__ == "Whitening"
        card = (tmp_path / "out" / "best-for-classify" / "README.md").read_text()
        assert "- Data: source dev.tsv, rows 90" in card

    def test_folders_of_an_earlier_comparison_are_named(self, tables, checkpoint, tmp_path):
        (tmp_path / "best-for-classify").mkdir()
        arguments = [tables / "dev.tsv", "--model", checkpoint, "--encoder-unseen", *NAMES[2:]]
        completed = succeed("compare", *arguments, "--out", tmp_path)
        assert "not judged: similarity (--pairs), outliers (--foreign), search" in completed.stderr
        assert "best-for-classify is of an earlier comparison" in completed.stderr

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--encoder-saw"], "--test"),
            (["--adapters", "whitenin"], "did you mean"),
            (["--adapters", "fast", "--adapters", "isobn"], "cannot be combined"),
        ],
    )
    def test_wrong_usage(self, options, message, tables, checkpoint):
        completed = run("compare", tables / "dev.tsv", "--model", checkpoint, *options)
        assert completed.code == 2
        assert completed.stdout == ""
        assert message in " ".join(completed.stderr.replace("│", " ").split())

    @pytest.mark.parametrize("option", [None, "--encoder-unseen"])
    def test_rows_that_the_encoder_may_have_seen_are_named_before_it_is_loaded(
        self, option, tables, tmp_path
    ):
        files = [tables / "dev.tsv", "--model", tmp_path / "absent", *filter(None, [option])]
        assert ("this cannot tell whether" in run("compare", *files).stderr) == (option is None)

    def test_failures_are_one_line(self, tables, checkpoint, pairs, tmp_path):
        (tmp_path / "texts.tsv").write_text("sentence\na cat\na dog\n")
        model = ["--model", checkpoint]
        assert "no column 'label'" in fail("compare", tmp_path / "texts.tsv", *model)
        assert "is not a file" in fail("compare", tmp_path / "absent.tsv", *model)
        train = tables / "train.tsv"
        assert "sentence1" in fail("compare", train, *model, "--pairs", train)
        unread = fail("compare", train, "--model", tmp_path, "--foreign", tmp_path / "no")
        assert str(tmp_path / "no") in unread  # before texts are encoded


def test_labels_that_the_checkpoint_does_not_know_need_a_new_head(tables, tmp_path):
    folder = save_model(tmp_path / "several", problem_type="multi_label_classification")
    files = ["compare", tables / "train.tsv", "--test", tables / "dev.tsv", "--encoder-unseen"]
    completed = run(*files, "--model", folder, "--adapters", "IsoBN", "--out", tmp_path / "out")
    assert completed.code == 0
    assert "A new head is fitted instead, head='logistic'" in completed.stderr
    assert "On classification" in completed.stdout


def test_labels_may_be_the_names_of_the_checkpoint(tables, tmp_path):
    names = np.array(["good", "bad", "fair"])
    folder = save_model(tmp_path / "named", id2label=dict(enumerate(names.tolist())))
    for name in ("train.tsv", "dev.tsv"):
        table = pd.read_csv(tables / name, sep="\t")
        table.assign(label=names[table["label"]]).to_csv(tmp_path / name, sep="\t", index=False)
    shown = []
    for place in (tables, tmp_path):
        files = ["compare", place / "train.tsv", "--test", place / "dev.tsv"]
        arguments = [*files, "--model", folder, "--encoder-unseen", *NAMES]
        shown.append(succeed(*arguments, "--out", tmp_path / "out"))
        saved = json.loads((tmp_path / "out" / "comparison.json").read_text())
        rows = [row for row in saved["rows"] if row["adapter"] in ("no adapter", "head refit only")]
        shown[-1] = [(row["use"], row["adapter"], row["score"]) for row in rows]
    assert shown[0] == shown[1]
