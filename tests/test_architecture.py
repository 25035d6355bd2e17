"""Which module may import which: the order of the packages, and what they export."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import isoadapt

ROOT = Path(isoadapt.__file__).parent
# A package imports only from those that stand before it, their private modules too. The last four
# are leaves.
ORDER = ["_utils", "geometry", "losses", "heads", "metrics", "datasets", "encoders", "adapters"]
ORDER += ["adapted", "model_selection", "finetune", "interop", "report", "cli"]
LEAVES = ["finetune", "interop", "report", "cli"]
MODULES = {
    ".".join(("isoadapt", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(
        ".__init__"
    ): path
    for path in sorted(ROOT.rglob("*.py"))
}


def imports(module, lazy):
    """Modules of isoadapt that a module imports, on top or, if `lazy`, inside functions too."""
    tree = ast.parse(MODULES[module].read_text())
    found = set()
    for node in ast.walk(tree) if lazy else _on_top(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("isoadapt"):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & MODULES.keys() or {node.module}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & MODULES.keys()
    return found


def _on_top(tree):
    """Statements that run when a module is imported; what is for type checkers does not."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.Lambda | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from _on_top(node)


def package(module):
    """The package or module right below isoadapt that a module belongs to."""
    return [*module.split("."), ""][1]


INSIDE = [module for module in MODULES if package(module) in ORDER]


def test_every_package_has_its_place():
    assert {package(module) for module in MODULES} - {"", "__main__"} == set(ORDER)


@pytest.fixture(scope="module")
def on_top():
    """For every module, the modules that it imports when it is imported."""
    return {module: imports(module, lazy=False) for module in MODULES}


def test_imports_go_down_only_and_leaves_are_imported_by_the_command_line_only(on_top):
    wrong = []
    for module in INSIDE:
        here = package(module)
        for there, other in ((package(other), other) for other in on_top[module]):
            upward = there and ORDER.index(there) > ORDER.index(here)
            if upward or (there in LEAVES and here not in (there, "cli")):
                wrong.append(f"{module} imports {other}")
    assert not wrong


def test_packages_export_only_the_names_that_they_list():
    wrong = [
        f"{package} re-exports {alias.asname or alias.name}"
        for package in ORDER
        if MODULES.get(f"isoadapt.{package}", Path()).name == "__init__.py"
        for node in ast.walk(ast.parse(MODULES[f"isoadapt.{package}"].read_text()))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith(f"isoadapt.{package}.")
        for alias in node.names
        if alias.asname == alias.name
    ]
    assert not wrong


def test_no_module_imports_itself_by_a_circle(on_top):
    graph = {
        module: on_top[module] - {module, module.rpartition(".")[0]}
        for module in MODULES
        if MODULES[module].name != "__init__.py"
    }
    TopologicalSorter(graph).prepare()
