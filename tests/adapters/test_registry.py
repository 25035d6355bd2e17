"""The registry of adapters agrees with the package, the tests and the README."""

from pathlib import Path

import isoadapt
from isoadapt import PenaltyAdapter, adapters
from isoadapt.adapters import ADAPTERS, VARIANTS, Affine, BaseAdapter
from tests.adapters.test_common import ADAPTERS as SWEEP

README = Path(__file__).parents[2] / "README.md"


def test_registry_contains_every_public_adapter():
    public = {name: getattr(adapters, name) for name in adapters.__all__}
    found = {name for name, each in public.items() if issubclass(each, BaseAdapter)}
    assert found == ADAPTERS.keys() | {"PenaltyAdapter"}
    assert set(adapters.__all__) - found == {Affine.__name__}
    assert found <= set(isoadapt.__all__)


def test_common_tests_cover_every_adapter():
    assert {type(each) for each in SWEEP} == {*ADAPTERS.values(), PenaltyAdapter}


def test_every_adapter_has_one_row_in_short_tables():
    brief = [each.name for each in VARIANTS if each.brief]
    assert len({each.name for each in VARIANTS}) == len(VARIANTS)
    for name in ADAPTERS.keys() - {"IsotropyLayer"}:
        assert sum(row.startswith(name) for row in brief) == 1


def test_readme_table_has_a_row_for_every_adapter():
    table = README.read_text().split("## Adapters")[1].split("\n\n")[1]
    rows = {line.split("`")[1].split("(")[0] for line in table.splitlines() if "`" in line}
    assert rows == ADAPTERS.keys()
