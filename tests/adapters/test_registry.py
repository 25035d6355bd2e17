"""The registry of adapters agrees with the package, the tests, docstrings and documentation."""

import ast
import inspect
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
from numpydoc.docscrape import ClassDoc

import isoadapt
from isoadapt import AffineAdapter, LinearHead, PenaltyAdapter, TeacherReadout, adapters
from isoadapt.adapters import Affine
from isoadapt.adapters._base import BaseAdapter
from isoadapt.adapters._registry import METHODS, MODULES, NAMES, NEED_TEACHER, VARIANTS
from isoadapt.finetune._penalties import PENALTIES
from tests.adapters.test_common import ADAPTERS as SWEEP, ONE_OF_EACH

IN_CODE = {"AffineAdapter", "PenaltyAdapter"}  # which the command line cannot make
CLASSES = [*(getattr(adapters, name) for name in MODULES), AffineAdapter, PenaltyAdapter]
PAGE = Path(__file__).parents[2] / "docs" / "guide" / "choosing.md"


def test_registry_and_common_tests_contain_every_public_adapter():
    public = {name: getattr(adapters, name) for name in adapters.__all__}
    found = {name for name, each in public.items() if issubclass(each, BaseAdapter)}
    assert found == MODULES.keys() | IN_CODE
    assert set(adapters.__all__) - found == {Affine.__name__}
    assert found <= set(isoadapt.__all__)
    for tested in (SWEEP, ONE_OF_EACH):
        assert set(map(type, tested)) == {*CLASSES}


def test_each_method_has_one_name_derived_from_its_class_and_one_row_in_short_tables():
    for name, cls in NAMES.items():
        assert name.replace("-", "") == cls.lower().removesuffix("adapter")
    assert [*NAMES.values()] == list(MODULES)
    assert NAMES.keys() - METHODS.keys() == NEED_TEACHER
    assert PENALTIES.keys() - METHODS.keys() == {"anchor"}
    brief = [each.name for each in VARIANTS if each.brief]
    assert len({each.name for each in VARIANTS}) == len(VARIANTS)
    for name in METHODS.values():
        assert sum(row.startswith(name) for row in brief) == 1


def test_docs_have_a_row_and_a_use_for_every_adapter():
    uses, table = PAGE.read_text("utf-8").split("## By use\n")[1].split("## All adapters\n")
    named = set(re.findall(r"`(\w+)`", uses)) & set(adapters.__all__)
    assert named == MODULES.keys() | IN_CODE
    rows = re.findall(r"^\| `(\w+)`", table.split("## What can be lost")[0], re.M)
    assert set(rows) == MODULES.keys()


@pytest.mark.parametrize("adapter", CLASSES)
class TestDocstrings:
    def test_every_parameter_is_documented_with_its_default(self, adapter):
        parameters = inspect.signature(adapter).parameters
        documented = ClassDoc(adapter)["Parameters"] + ClassDoc(adapter)["Other Parameters"]
        assert sorted(name for name, *_ in documented) == sorted(parameters)
        for name, kind, _ in documented:
            _, _, default = kind.partition(", default=")
            if parameters[name].default is inspect.Parameter.empty:
                assert not default
            else:
                assert ast.literal_eval(default) == parameters[name].default, name

    def test_every_fitted_attribute_is_documented(self, adapter):
        X, y = np.random.default_rng(0).normal(size=(40, 4)), np.arange(40) % 2
        estimator = adapter(lambda Z: Z.var()) if adapter is PenaltyAdapter else adapter()
        estimator.set_params(head=LinearHead(np.eye(2, 4), np.zeros(2), [0, 1]))
        if "max_epochs" in estimator.get_params():
            estimator.set_params(max_epochs=1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fit = estimator.partial_fit if adapter is TeacherReadout else estimator.fit
            fitted = fit(X, X if adapter is TeacherReadout else y)
        found = {name for name in dir(fitted) if name.endswith("_") and name[0] != "_"}
        documented = {name for name, *_ in ClassDoc(adapter)["Attributes"]}
        assert found | {"feature_names_in_"} == documented
