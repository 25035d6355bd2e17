"""The registry of adapters agrees with the package, the tests and the documentation."""

import re
from pathlib import Path

import isoadapt
from isoadapt import PenaltyAdapter, adapters
from isoadapt.adapters import Affine
from isoadapt.adapters._base import BaseAdapter
from isoadapt.adapters._registry import ADAPTERS, METHODS, NAMES, NEED_TEACHER, VARIANTS
from isoadapt.finetune._recipes import PENALTIES
from tests.adapters.test_common import ADAPTERS as SWEEP, ONE_OF_EACH

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "choosing.rst"


def test_registry_contains_every_public_adapter():
    public = {name: getattr(adapters, name) for name in adapters.__all__}
    found = {name for name, each in public.items() if issubclass(each, BaseAdapter)}
    assert found == ADAPTERS.keys() | {"PenaltyAdapter"}
    assert set(adapters.__all__) - found == {Affine.__name__}
    assert found <= set(isoadapt.__all__)


def test_each_method_has_one_name_derived_from_its_class():
    for name, cls in NAMES.items():
        assert name.replace("-", "") == cls.lower().removesuffix("adapter")
    assert [*NAMES.values()] == list(ADAPTERS)
    assert NAMES.keys() - METHODS.keys() == NEED_TEACHER


def test_penalties_have_the_names_of_the_adapters():
    assert PENALTIES.keys() <= METHODS.keys()


def test_common_tests_cover_every_adapter():
    for tested in (SWEEP, ONE_OF_EACH):
        assert {type(each) for each in tested} == {*ADAPTERS.values(), PenaltyAdapter}


def test_every_adapter_has_one_row_in_short_tables():
    brief = [each.name for each in VARIANTS if each.brief]
    assert len({each.name for each in VARIANTS}) == len(VARIANTS)
    for name in {*METHODS.values()} - {"IsotropyLayer"}:
        assert sum(row.startswith(name) for row in brief) == 1


def test_docs_table_has_a_row_for_every_adapter():
    table = PAGE.read_text().split("All adapters\n")[1].split("What can be lost")[0]
    rows = re.findall(r"^   \* - (?::class:`~isoadapt\.|``)(\w+)", table, re.M)
    assert set(rows) == ADAPTERS.keys()


def test_docs_name_a_use_for_every_adapter():
    table = PAGE.read_text().split("By use\n")[1].split("All adapters")[0]
    assert set(re.findall(r"~isoadapt\.(\w+)", table)) == ADAPTERS.keys() | {"PenaltyAdapter"}
