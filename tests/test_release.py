"""What a release needs: one version, and known licences."""

import runpy
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import isoadapt

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LICENSES = runpy.run_path(str(ROOT / "tools" / "licenses.py"))


def test_the_version_stands_in_one_place():
    assert PROJECT["project"]["dynamic"] == ["version"]
    path = ROOT / PROJECT["tool"]["hatch"]["version"]["path"]
    assert path == Path(isoadapt.__file__)
    assert f'__version__ = "{isoadapt.__version__}"' in path.read_text()
    assert f"## {isoadapt.__version__} " in (ROOT / "CHANGELOG.md").read_text()


def test_licences_of_the_core_are_listed_and_none_is_copyleft():
    table = (ROOT / "LICENSES.md").read_text()
    for requirement in map(Requirement, PROJECT["project"]["dependencies"]):
        licence = LICENSES["licence"](requirement.name)
        assert f"| {requirement.name} | {licence}" in table
        assert not LICENSES["STRONG"].search(licence)


@pytest.mark.parametrize(
    ("licence", "copyleft"),
    [("MIT", False), ("LGPL-3.0-or-later", True), ("GNU General Public License v3", True)],
)
def test_copyleft_is_recognised(licence, copyleft):
    assert bool(LICENSES["STRONG"].search(licence)) == copyleft


def test_a_package_belongs_to_all_that_install_it():
    users = LICENSES["installed_by"](PROJECT["project"])
    assert "core" in users["sympy"]  # through torch
    assert {"demo", "plot", "test"} <= users["matplotlib"]  # test: through scikit-dimension
