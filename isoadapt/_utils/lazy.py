"""Packages that import their names on first use, so that importing the package is fast."""

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def lazy_names(
    package: str, modules: Mapping[str, str], submodules: Iterable[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make ``__getattr__`` and ``__dir__`` of a package from the modules of its names."""
    packages = frozenset(submodules)

    def get_attribute(name: str) -> Any:
        if name in packages:
            return importlib.import_module(f"{package}.{name}")
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            module = importlib.import_module(modules[name])
        except AttributeError as error:  # Python would report only that the name is missing
            raise ImportError(f"{modules[name]} cannot be imported: {error}") from error
        value = getattr(module, name)
        setattr(sys.modules[package], name, value)  # later accesses are ordinary
        return value

    def list_attributes() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules, *packages})

    return get_attribute, list_attributes
