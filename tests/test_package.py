"""What importing the package costs, and what a fitted adapter needs."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from sklearn.datasets import make_blobs

import isoadapt
from isoadapt._utils.imports import lazy_names
from isoadapt.adapters import _registry
from isoadapt.model_selection import compare_adapters


def test_all_names_can_be_imported_at_once_and_load_nothing_heavy():
    code = (
        "import sys, isoadapt\n"
        "print(dir(isoadapt), sorted(sys.modules))\n"
        "isoadapt.metrics.isoscore, isoadapt.geometry, isoadapt.encoders\n"
        "from isoadapt import *\n"
        "print(IsotropyLayer.__name__, load_checkpoint.__name__)\n"
        "import isoadapt.datasets, isoadapt.report\n"
        "from isoadapt.finetune import finetune_text_classifier, IsoBNLayer\n"
        "print(sorted(sys.modules))\n"
        "isoadapt.cli"
    )
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stderr
    alone, names, loaded = completed.stdout.splitlines()
    assert "'IsotropyLayer'" in alone
    assert "'metrics'" in alone
    for module in ("torch", "sklearn", "numpy"):
        assert f"'{module}'" not in alone
    assert names == "IsotropyLayer load_checkpoint"
    assert "'isoadapt.adapters'" in loaded
    for module in ("transformers", "zuko", "matplotlib", "typer", "lmdb", "accelerate", "datasets"):
        assert f"'{module}'" not in loaded


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
    assert {alias.name for statement in block.body for alias in statement.names} <= {*dir(module)}
    with pytest.raises(AttributeError, match="has no attribute 'Isotropy'"):
        module.Isotropy  # noqa: B018


@pytest.mark.parametrize(
    "function",
    [
        isoadapt.LinearHead,
        isoadapt.LinearHead.fit,
        isoadapt.AdaptedEncoder.fit,
        isoadapt.metrics.isoscore,
        isoadapt.metrics.isotropy_report,
        isoadapt.geometry.persistence_bars,
        isoadapt.geometry.Moments,
        isoadapt.model_selection.AdapterSearchCV.fit,
    ],
)
def test_help_shows_short_names_of_types(function):
    assert "numpy._typing" not in str(inspect.signature(function))


def test_missing_extra_is_one_message(monkeypatch):
    from isoadapt._utils.imports import import_optional

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r'The picture needs matplotlib.*"isoadapt\[plot\]"'):
        import_optional("matplotlib.figure", feature="The picture", extra="plot")


def test_without_zuko_only_the_flow_is_missing(monkeypatch):
    imports_zuko = re.compile(r"zuko|isoadapt\.adapters\._flow\._(map|network)")
    for module in filter(imports_zuko.match, list(sys.modules)):
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "zuko", None)  # importing it fails
    monkeypatch.setattr(_registry, "VARIANTS", _registry.VARIANTS[-7:])  # few that are slow
    X, y = make_blobs(60, 3, centers=2, random_state=0)
    compare = partial(compare_adapters, X, y, cv=2, encoder_saw=False)
    install = r'needs zuko, which is not installed: pip install "isoadapt\[flow\]"'
    for fit in (partial(isoadapt.FlowAdapter().fit, X), partial(compare, "flow")):
        with pytest.raises(ImportError, match=f"FlowAdapter {install}"):
            fit()
    with pytest.warns(UserWarning, match=f"FlowAdapter is left out, because it {install}"):
        found = compare("all").estimators
    assert "IsoBN, head refit" in found
    assert not any("Flow" in name for name in found)


def test_an_attribute_error_in_a_lazy_import_is_reported(monkeypatch):
    def broken(name):
        raise AttributeError("a dependency is broken")

    get_attribute, _ = lazy_names("isoadapt", {"Whitening": "isoadapt.adapters"})
    monkeypatch.setattr("importlib.import_module", broken)
    with pytest.raises(ImportError, match=r"isoadapt.adapters.*a dependency is broken"):
        get_attribute("Whitening")
