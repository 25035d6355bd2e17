"""Every module of the benchmarks that another one imports is part of the project."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_imported_modules_of_the_benchmarks_exist():
    modules = list((ROOT / "benchmarks").rglob("*.py"))
    assert modules
    imported = {name for module in modules for name in _imported(module)}
    assert not [name for name in imported if not _exists(name)]


def _imported(module):
    for node in ast.walk(ast.parse(module.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("benchmarks."))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "benchmarks":
            if (_path(node.module) / "__init__.py").is_file():
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            else:
                yield node.module


def _path(name):
    return ROOT.joinpath(*name.split("."))


def _exists(name):
    return _path(name).with_suffix(".py").is_file() or (_path(name) / "__init__.py").is_file()
