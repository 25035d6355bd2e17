"""What the site makes from the code; its figures are those of RESULTS.md or of real embeddings."""

import json
import pkgutil
import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import isoadapt
from benchmarks.quality._adapter_rows import RECORDED
from docs import picture
from docs._ext import api, drawing, gallery
from isoadapt import adapted
from isoadapt.adapters._registry import VARIANTS
from isoadapt.datasets import minilm_folder
from isoadapt.model_selection._compare._paired_tests import clusters, corrected_t, mcnemar, mean
from tests import stored_results as results
from tools import page_figures

ROOT = Path(__file__).parents[2]


ALIGNED = ", aligned tokens"


def page(name):
    return " ".join((ROOT / "docs" / "guide" / f"{name}.md").read_text("utf-8").split())


def tables(file):
    """Rows of cells of each table of a page, the heading first."""
    text = (ROOT / file).read_text("utf-8")
    found = [block.splitlines() for block in re.findall(r"(?:^\|.*\n)+", text, re.M)]
    cells = [[[cell.strip() for cell in row[1:-1].split(" |")] for row in rows] for rows in found]
    return [[head, *rows] for head, _, *rows in cells]


def stored():
    """Figures of the tables of classifiers, by checkpoint and vectors."""
    found = {
        (case, vectors): row
        for case in ("clinc150-minilm", "cola-minilm")
        for vectors, row in results.table(f"{case} |").items()
    }
    columns = ["STS-B", "RTE MRR@10", "outliers, AUROC", "same class, precision@10"]
    for case, row in results.table("other classifiers").items():
        for vectors, cell in row.items():
            figures = cell.split(" · ") if cell else [""] * len(columns)
            found[case, vectors] = dict(zip(columns, figures, strict=True))
    return found


@pytest.mark.parametrize(
    ("checkpoint", "vectors", "column", "said"),
    [
        ("clinc150", ', space="head"', "STS-B", "CLINC150 reaches {}"),
        ("cola", f"{ALIGNED}, of paraphrase-l3", "STS-B", "L3-v2, gives {} with an aligned layer"),
        ("clinc150", ALIGNED, "own task, logistic head", "the aligned vectors is right in {}"),
        ("clinc150", None, "own task", "the classifier itself in {}"),
    ],
)
def test_the_text_of_the_results_page(checkpoint, vectors, column, said):
    case, name = f"{checkpoint}-minilm", f"TeacherReadout{vectors}" if vectors else "raw"
    means = results.table("means of three seeds")
    row = means.get(f"{case}, {name}") or stored()[case, name]
    assert said.format(row[column].split(" ± ")[0]) in page("results")


@pytest.mark.parametrize("file", ["README.md", "docs/index.md"])
def test_the_table_of_the_readme_and_the_home_page(file):
    [[head, *rows]] = tables(file)
    for label, *cells in rows:
        [column] = [USES[start] for start in USES if label.startswith(start)]
        [case] = [CLASSIFIERS[name] for name in CLASSIFIERS if label.endswith(f", {name}")]
        means = results.table("means of three seeds")
        found = means if case == "clinc150-minilm" else stored()
        keys = [(case, README_VECTORS[name]) for name in head[1:]]
        shown = [found[", ".join(key) if found is means else key][column] for key in keys]
        assert cells == [each.split(" ± ")[0] for each in shown]


def test_the_tables_of_the_grid_search_page():
    rows = {name: cells for table in tables("docs/guide/grid_search.md") for name, *cells in table}
    candidates = (("0.1", "0.2"), ("10", "0.2"), ("10", "0.8"))
    named = {f"`lam={lam}, zeta={zeta}`": (lam, zeta) for lam, zeta in candidates}
    for row, (lam, zeta) in {"`lam=0`, the control": ("0", "0.2"), **named}.items():
        found = results.table("lam: accuracy")[str(float(lam))]
        pairs = (found[f"{task}, zeta={zeta}"].split(" · ") for task in ("cola", "mrpc"))
        assert rows[row] == [f"{results.number(text):.3f}" for pair in pairs for text in pair]
    for rule in ('refit="accuracy"', "one standard error", "BestAboveFloor, 0.3"):
        [shown] = [cells for name, cells in rows.items() if name.replace("`", "") == rule]
        assert shown == list(results.table("rules |")[rule].values())[2:]


def p_of_folds(differences, rng):
    """p-value of 5 folds that are repeated 3 times."""
    folds = [np.array_split(rng.permutation(differences), 5) for _ in range(3)]
    means = np.array([fold.mean() for repeat in folds for fold in repeat])
    return corrected_t(mean(means), 0.25).p_value


def test_the_advised_numbers_of_rows_have_a_power_of_80_percent():
    """For each difference, three shares of discordant rows on test rows and in three repeats."""
    [[_, *rows]] = tables("docs/guide/appendix.md")
    assert len(rows) == 4
    rng = np.random.default_rng(0)
    for points, *cells in (rows[1], rows[3]):
        for place, cell in enumerate(cells):
            share, n = (0.05, 0.10, 0.20)[place % 3], int(cell.replace(",", ""))
            better = (share + int(points[0]) / 100) / 2
            found = []
            for _ in range(150):  # the difference of the correctness of two classifiers
                values = rng.choice([1.0, -1.0, 0.0], size=n, p=[better, share - better, 1 - share])
                of_rows = mcnemar(mean(values), clusters(np.arange(n)))
                found.append(of_rows.p_value if place < 3 else p_of_folds(values, rng))
            assert 0.70 < np.mean(np.array(found) < 0.05) < 0.92, (points, place)


def test_the_figures_of_the_pages_are_those_of_the_records(capsys):
    assert page_figures.main() == 0, capsys.readouterr().out
    numbers = {"0.8349", "12"}
    assert [page_figures.is_said(each, numbers) for each in ("0.83", ".835", "0.84")] == [1, 1, 0]


def test_every_exported_name_has_one_page():
    found = [each.name for each in pkgutil.walk_packages(isoadapt.__path__, "isoadapt.")]
    used = [name for name in found if "._" not in name and not name.startswith("isoadapt.cli")]
    modules = [isoadapt, *map(import_module, used)]
    names = ((module, name) for module in modules for name in getattr(module, "__all__", []))
    exported = {id(getattr(module, name)): name for module, name in names}
    pages = api.pages()
    index = pages.pop("index.rst")
    assert sorted(name.split(".")[-2] for name in pages) == sorted(exported.values())
    for name, page in pages.items():
        path = name.removesuffix(".rst")
        directive = rf"^\.\. (autoclass|autofunction|py:data):: {re.escape(path)}$"
        assert re.search(directive, page, re.M)
        assert index.count(f"<{path}>`") == 1
    assert ".. automethod:: to_affine\n" in pages["isoadapt.IsotropyLayer.rst"]


CONTROLS = ["no adapter", "head refit only", "same layer, no penalty"]
VECTORS = {"raw": "raw", "mean": "mean pooling", "mean, whitened": "mean pooling, whitened"}
VECTORS |= {"preserving": "LogitPreservingWhitening", "aligned": "TeacherReadout, aligned tokens"}
VECTORS |= {"base": "base model"}
README_VECTORS = ["classifier", "mean pooling", "whitened mean pooling"]
README_VECTORS += ["`LogitPreservingWhitening`", "`TeacherReadout`", "base model"]
README_VECTORS = dict(zip(README_VECTORS, VECTORS.values(), strict=True))
USES = {
    "similarity: STS-B": "STS-B",
    "search: RTE": "RTE MRR@10",
    "search in the base's index": "base's index, MRR@10",
    "paraphrase found first": "MRPC recall@1",
    "similarity from 1 bit": "1 bit, sign",
    "the same, split at the median": "1 bit, median",
    "outliers": "outliers, AUROC",
    "hubness": "hubness",
    "neighbours of the same class": "same class, precision@10",
    "own task, logistic": "own task, logistic head",
    "own task, head": "own task",
    "predictions changed": "changed",
}
DEEPER = {"Banking77, MPNet": "banking77-mpnet-light |", "CoLA, SmolLM2": "cola-smollm2-light |"}
DEEPER_USES = {"similarity: STS-B": "STS-B", "own texts in the base's index": "own texts in the"}
DEEPER_USES |= {"neighbours of the same class": "same class", "passes": "passes"}
DEEPER_USES |= {"predictions changed": "changed"}
DEEPER_VECTORS = [*VECTORS.values()]
DEEPER_VECTORS[4:5] = ["TeacherReadout, pooled states", VECTORS["aligned"]]
DEEPER_VECTORS[6:6] = [f"{VECTORS['aligned']} of two layers"]
CLASSIFIERS = {"CLINC150": "clinc150-minilm", "Banking77": "banking77-minilm"}
CLASSIFIERS |= {"CoLA": "cola-minilm", "MRPC": "mrpc-minilm", "SST-2": "sst2-minilm"}
CLASSIFIERS |= {"CoLA, three layers": "cola-l3", "twelve classes": "phenomenon-12-minilm"}


def test_the_tables_of_the_results_page_are_those_of_the_benchmarks():
    first, second, *by_use, seeded, deeper, _, _, _, measured = tables("docs/guide/results.md")
    for case, uses in (("clinc150-minilm", first), ("cola-minilm", second)):
        (_, *vectors), *rows = uses
        assert len(rows) == len(USES) - (case == "cola-minilm")  # no logistic head
        for label, *cells in rows:
            [column] = [USES[start] for start in USES if label.startswith(start)]
            assert cells == [stored()[case, VECTORS[each]][column] for each in vectors]
    columns = [USES[each] for each in (*[*USES][:2], "outliers", "neighbours of the same class")]
    for column, ((_, *vectors), *rows) in zip(columns, by_use, strict=True):
        assert [name for name, *_ in rows] == [*CLASSIFIERS]
        for name, *cells in rows:
            found = [stored()[CLASSIFIERS[name], VECTORS[each]][column] for each in vectors]
            assert cells == found
    (_, *vectors), *rows = seeded
    for label, *cells in rows:
        name, _, use = label.partition(", ")
        [column] = [USES[start] for start in USES if use.startswith(start)]
        means = [
            results.table("means of three seeds")[f"{CLASSIFIERS[name]}, {VECTORS[each]}"][column]
            for each in vectors
        ]
        assert cells == [each.split(" ± ")[0] for each in means]
    for label, *cells in deeper[1:]:
        name, _, use = label.rpartition(", ")
        known = results.table(DEEPER[name])
        [column] = [each for each in known["raw"] if each.startswith(DEEPER_USES[use])]
        assert cells == [known.get(row, {}).get(column, "") for row in DEEPER_VECTORS]
    (_, *columns), *rows = measured
    names = [*CONTROLS, *(each.name for each in VARIANTS)]
    assert [name.replace("`", "") for name, *_ in rows] == names
    known = results.table("cola dev, n=")
    for name, *cells in rows:
        name = name.replace("`", "")
        row = known.get(RECORDED.get(name, name), dict.fromkeys(columns, "not measured"))
        assert cells == [row[each.removeprefix("IsoScore, ")] for each in columns]


def test_the_drawing_has_every_package_below_those_it_imports():
    graph = drawing.imports_between_packages()
    rows = {name: i for i, row in enumerate(drawing.levels(graph)) for name in row}
    assert rows.keys() == graph.keys()
    assert all(rows[name] > rows[other] for name in graph for other in graph[name])
    if drawing.PICTURE.read_text("utf-8") != drawing.svg():
        pytest.fail("the imports changed: run python -m docs._ext.drawing")


def test_the_pictures_show_the_stored_figures():
    for name, columns in picture.PICTURES.items():
        if (picture.STATIC / name).read_text("utf-8") != picture.picture(columns):
            pytest.fail("docs/_static/search.json changed: run python docs/picture.py")


@pytest.mark.parametrize(
    "example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem
)
def test_the_thumbnail_of_an_example_that_did_not_run_is_its_code(example):
    lines = gallery.code(example)
    assert len([line for line in lines if line.strip()]) > 3
    assert not [line for line in lines if line.startswith(("import ", "from ", "checkpoint = "))]


@pytest.mark.slow
def test_the_picture_shows_what_a_search_finds(shared, monkeypatch):
    n, share = adapted.ALIGNED
    monkeypatch.setattr(adapted, "ALIGNED", (5 * n, share))  # as many as without the tests
    model, train = shared / "models" / "cola-minilm", shared / "data" / "cola" / "train.tsv"
    found = picture.search(str(model), str(train), str(minilm_folder()))
    assert found == json.loads(picture.NEIGHBOURS.read_text("utf-8"))
