"""What importing the package costs, and what a fitted adapter needs."""

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import isoadapt
from isoadapt._utils.imports import lazy_names


def python(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )


def test_all_names_can_be_imported_at_once_and_load_nothing_heavy():
    completed = python(
        "import sys, isoadapt\n"
        "isoadapt.metrics.isoscore, isoadapt.geometry, isoadapt.encoders\n"
        "from isoadapt import *\n"
        "print(IsotropyLayer.__name__, load_checkpoint.__name__)\n"
        "import isoadapt.datasets, isoadapt.report\n"
        "from isoadapt.finetune import finetune_text_classifier, IsoBNLayer\n"
        "print(sorted(sys.modules))\n"
        "isoadapt.cli"
    )
    names, _, loaded = completed.stdout.partition("\n")
    assert names == "IsotropyLayer load_checkpoint", completed.stderr
    assert completed.returncode == 0, completed.stderr
    assert "'isoadapt.adapters'" in loaded
    for module in ("transformers", "zuko", "matplotlib", "typer", "lmdb", "accelerate", "datasets"):
        assert f"'{module}'" not in loaded


def test_import_of_the_package_alone_is_light():
    loaded = python("import sys, isoadapt\nprint(dir(isoadapt), sorted(sys.modules))").stdout
    assert "'IsotropyLayer'" in loaded
    assert "'metrics'" in loaded
    for module in ("torch", "sklearn", "numpy"):
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


def test_every_public_name_is_there():
    for name in isoadapt.__all__:
        assert getattr(isoadapt, name).__doc__


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


def test_without_zuko_only_the_flow_is_missing():
    completed = python(
        "import sys, warnings\n"
        "sys.modules['zuko'] = None  # importing it fails\n"
        "from isoadapt import FlowAdapter\n"
        "from isoadapt.model_selection import compare_adapters\n"
        "from isoadapt.adapters import _registry\n"
        "from sklearn.datasets import make_blobs\n"
        "X, y = make_blobs(60, 3, centers=2, random_state=0)\n"
        "for fit in (\n"
        "    FlowAdapter(max_epochs=1).fit,\n"
        "    lambda X: compare_adapters(X, y, adapters=['flow'], cv=2, encoder_saw=False),\n"
        "):\n"
        "    try:\n"
        "        fit(X)\n"
        "    except ImportError as error:\n"
        "        print(error)\n"
        "_registry.VARIANTS = _registry.VARIANTS[-7:]  # few that are slow\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    found = compare_adapters(X, y, adapters='all', cv=2, encoder_saw=False)\n"
        "print(*(str(each.message) for each in caught), sep=chr(10))\n"
        "print(sorted(found.estimators))"
    )
    *missing, notes, names = completed.stdout.splitlines()
    install = 'needs zuko, which is not installed: pip install "isoadapt[flow]"'
    assert missing == [f"FlowAdapter {install}"] * 2, completed.stderr
    assert notes == f"FlowAdapter is left out, because it {install}"
    assert "IsoBN, head refit" in names
    assert "Flow" not in names


def test_an_attribute_error_in_a_lazy_import_is_reported(monkeypatch):
    def broken(name):
        raise AttributeError("a dependency is broken")

    get_attribute, _ = lazy_names("isoadapt", {"Whitening": "isoadapt.adapters"})
    monkeypatch.setattr("importlib.import_module", broken)
    with pytest.raises(ImportError, match=r"isoadapt.adapters.*a dependency is broken"):
        get_attribute("Whitening")
