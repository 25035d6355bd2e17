"""Fine-tuning on the command line."""

import re

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from isoadapt import cli, load_checkpoint
from isoadapt.cli._finetune import _JOINING, _TRAINING, _make_options
from isoadapt.finetune import finetune_text_classifier
from isoadapt.finetune._recipes import PENALTIES, RECIPES
from isoadapt.losses import IsoScoreLoss
from isoadapt.metrics import anisotropy, isoscore
from tests.cli.command_line import fail, message_of, run, succeed
from tests.tiny_models import WORDS

QUICK = ["--set", "epochs=1", "random_state=0", "device=cpu", "lr=1e-3"]


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """A folder with tables to train and to evaluate on: texts, pairs, names and floats."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name, n in (("train", 64), ("dev", 40)):
        texts = [" ".join(rng.choice(WORDS, size=6)) for _ in range(n)]
        labels = np.array([text.count("the") > 0 for text in texts]).astype(int)
        columns = {"sentence": texts, "label": labels}
        pairs = {"sentence1": texts, "sentence2": texts[::-1], "label": labels}
        names = {"sentence": texts, "label": np.array(["no", "yes"])[labels]}
        floats = {"sentence": texts, "label": labels * 0.9}
        for kind, table in (("", columns), ("-pair", pairs), ("-name", names), ("-float", floats)):
            pd.DataFrame(table).to_csv(f"{name}{kind}.tsv", sep="\t", index=False)
    return tmp_path


def read(name):
    table = pd.read_csv(name, sep="\t")
    return table["sentence"].tolist(), table["label"].to_numpy()


def weights(folder):
    return (folder / "model.safetensors").read_bytes()


def test_help_names_the_penalties_and_recipes():
    result = CliRunner().invoke(cli.app, ["finetune", "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    for name in (*PENALTIES, *RECIPES, "--set", "--where", "--text", *_JOINING, *_TRAINING):
        assert name in result.output


def test_the_shortest_line(tables, checkpoint):
    line = f"finetune --model {checkpoint} --train train.tsv --penalty istar --set lam=-1 zeta=.2"
    completed = succeed(*line.split())
    assert completed.stdout == "Checkpoint: isoadapt-finetuned\n"
    assert "on 64 texts ..." in completed.stderr
    load_checkpoint("isoadapt-finetuned")


def test_it_is_the_function(tables, checkpoint):
    line = f"finetune --model {checkpoint} --train train.tsv --penalty istar --out a"
    settings = ["--set", "lam=-1", "zeta=0.5", "--where", "1,2", "--recipe", "istar"]
    succeed(*line.split(), *settings, *QUICK)
    options = {"penalty": IsoScoreLoss(zeta=0.5, form="linear"), "lam": -1.0, "where": [1, 2]}
    options |= {"recipe": "istar", "epochs": 1, "lr": 1e-3, "random_state": 0, "device": "cpu"}
    finetune_text_classifier(checkpoint, *read("train.tsv"), "b", **options)
    assert weights(tables / "a") == weights(tables / "b")


def test_dev_is_evaluated(tables, checkpoint):
    options = ["--train", "train.tsv", "--dev", "dev.tsv", "--max-length", 7, "--out", "a"]
    completed = succeed("finetune", "--model", checkpoint, *options, *QUICK)
    texts, labels = read("dev.tsv")
    encoder, head = load_checkpoint("a", max_length=7)
    X = encoder.transform(texts)
    figures = dict(re.findall(r"^ *(\S+) +(-?[\d.e-]+)$", completed.stdout, re.M))
    assert figures["accuracy"] == f"{head.score(X, labels):.4g}"
    assert figures["IsoScore"] == f"{isoscore(X):.4g}"
    assert figures["corrected"] == f"{isoscore(X, bias_corrected=True):.4g}"
    assert figures["anisotropy_1"] == f"{anisotropy(X, k=1):.4g}"
    assert {"Matthews", "EV1"} <= figures.keys()
    assert "On the 40 texts of dev.tsv:" in completed.stdout


@pytest.mark.parametrize(
    ("kind", "metric"), [("-pair", "Matthews"), ("-name", "accuracy"), ("-float", "correlation")]
)
def test_pairs_names_and_floats(tables, checkpoint, kind, metric):
    options = ["--train", f"train{kind}.tsv", "--dev", f"dev{kind}.tsv", "--out", "a"]
    assert metric in succeed("finetune", "--model", checkpoint, *options, *QUICK).stdout


def test_every_penalty(tables, checkpoint):
    line = ["finetune", "--model", checkpoint, "--train", "train.tsv"]
    succeed(*line, "--out", "plain", *QUICK)
    for penalty in PENALTIES:
        succeed(*line, "--penalty", penalty, "--out", penalty, *QUICK, "lam=0.1")
    assert len({weights(tables / name) for name in ("plain", *PENALTIES)}) == len(PENALTIES) + 1


@pytest.mark.parametrize(
    ("where", "place"),
    [("1,2", (1, 2)), ("[1, 2]", [1, 2]), ("2", 2), ("-1", -1), ("last", "last")],
)
def test_where(where, place):
    assert _make_options("istar", None, [f"where={where}"])["where"] == place


def test_text_names_the_columns(tables, checkpoint):
    for name in ("train", "dev"):
        table = pd.read_csv(f"{name}-pair.tsv", sep="\t")
        table = table.rename(columns={"sentence1": "question", "sentence2": "answer"})
        table.assign(topic="x").to_csv(f"{name}-odd.tsv", sep="\t", index=False)
    line = ["finetune", "--model", checkpoint, "--train", "train-odd.tsv", "--out", "a", *QUICK]
    assert "unclear which hold the texts; pass text= (--text on the command line)" in fail(*line)
    succeed(*line, "--text", "question,answer", "--dev", "dev-odd.tsv")
    plain = ["--train", "train-pair.tsv", "--out", "b", *QUICK]
    succeed("finetune", "--model", checkpoint, *plain)
    assert weights(tables / "a") == weights(tables / "b")
    audit = ["audit", checkpoint, "dev-odd.tsv", "--json", "--text"]
    pairs, single = (succeed(*audit, text).stdout for text in ("question,answer", "answer"))
    assert pairs != single
    fit = ["fit", "whitening", "--model", checkpoint, "--on", "dev-odd.tsv", "--text", "answer"]
    succeed(*fit, "--out", "c")
    transform = ["transform", "c", "dev-odd.tsv", "d.npy", "--text", "answer"]
    succeed(*transform)
    assert np.load("d.npy").shape[0] == 40


class TestErrors:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--penalty", "entropy"], "--penalty 'entropy'.*istar, cosreg.* mean 'topological"),
            (["--penalty", "spectrum"], "did you mean 'spectrum-control'"),
            (["--penalty", "istar", "--set", "bars=all"], "bars=all: .*istar takes.*zeta.*lam"),
            (["--penalty", "istar", "--set", "zeta=2"], "zeta=2 must lie in"),
            (["--set", "seed=1"], "seed=1: training without --penalty takes .*epochs"),
            (["--set", "lam=-1"], "--set lam=-1: training without --penalty takes"),
            (["--set", "balance=ema"], "balance=ema: training without --penalty"),
            (["--set", "zeta=.2"], "zeta=.2: training without --penalty"),
            (["--where", "last"], "where=last: training without --penalty"),
            (["--set", "epochs"], "epochs: .*name=value"),
            (
                ["--recipe", "2"],
                "--recipe '2' is not a recipe; choose from topo",
            ),
            (["--penalty", "istar", "--where", "heads"], "--where 'heads' .*head_input, last, all"),
            (["--penalty", "cosreg", "--where", "1.5"], "--where 1.5 is not valid; .*such as 1,6"),
            (["--penalty", "cosreg", "--where", "9"], "hidden states 0 .*, not 9"),
            (["--set", "lr=1e30"], "became nan; lower lr"),
            (["--label", "mark"], "label='mark' is not a column"),
            (["--dev", "none.tsv"], "none.tsv"),
            (["--dev", "dev-name.tsv"], "dev-name.tsv has the label 'no'"),
        ],
    )
    def test_one_line_each(self, tables, checkpoint, options, message):
        line = ["finetune", "--model", checkpoint, "--train", "train.tsv", "--out", "a/b/c"]
        assert re.search(message, fail(*line, *options))
        assert not (tables / "a").exists()

    @pytest.mark.parametrize("options", [["--recipe", "2"], ["--penalty", "istar", "--where", "x"]])
    def test_what_is_wrong_is_said_before_anything_begins(self, tables, options):
        line = ["finetune", "--model", "none", "--train", "train.tsv", *options]
        completed = run(*line)
        assert completed.stdout == ""
        assert completed.stderr == f"{message_of(completed)}\n"

    @pytest.mark.parametrize(("option", "known"), [("penalty", PENALTIES), ("recipe", RECIPES)])
    def test_what_is_admissible_is_said_before_what_is_missing(self, option, known):
        near = next(iter(known))
        message = fail("finetune", f"--{option}", near[:-1])
        assert all(name in message for name in known)
        assert f"did you mean {near!r}?" in message
        assert "did you mean" not in fail("finetune", f"--{option}", "nope")

    def test_a_table_without_labels(self, tables, checkpoint):
        pd.DataFrame({"sentence": ["a", "b"]}).to_csv("bare.tsv", sep="\t", index=False)
        line = ["finetune", "--model", checkpoint, "--out", "a"]
        message = "bare.tsv has no column 'label'.*--label"
        assert re.search(message, fail(*line, "--train", "bare.tsv"))
        assert re.search(message, fail(*line, "--train", "train.tsv", "--dev", "bare.tsv"))

    def test_an_existing_folder(self, tables, checkpoint):
        line = ["finetune", "--model", checkpoint, "--train", "train.tsv", "--out", "a", *QUICK]
        succeed(*line)
        before = weights(tables / "a")
        assert "--out='a' exists" in fail(*line, "--set", "random_state=1")
        assert weights(tables / "a") == before
        succeed(*line, "--overwrite", "--set", "random_state=1")
        assert weights(tables / "a") != before
