"""Exported names have full numpydoc docstrings; everything else has one short paragraph."""

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from numpydoc.validate import validate

import isoadapt

ROOT = Path(isoadapt.__file__).parent
SECTION = re.compile(r"^\s*-{3,}\s*$", re.MULTILINE)
# Not asked for: sections that would repeat a signature or a class, and the layout of one line.
ALLOWED = {
    *[
        "GL01",
        "GL08",
        "ES01",
        "SA01",
        "SA04",
        "EX01",
        "RT01",
        "RT02",
        "RT03",
        "YD01",
        "SS06",
        "PR01",
        "PR02",
    ]
}


def public_modules() -> Iterator[Any]:
    yield isoadapt
    for found in pkgutil.walk_packages(isoadapt.__path__, "isoadapt."):
        if not any(part.startswith("_") for part in found.name.split(".")):
            yield importlib.import_module(found.name)


def exported() -> dict[tuple[str, str], Any]:
    """Classes and functions in an `__all__`, and the public methods of these classes."""
    found: dict[tuple[str, str], Any] = {}
    for module in public_modules():
        for name in getattr(module, "__all__", []):
            thing = getattr(module, name)
            if inspect.isclass(thing) or inspect.isfunction(thing):
                add(found, thing)
            if inspect.isclass(thing):
                for member, value in inspect.getmembers(thing):
                    if not member.startswith("_"):
                        add(found, value)
    return found


def add(found: dict[tuple[str, str], Any], thing: Any) -> None:
    thing = inspect.unwrap(getattr(thing, "fget", None) or getattr(thing, "__func__", thing))
    if str(getattr(thing, "__module__", "")).startswith("isoadapt"):
        found[thing.__module__, getattr(thing, "__qualname__", "")] = thing


EXPORTED = exported()


def test_exported_names_have_full_docstrings():
    names = [".".join(key) for key in EXPORTED]
    assert len(names) > 100
    found = {name: validate(name)["errors"] for name in names}
    faults = [(name, *each) for name in names for each in found[name] if each[0] not in ALLOWED]
    assert not faults


def test_underlines_of_sections_stand_alone():
    """numpydoc takes a line that begins with dashes as the underline, and drops the rest of it."""
    for name, text in (found for path in ROOT.rglob("*.py") for found in docstrings(path)):
        assert not re.search(r"^\s*-{3,}[ \t]+\S", text, re.MULTILINE), name


def docstrings(path: Path) -> Iterator[tuple[str, str]]:
    """Qualified names and docstrings of the classes and functions of a file."""

    def walk(node: ast.AST, prefix: str) -> Iterator[tuple[str, str]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef):
                yield prefix + child.name, ast.get_docstring(child) or ""
                inner = "" if isinstance(child, ast.ClassDef) else "<locals>."
                yield from walk(child, f"{prefix}{child.name}.{inner}")

    yield from walk(ast.parse(path.read_text()), "")


def test_other_docstrings_have_no_sections():
    long = [
        (module_of(path), name)
        for path in sorted(ROOT.rglob("*.py"))
        for name, text in docstrings(path)
        if SECTION.search(text) and (module_of(path), name) not in EXPORTED
    ]
    assert not long


def module_of(path: Path) -> str:
    """Name of the module in a file of isoadapt."""
    name = ".".join(("isoadapt", *path.relative_to(ROOT).with_suffix("").parts))
    return name.removesuffix(".__init__")
