"""The page of a comparison as a user meets it."""

import html
import json

import pandas as pd
import pytest

from isoadapt.model_selection import Comparison
from tests.cli.command_line import fail, succeed
from tests.tiny_models import save_model

pytest.importorskip("matplotlib")
pytestmark = pytest.mark.usefixtures("fixed_penalty")


@pytest.fixture(scope="module")
def arguments(tables, checkpoint):
    files = [tables / "train.tsv", "--test", tables / "dev.tsv", "--model", checkpoint]
    return [*files, "--encoder-unseen", "--adapters", "whitening"]


def test_the_page_has_the_figures_of_compare_and_audit(
    arguments, tables, checkpoint, tmp_path, monkeypatch
):
    monkeypatch.setattr(Comparison, "credited", lambda *_: ["Whitening"])  # so that there is a map
    out = tmp_path / "new" / "report.html"
    completed = succeed("report", *arguments, "--out", out, "--json")
    assert f"Report: {out}" in completed.stderr
    page = out.read_text("utf-8")
    shown = json.loads(completed.stdout)
    assert shown == json.loads(succeed("compare", *arguments, "--json").stdout) | {
        "rows": shown["rows"]  # the times of the fits differ
    }
    for sentence in shown["verdict"].values():
        assert f"<p>{html.escape(sentence)}</p>" in page
    for row in shown["rows"]:
        assert f"<td>{row['adapter']}</td><td>{row['score']:.4f}</td>" in page
    dev = tables / "dev.tsv"
    audit = json.loads(succeed("audit", checkpoint, dev, "--label", "label", "--json").stdout)
    for name in ("isoscore", "isoscore_corrected", "ev1", "two_nn", "mean_cosine", "hubness"):
        assert f"<td>{audit[name]:.4g}</td>" in page
    assert all(
        f"label {name}: n={part['n_samples']}," in page for name, part in audit["labels"].items()
    )
    assert "Map before and after Whitening" in page
    texts = pd.read_csv(dev, sep="\t")["sentence"].tolist()
    assert not any(text in page for text in texts)
    succeed("report", *arguments, "--out", out, "--with-texts")
    assert all(f": {text}</title>" in out.read_text("utf-8") for text in texts)


def test_values_have_no_classes(tables, tmp_path):
    model = save_model(tmp_path / "model", num_labels=1, problem_type="regression")
    for name in ("train.tsv", "dev.tsv"):
        table = pd.read_csv(tables / name, sep="\t")
        table.assign(label=table["label"] + 0.5).to_csv(tmp_path / name, sep="\t", index=False)
    files = [tmp_path / "train.tsv", "--test", tmp_path / "dev.tsv", "--model", model]
    options = ["--encoder-unseen", "--adapters", "whitening"]
    succeed("report", *files, *options, "--out", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "On regression, " in page
    assert "label " not in page.partition("</style>")[2].replace("aria-label", "")


def test_a_failure_leaves_no_file(arguments, tmp_path):
    assert "is not a file" in fail("report", tmp_path / "absent.tsv", *arguments[1:])
    assert [*tmp_path.iterdir()] == []
    folder = tmp_path / "report.html"
    folder.mkdir()
    for out in (folder, tmp_path / "report"):
        assert "must be a file whose name ends in .html" in fail("report", *arguments, "--out", out)
    assert [*tmp_path.iterdir()] == [folder]
