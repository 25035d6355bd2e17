"""The comparison and its page as a user meets them."""

import hashlib
import html
import json
import re
import shlex
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from isoadapt import AdaptedEncoder, TeacherReadout, load_checkpoint
from isoadapt.cli import _compare
from isoadapt.interop import load_adapter
from isoadapt.metrics import retrieval_report, similarity_correlation
from isoadapt.model_selection import Comparison, compare_adapters
from isoadapt.model_selection._compare._compare_adapters import INTERRUPTED
from tests.cli.command_line import refuse, run, succeed, texts_and_labels, write_table
from tests.tiny_models import WORDS, save_model

pytestmark = pytest.mark.usefixtures("fixed_penalty")
MODEL = ["--model", "my-model"]
ALONE = ["dev.tsv", *MODEL, "--encoder-unseen", "--adapters", "whitening"]
BOTH = ["train.tsv", "--test", *ALONE]
TEXTS = [f"the {a} {b}" for a in WORDS[:18] for b in WORDS[:5]]
NAMES = ["LogitPreservingWhitening", "Whitening"]


def test_tables_figures_and_verdicts(files):
    train, dev = (texts_and_labels(f"{name}.tsv")[0] for name in ("train", "dev"))
    write_table("test.tsv", [*dev, *train[:5]], np.arange(95) % 3)
    options = ["--pairs", "pairs.tsv", "--foreign", "dev.tsv", "--max-length", 7]
    options += ["--encoder-saw", "--out", "out", "--cache", "fits"]
    adapters = [f"--adapters={name}" for name in NAMES]
    line = ["train.tsv", "--test", "test.tsv", *MODEL]
    completed = succeed("compare", *line, *options, *adapters)
    assert "5 of the 95 rows to judge on equal rows to fit to" in completed.stderr
    assert "Encoding 455 texts by my-model" in completed.stderr  # of all tables in one call
    verdict, *tables, controls, protocol = completed.stdout.split("\n\n")
    said = " ".join(controls.split())
    assert said.endswith("vectors), 'max softmax' (the head's largest probability).")
    assert protocol.startswith("Fitted to 90 rows and judged on 90 test rows")
    lines = completed.stdout.splitlines()
    for name in ("no adapter", "head refit only", *NAMES):
        assert sum(line.startswith(f"{name}  ") for line in lines) == len(tables) == 4
    assert sum(line.startswith("max softmax  ") for line in lines) == 1
    assert max(map(len, lines)) <= 100
    scores = [float(re.search(r"  (\d\.\d{4})  ", line)[1]) for line in tables[0].splitlines()[3:]]
    assert scores == sorted(scores, reverse=True)
    assert "p Holm" not in completed.stdout
    full = succeed("compare", *line, *options, *adapters, "--all").stdout
    assert "p Holm" in full
    assert sum(row.startswith("no adapter  ") for row in full.splitlines()) == 6
    verdict = verdict.replace("\n  ", " ").splitlines()
    starts = ["On classification, ", "For similarity, ", "For neighbours ", "For outliers, "]
    assert all(line.startswith(start) for line, start in zip(verdict, starts, strict=True))
    saved = json.loads((files / "out" / "comparison.json").read_text())
    assert [*saved["verdict"].values()] == verdict
    assert any((files / "fits").iterdir())
    found = {row["use"]: row for row in saved["rows"] if row["adapter"] == "no adapter"}
    encoder, head = load_checkpoint("my-model", max_length=7)
    score = head.score(encoder.transform(dev), np.arange(90) % 3)
    assert found["classify"]["score"] == pytest.approx(score)
    vectors = encoder.transform(train + dev)
    similar = similarity_correlation(vectors[:90], vectors[90:], np.arange(90) % 6)
    assert found["similarity"]["score"] == pytest.approx(similar, abs=1e-3)


def test_own_labels_a_new_head_and_notes(files):
    """What is printed stands in every result, and --quiet does not hide another classifier."""
    pytest.importorskip("matplotlib")
    save_model(files / "model", id2label={0: "so-so", 1: "bad", 2: "good"})
    labels = np.array(["middling", "awful", "fine"])
    write_table("t.tsv", TEXTS, labels[np.arange(90) % 3])
    line = ["compare", "t.tsv", "--model=model", "--adapters", NAMES[0], "--encoding", "utf-8"]
    refuse("y holds .*--class-names awful=…", *line)
    names = ["--class-names", "awful=bad,fine=good,middling=so-so"]
    options = ["--out", "out", "--html", "report.html", "--json"]
    completed = succeed(*line, *names, *options)
    notes = re.findall("^Note: (.*)$", completed.stderr, re.M)
    assert "encoder_saw=None" in notes[0]
    shown, saved = json.loads(completed.stdout), json.loads(Path("out/comparison.json").read_text())
    assert shown["notes"] == notes
    assert [*saved["notes"], notes[-1]] == notes
    assert "IsoScore" in notes[-1]  # which only the page shows
    page = html.unescape(Path("report.html").read_text("utf-8"))
    assert all(note in page for note in notes)
    encoder, head = load_checkpoint("model")
    own = dict(zip(head.classes_.tolist(), ["awful", "fine", "middling"], strict=True))
    predicted = [own[label] for label in head.predict(encoder.transform(TEXTS))]
    base = shown["rows"][0]
    assert base["score"] == pytest.approx(np.mean(predicted == labels[np.arange(90) % 3]))
    assert "the checkpoint's" not in shown["protocol"]
    refuse("--head must be a str", *line, "--head", "logit", status=2)
    new = succeed(*line, "--head", "logistic", "--quiet").stdout.replace("\n  ", " ")
    assert "The head is a new one, fitted to the training rows, not the checkpoint's." in new


def test_search_and_columns_with_names_of_their_own(files):
    """In one table of texts, and in three with names of rows: the numbers of rows, or ids."""
    texts = TEXTS[:80:2]
    asked = [texts[0], *TEXTS[3:80:2], texts[0]]  # which has two answers, itself and the last
    found = [*texts, texts[-1]]
    pd.DataFrame({"Query": asked, "document": found}).to_csv("one.tsv", sep="\t", index=False)
    write_table("documents.tsv", texts, np.arange(40), ["text", "other"])
    write_table("queries.csv", asked[:-1], [f"q{i}" for i in range(40)], ["text", "id"])
    pd.read_table("queries.csv").to_csv("queries.csv", index=False)
    names = {"query": [*(f"q{i}" for i in range(40)), "q0"], "document": [*range(1, 41), 40]}
    pd.DataFrame(names).to_csv("relevant.csv", index=False)
    three = ["--queries=queries.csv", "--documents=documents.tsv", "--relevant=relevant.csv"]
    write_table("p.tsv", TEXTS, np.arange(90) % 7, ["left", "right", "score"])
    pairs = ["--pairs=p.tsv", "--pairs-text", "left,right", "--pairs-score", "score"]
    rows = []
    for tables in (["--queries=one.tsv"], [*three, *pairs]):
        shown = json.loads(succeed("compare", *BOTH, *tables, "--json").stdout)["rows"]
        rows.append({row["use"]: row for row in shown if row["adapter"] == "no adapter"})
    encoder = load_checkpoint("my-model")[0]
    vectors = [encoder.transform(each) for each in (asked[:-1], texts)]
    expected = retrieval_report(*vectors, [[0, 39], *range(1, 40)]).mrr
    assert rows[0]["search"]["score"] == rows[1]["search"]["score"] == pytest.approx(expected)
    both = encoder.transform(TEXTS), encoder.transform(TEXTS[::-1])
    similar = similarity_correlation(*both, np.arange(90) % 7)
    assert rows[1]["similarity"]["score"] == pytest.approx(similar, abs=1e-3)
    names["document"][3] = 41
    pd.DataFrame(names).to_csv("relevant.csv", index=False)
    refuse("row 4: there is no query 'q3' or no document '41'", "compare", *BOTH, *three)


def test_it_ends_with_the_next_command(files, monkeypatch):
    credited = {"neighbours": ["Whitening"]}
    monkeypatch.setattr(Comparison, "credited", lambda _, use=None: credited.get(use, []))
    monkeypatch.setattr(_compare, "save_adapter", lambda *_, **__: None)
    command = shlex.join(["isoadapt", "compare", *BOTH])
    *_, step, line = succeed("compare", *BOTH).stdout.splitlines()
    assert step == "Next: save the best adapter for neighbours."
    assert line == f"  {command} --out my-comparison"
    line = succeed(*shlex.split(line)[1:]).stdout.splitlines()[-1]
    start = "isoadapt export my-comparison/best-for-neighbours --model my-model --out "
    assert line == f"  {start}my-exported-model"
    credited.clear()
    said = succeed("compare", *BOTH[:-2]).stdout  # with all adapters that need no teacher
    assert said.endswith("\n\nTeacherReadout was not judged: name the base model with --teacher.\n")


def test_an_interrupted_one_shows_and_saves_what_is_done_and_exits_with_130(files, monkeypatch):
    def best(self, use=None, same_predictions=False):
        name = NAMES[0] if same_predictions else NAMES[1]
        return None if use == "neighbours" else self.estimators[name]

    def interrupted(*arguments, **options):
        comparison = compare_adapters(*arguments, **options)
        comparison.notes.append(f"{INTERRUPTED} before these were done: IsoBN")
        return comparison

    monkeypatch.setattr(Comparison, "best_adapter", best)
    monkeypatch.setattr(_compare, "compare_adapters", interrupted)
    (files / "out" / "best-for-neighbours").mkdir(parents=True)
    options = ["--adapters", NAMES[0], "--out", "out", "--json"]
    completed = run("compare", *BOTH[:5], *BOTH[6:], *options)
    assert completed.code == 130
    rows = json.loads(completed.stdout)["rows"]
    assert {row["adapter"] for row in rows} > set(NAMES)
    assert {row["use"] for row in rows} == {"classify", "neighbours"}
    assert "Note: encoder_saw=None: it is not known" in completed.stderr
    assert "best-for-neighbours is of an earlier comparison" in completed.stderr
    said = "Not judged: similarity (--pairs), search (--queries), outliers (--foreign)"
    assert said in completed.stderr
    for ending, name in (("", NAMES[1]), ("-same-predictions", NAMES[0])):
        folder = files / "out" / f"best-for-classify{ending}"
        assert type(load_adapter(folder)).__name__ == name
        assert "- Data: source train.tsv, rows 90" in (folder / "README.md").read_text()


def test_the_page_has_the_figures_of_compare_and_audit(files, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(Comparison, "credited", lambda *_: ["Whitening"])  # which has a map
    completed = succeed("compare", *BOTH, "--html", "new/report.html", "--json")
    assert "Report: new/report.html" in completed.stderr
    page = (files / "new" / "report.html").read_text("utf-8")
    shown = json.loads(completed.stdout)
    for sentence in shown["verdict"].values():
        assert f"<p>{html.escape(sentence)}</p>" in page
    for row in shown["rows"]:
        assert f"<td>{row['adapter']}</td><td>{row['score']:.4f}</td>" in page
    audit = ["audit", "my-model", "dev.tsv", "--label", "label", "--json"]
    audit = json.loads(succeed(*audit).stdout)
    assert f"<td>{audit['isoscore']:.4g}</td>" in page
    assert f"label 2: n={audit['labels']['2']['n_samples']}," in page
    assert "Map before and after Whitening" in page
    digest = hashlib.sha256((files / "dev.tsv").read_bytes()).hexdigest()[:12]
    assert "Model: my-model; train.tsv (sha256 " in page
    assert f"dev.tsv (sha256 {digest})" in page
    assert f"Written on {datetime.now():%Y-%m-%d}" in page
    assert f"torch {version('torch')}" in page
    assert not any(text in page for text in texts_and_labels("dev.tsv")[0])


def test_what_the_page_of_a_regression_is_given(files, monkeypatch):
    pytest.importorskip("matplotlib")
    given = {}
    monkeypatch.setattr(_compare, "write_report", lambda page, **options: given.update(options))
    save_model(files / "model", num_labels=1, problem_type="regression")
    write_table("a.tsv", TEXTS, np.arange(90) % 3 + 0.5)
    texts = texts_and_labels("dev.tsv")[0]
    write_table("b.tsv", [*texts, *TEXTS[:5]], np.arange(95) % 3 + 0.5)
    line = ["a.tsv", "--test", "b.tsv", "--model", "model", *ALONE[3:]]
    succeed("compare", *line, "--html", "report.html", "--with-texts")
    assert sorted(given["texts"]) == sorted(texts)  # without those that are fitted to
    assert given["comparison"].uses[0] == "regress"
    assert not given["report"].to_dict().get("labels")


def test_a_teacher(files, monkeypatch):
    """The readout is the one that an AdaptedEncoder fits: aligned, and to general sentences too."""
    save_model(files / "base", kind="AutoModel")
    made = []

    def noted(*given, **options):
        made.append(compare_adapters(*given, **options))
        return made[0]

    monkeypatch.setattr(_compare, "compare_adapters", noted)
    line = ["compare", *BOTH[:6], "--adapters=teacher-readout", f"--adapters={NAMES[0]}"]
    completed = succeed(*line, "--teacher", "base", "--out", "out", "--html", "r.html", "--json")
    found = json.loads(completed.stdout)
    rows = {(row["use"], row["adapter"]): row for row in found["rows"]}
    assert {"TeacherReadout", "second pass", NAMES[0]} <= {name for _, name in rows}
    assert rows["classify", "TeacherReadout"]["changed_predictions"] == 0
    model = AdaptedEncoder("my-model", TeacherReadout(), "base")
    model.fit(texts_and_labels("train.tsv")[0])
    expected, found = model.pipeline_["adapter"], made[0].estimators["TeacherReadout"]
    assert found.ridge_ == pytest.approx(expected.ridge_)
    np.testing.assert_allclose(found.map_.matrix, expected.map_.matrix, atol=1e-4)
    assert model.r2_general_ > 0
