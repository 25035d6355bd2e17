"""Names that are imported on use, optional packages, warnings, the release and the mutations."""

import ast
import importlib
import inspect
import pkgutil
import re
import sys
import threading
import tomllib
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV

import isoadapt
from isoadapt import TopologicalEntropyAdapter
from isoadapt._utils.imports import import_optional, lazy_names
from isoadapt.adapters import _registry
from isoadapt.metrics import isotropy_report
from isoadapt.model_selection import compare_adapters
from tests.mutations import MUTATIONS, Mutation, check_texts

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def public_names():
    """Each exported name with its parameters and their defaults."""
    found = [each.name for each in pkgutil.walk_packages(isoadapt.__path__, "isoadapt.")]
    private = ("isoadapt.__main__", "isoadapt.cli")
    used = [name for name in found if "._" not in name and not name.startswith(private)]
    for module in map(importlib.import_module, ["isoadapt", *used]):
        for name in sorted(getattr(module, "__all__", [])):
            value, shown = getattr(module, name), ""
            if callable(value) and Exception not in getattr(value, "__mro__", ()):
                parameters = inspect.signature(value).parameters.values()
                shown = ", ".join(str(each.replace(annotation=each.empty)) for each in parameters)
            yield f"{module.__name__}.{name}({shown})"


def test_public_names_and_their_parameters_are_those_of_the_release():
    """A change of the list is a change for users, which CHANGELOG.md must name."""
    listed = Path(__file__).with_name("public_names.txt").read_text("utf-8")
    assert [*public_names()] == listed.splitlines()


def test_every_method_is_a_public_name():
    for package in ("isoadapt", "isoadapt.adapters"):
        assert {*_registry.NAMES.values()} <= set(importlib.import_module(package).__all__)


@pytest.mark.parametrize("package", ["", ".adapters", ".finetune"])
def test_type_checkers_read_the_names_that_are_imported_on_use(package):
    module = importlib.import_module(f"isoadapt{package}")
    assert set(module.__all__) <= set(dir(module))
    tree = ast.parse(Path(module.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    for statement in block.body:
        for alias in statement.names:
            source = importlib.import_module(statement.module)
            assert getattr(module, alias.name) is getattr(source, alias.name)
    with pytest.raises(AttributeError, match="has no attribute 'Isotropy'"):
        module.Isotropy  # noqa: B018


def test_missing_extras_and_broken_imports_are_one_message(monkeypatch):
    def broken(name):
        raise AttributeError("a dependency is broken")

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r'The picture needs matplotlib.*"isoadapt\[plot\]"'):
        import_optional("matplotlib.figure", feature="The picture", extra="plot")
    get_attribute, _ = lazy_names("isoadapt", {"Whitening": "isoadapt.adapters"})
    monkeypatch.setattr("importlib.import_module", broken)
    with pytest.raises(ImportError, match=r"isoadapt.adapters.*a dependency is broken"):
        get_attribute("Whitening")


X = np.random.default_rng(0).normal(size=(60, 4)) + 1e7
Y = np.arange(60) % 2


@pytest.mark.usefixtures("fixed_penalty")
def test_without_zuko_only_the_flow_is_missing(monkeypatch):
    imports_zuko = re.compile(r"zuko|isoadapt\.adapters\._flow\._(map|network)")
    for module in filter(imports_zuko.match, list(sys.modules)):
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "zuko", None)  # importing it fails
    monkeypatch.setattr(_registry, "VARIANTS", _registry.VARIANTS[-7:])  # few that are slow
    compare = partial(compare_adapters, X - 1e7, Y, cv=2, encoder_saw=False)
    install = r'FlowAdapter.* needs zuko, which is not installed: pip install "isoadapt\[flow\]"'
    with pytest.raises(ImportError, match=install):
        isoadapt.FlowAdapter().fit(X)
    with pytest.warns(UserWarning, match=r"FlowAdapter is left out, because it needs zuko"):
        found = compare("all").estimators
    assert "IsoBN, head refit" in found
    assert not any("Flow" in name for name in found)


def fit_in_a_search():
    adapter = TopologicalEntropyAdapter(max_epochs=1, batch_size=4)
    GridSearchCV(adapter, {"lam": [0.5]}, cv=2).fit(X, Y)


def measure():
    isotropy_report(X[:9])


@pytest.mark.parametrize(("call", "lines"), [(fit_in_a_search, 2), (measure, 1)])
def test_warnings_name_the_line_of_the_caller(call, lines):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
    assert len(caught) > 1
    assert {each.filename for each in caught} == {__file__}
    assert {each.lineno for each in caught} == {call.__code__.co_firstlineno + lines}


# What a release needs. Licences: `make release-check`.


def test_the_version_stands_in_one_place():
    assert PROJECT["project"]["dynamic"] == ["version"]
    path = ROOT / PROJECT["tool"]["hatch"]["version"]["path"]
    assert path == Path(isoadapt.__file__)
    assert f'__version__ = "{isoadapt.__version__}"' in path.read_text()
    assert f"## {isoadapt.__version__} " in (ROOT / "CHANGELOG.md").read_text()


def test_every_mutation_has_its_place_and_its_tests():
    check_texts(MUTATIONS)
    for mutation, problem in (
        (Mutation("heads.py", "no such text", "", "test_heads.py"), "occurs 0 times, not once"),
        (MUTATIONS[0]._replace(tests="test_absent.py"), "there is no tests/test_absent.py"),
    ):
        with pytest.raises(SystemExit, match=problem):
            check_texts([mutation])
