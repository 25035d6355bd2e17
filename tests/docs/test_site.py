"""What the site makes from the code: API pages, tables, and pictures."""

import json
import pkgutil
import re
from importlib import import_module

import pytest

import isoadapt
from docs import picture
from docs._ext import adapter_tables, api, drawing, results
from isoadapt.adapters._registry import VARIANTS


def test_every_exported_name_has_one_page():
    found = [each.name for each in pkgutil.walk_packages(isoadapt.__path__, "isoadapt.")]
    modules = [isoadapt, *(import_module(name) for name in found if "._" not in name)]
    exported = {
        id(getattr(module, name)): name
        for module in modules
        for name in getattr(module, "__all__", [])
    }
    pages = api.pages()
    index = pages.pop("index.rst")
    assert sorted(name.split(".")[-2] for name in pages) == sorted(exported.values())
    for name, page in pages.items():
        path = name.removesuffix(".rst")
        assert re.search(
            rf"^\.\. (autoclass|autofunction|py:data):: {re.escape(path)}$", page, re.M
        )
        assert index.count(f"<{path}>`") == 1
    assert ".. automethod:: to_affine\n" in pages["isoadapt.IsotropyLayer.rst"]


def test_the_measured_table_has_a_row_for_each_variant():
    table = adapter_tables.tables()["measured.txt"]
    assert table.count("\n   * - :class:") == len(VARIANTS)
    assert results.number(results.table("cola dev, n=")["no adapter"]["accuracy"]) == 0.742


def test_the_drawing_has_every_package_below_those_it_imports():
    graph = drawing.imports_between_packages()
    rows = {name: i for i, row in enumerate(drawing.levels(graph)) for name in row}
    assert rows.keys() == graph.keys()
    assert all(rows[name] > rows[other] for name in graph for other in graph[name])
    assert all(f">{name}</text>" in drawing.svg(graph) for name in graph)


def test_the_picture_of_the_readme_shows_the_stored_figures():
    if picture.PICTURE.read_text("utf-8") != picture.picture():
        pytest.fail("docs/_static/search.json changed: run python docs/picture.py")


@pytest.mark.slow
def test_the_picture_shows_what_a_search_finds(shared):
    model, train = shared / "models" / "cola-minilm", shared / "data" / "cola" / "train.tsv"
    found = picture.search(str(model), str(train))
    assert found == json.loads(picture.NEIGHBOURS.read_text("utf-8"))
