"""What the site makes from the code: API pages, tables, and pictures."""

import json
import pkgutil
import re
from importlib import import_module

import numpy as np
import pytest

import isoadapt
from docs import picture
from docs._ext import adapter_tables, api, drawing, results
from isoadapt import LinearHead, LogitPreservingWhitening
from isoadapt.adapters._registry import VARIANTS
from tests.docs.blocks import README, ROOT


def test_every_exported_name_has_one_page():
    found = [each.name for each in pkgutil.walk_packages(isoadapt.__path__, "isoadapt.")]
    public = [name for name in found if "._" not in name]
    modules = [isoadapt, *map(import_module, public)]
    exported = {
        id(getattr(module, name)): name
        for module in modules
        for name in getattr(module, "__all__", [])
    }
    pages = api.pages()
    documented = [name for name in pages if name != "index.rst"]
    assert sorted(name.split(".")[-2] for name in documented) == sorted(exported.values())
    for name in documented:
        path = name.removesuffix(".rst")
        assert re.search(
            rf"^\.\. (autoclass|autofunction|py:data):: {re.escape(path)}$", pages[name], re.M
        )
        assert pages["index.rst"].count(f"<{path}>`") == 1


def test_pages_of_classes_list_their_methods():
    page = api.pages()["isoadapt.IsotropyLayer.rst"]
    for method in ("fit", "transform", "predict", "to_affine"):
        assert f".. automethod:: {method}\n" in page
    assert "set_fit_request" not in page


def test_the_measured_table_has_a_row_for_each_variant():
    table = adapter_tables.tables()["measured.txt"]
    assert table.count("\n   * - :class:") == len(VARIANTS)
    assert results.number(results.table("cola dev, n=")["no adapter"]["accuracy"]) == 0.742


@pytest.mark.parametrize(
    ("name", "vectors"),
    [
        ("uses.txt", ["LogitPreservingWhitening, own", "TeacherReadout (", "teacher, "]),
        ("classifiers.txt", ["layers of TeacherReadout", "TeacherReadout (", "teacher, "]),
    ],
)
def test_the_tables_of_uses_show_the_stored_figures(name, vectors):
    """Cells of neighbouring columns, for the classifier of CoLA."""
    stored = results.rows("checkpoint | vectors")
    rows = [row for row in stored if row["checkpoint"] == "cola-minilm"]
    shown = [next(row for row in rows if row["vectors"].startswith(start)) for start in vectors]
    for column in ("STS-B", "outliers, AUROC"):
        cells = [f"     - {row[column].split(' ')[0]}\n" for row in shown]
        assert "".join(cells) in adapter_tables.tables()[name]


@pytest.mark.parametrize(
    ("checkpoint", "vectors", "column", "said"),
    [
        ("cola-minilm", "Whitening, head W A⁻¹", "STS-B", "0.713 for :class:`~isoadapt.Whitening`"),
        (
            "cola-minilm",
            "AllButTheTop, logistic head",
            "STS-B",
            "0.707 for :class:`~isoadapt.AllBut",
        ),
        (
            "cola-minilm",
            'TeacherReadout, space="head"',
            "STS-B",
            "all texts the correlation is .791",
        ),
        ("cola-minilm", "TeacherReadout, last layer alone", "STS-B", "last layer alone it is .775"),
        ("cola-minilm", "TeacherReadout", "RTE MRR@10", "search on RTE rises from .754"),
        ("cola-minilm, with WikiText", "TeacherReadout", "RTE MRR@10", "from .754 to .803"),
        ("cola-minilm, teacher paraphrase-l3", "TeacherReadout", "STS-B", "-L3-v2, gives .765"),
        ("cola-l3", "TeacherReadout, last layer alone", "STS-B", "reaches its teacher's .824"),
        ("phenomenon-12-minilm", "best raw layer", "STS-B", "adapter, reach 0.555 on STS-B"),
        ("phenomenon-12-minilm, with WikiText", "TeacherReadout", "STS-B", "readout reaches 0.732"),
    ],
)
def test_figures_in_the_text_of_the_results_page(checkpoint, vectors, column, said):
    stored = {
        (row["checkpoint"], row["vectors"].split(" (")[0]): row[column]
        for row in results.rows("checkpoint | vectors")
    }
    text = " ".join((ROOT / "docs" / "guide" / "results.rst").read_text("utf-8").split())
    figure = stored[checkpoint, vectors].split(" ")[0]
    assert said in text
    assert figure.removeprefix("0") in said


def test_the_drawing_has_every_package_below_those_it_imports():
    graph = drawing.imports_between_packages()
    rows = {name: i for i, row in enumerate(drawing.levels(graph)) for name in row}
    assert rows.keys() == graph.keys()
    assert all(rows[name] > rows[other] for name in graph for other in graph[name])
    svg = drawing.svg(graph)
    assert all(f">{name}</text>" in svg for name in graph)


def test_the_picture_of_the_readme_shows_the_stored_figures():
    if picture.PICTURE.read_text("utf-8") != picture.picture():
        pytest.fail("docs/_static/search.json changed: run python docs/picture.py")


@pytest.mark.slow
def test_the_picture_shows_what_a_search_finds(shared):
    found = picture.search(
        str(shared / "models" / "cola-minilm"), str(shared / "data" / "cola" / "train.tsv")
    )
    assert found == json.loads(picture.NEIGHBOURS.read_text("utf-8"))


def test_the_table_of_the_readme_shows_the_stored_figures():
    """Rows of one checkpoint have its name in the first column and their vectors in the second."""
    lines = results.RESULTS.read_text("utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines]
    header = next(row for row in cells if row[:2] == ["checkpoint", "vectors"])
    stored = {row[1].split(" (")[0]: row for row in cells if row[0] == "cola-minilm"}
    vectors = ["raw", "LogitPreservingWhitening, own texts", "TeacherReadout"]
    vectors.append("teacher, logistic head")
    for shown, column in {
        "similarity": "STS-B",
        "search: a hypothesis of RTE": "RTE MRR@10",
        "search in an index": "teacher's index, MRR@10",
        "outliers": "outliers, AUROC",
        "predictions changed, of 1,043": "changed",
    }.items():
        line = next(line for line in README.read_text("utf-8").splitlines() if f"| {shown}" in line)
        figures = [stored[name][header.index(column)].split(" ")[0] for name in vectors]
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert [cell.split(",")[0] for cell in cells[1:]] == figures


def test_predictions_that_rounding_changes_as_the_guide_says(shared):
    found = []
    for task, split in (
        ("cola", "dev"),
        ("mrpc", "test"),
        ("rte", "dev"),
        ("sst2_sentence", "test"),
    ):
        with np.load(shared / "embeddings" / f"{task}.npz") as stored:
            train, rows = (stored[f"E_{name}"].astype(np.float32) for name in ("train", split))
            head = LinearHead(stored["W"], stored["b"], [0, 1])
        adapter = LogitPreservingWhitening(head).fit(train)
        train, rows = adapter.transform(train), adapter.transform(rows)
        least, step = train.min(0), np.ptp(train, 0) / 255
        rounded = least + step * np.clip(np.round((rows - least) / step), 0, 255)
        changed = int((head.predict(rounded) != head.predict(rows)).sum())
        found.append(f"{changed} of {len(rows):,}")
    cola, mrpc, rte, sst2 = found
    text = " ".join((ROOT / "docs" / "guide" / "results.rst").read_text("utf-8").split())
    assert f"{cola} predictions on CoLA changed, {mrpc} on MRPC, {rte} on RTE and {sst2} on" in text


def test_share_of_large_cosines_that_the_guide_gives(shared):
    found = {}
    for task in ("cola", "mrpc", "sst2_sentence", "rte"):
        with np.load(shared / "embeddings" / f"{task}.npz") as stored:
            rows = stored["E_dev"].astype(np.float64)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        cosines = (rows @ rows.T)[np.triu_indices(len(rows), 1)]
        found[task] = round(100 * float((np.abs(cosines) > 0.9).mean()))
    *three, rte = found.values()
    text = " ".join((ROOT / "docs" / "guide" / "isotropy.rst").read_text("utf-8").split())
    assert f"between {min(three)} and {max(three)} % of them lie beyond ±.9" in text
    assert f"({rte} % on RTE)" in text
