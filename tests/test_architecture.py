"""The source as a whole: which module may import which, what is exported, and its docstrings."""

import ast
import importlib
import inspect
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from numpydoc.validate import validate

import isoadapt

ROOT = Path(isoadapt.__file__).parent
# A package imports only from those that stand before it, their private modules too. The last four
# are leaves.
ORDER = ["_utils", "geometry", "losses", "heads", "metrics", "datasets", "encoders", "adapters"]
ORDER += ["_fit_rows", "adapted", "novelty", "model_selection", "finetune", "interop", "report"]
ORDER += ["cli"]
LEAVES = ["finetune", "interop", "report", "cli"]
MODULES = {
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}
TREES = {module: ast.parse(path.read_text()) for module, path in MODULES.items()}
# Not asked for: sections that would repeat a signature or a class, and the layout of one line.
ALLOWED = {"GL01", "GL08", "ES01", "SA01", "SA04", "EX01", "RT01", "RT02", "RT03", "YD01", "SS06"}
ALLOWED |= {"PR01", "PR02", "PR03"}  # trained adapters document their own parameters first


def _on_top(tree):
    """Statements that run when a module is imported."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.Lambda | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from _on_top(node)


def imports(module, everywhere=False):
    """Modules of isoadapt that a module imports when it is imported, or `everywhere` in it."""
    found = set()
    for node in ast.walk(TREES[module]) if everywhere else _on_top(TREES[module]):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("isoadapt"):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & MODULES.keys() or {node.module}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & MODULES.keys()
    return found


def package(module):
    """The package or module right below isoadapt that a module belongs to."""
    return [*module.split("."), ""][1]


def test_imports_go_down_only_and_leaves_are_imported_by_the_command_line_only():
    assert {package(module) for module in MODULES} - {"", "__main__"} == set(ORDER)
    wrong = []
    for module in MODULES:
        here = package(module)
        for other in imports(module) if here in ORDER else ():
            there = package(other)
            upward = there and ORDER.index(there) > ORDER.index(here)
            if upward or (there in LEAVES and here not in (there, "cli")):
                wrong.append(f"{module} imports {other}")
    assert not wrong


def test_no_modules_import_each_other_in_a_circle():
    """Imports in functions and for type checkers count; packages, and imports to draw, do not."""
    left_out = {module for module, path in MODULES.items() if path.name == "__init__.py"}
    drawing = {module for module in MODULES if package(module) == "report"}
    graph = {m: imports(m, everywhere=True) - left_out for m in MODULES.keys() - left_out}
    for module in graph:
        graph[module] -= set() if package(module) in ("report", "cli") else drawing
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_private_names_of_scikit_learn_are_imported_in_one_module():
    private = [
        module
        for module, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("sklearn")
        for alias in node.names
        if "._" in f".{node.module}.{alias.name}"
    ]
    assert set(private) == {"isoadapt._utils.sklearn_private"}


# Exported names have full numpydoc docstrings; everything else has one short paragraph.


@pytest.fixture(scope="module")
def names():
    """Names of the classes and functions in an `__all__`, and of their public methods."""
    found = set()
    public = [m for m in MODULES if not any(part.startswith("_") for part in m.split("."))]
    for module in map(importlib.import_module, public):
        for thing in (getattr(module, name) for name in getattr(module, "__all__", [])):
            members = inspect.getmembers(thing) if inspect.isclass(thing) else []
            for each in (thing, *(value for name, value in members if not name.startswith("_"))):
                each = inspect.unwrap(getattr(each, "fget", 0) or getattr(each, "__func__", each))
                if str(getattr(each, "__module__", "")).startswith("isoadapt"):
                    found.add(f"{each.__module__}.{getattr(each, '__qualname__', '')}".strip("."))
    return found


def docstrings(module):
    """Qualified names and docstrings of the classes and functions of a module."""

    def walk(node, prefix):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef):
                yield prefix + child.name, ast.get_docstring(child) or ""
                inner = "" if isinstance(child, ast.ClassDef) else "<locals>."
                yield from walk(child, f"{prefix}{child.name}.{inner}")

    yield from walk(TREES[module], f"{module}.")


def test_exported_names_have_full_docstrings(names):
    assert len(names) > 100
    functions = sorted(names & {name for module in MODULES for name, _ in docstrings(module)})
    found = {name: validate(name)["errors"] for name in functions}
    faults = [(name, *each) for name in found for each in found[name] if each[0] not in ALLOWED]
    assert not faults
