"""Imports on first use, so that importing a package is fast, and of optional dependencies."""

import importlib
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any


def lazy_names(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make ``__getattr__`` and ``__dir__`` of a package from the modules of its names."""

    def get_attribute(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            module = importlib.import_module(modules[name])
        except AttributeError as error:  # Python would report only that the name is missing
            hint = "; skorch needs docstrings: use python -O" if sys.flags.optimize > 1 else ""
            raise ImportError(f"{modules[name]} cannot be imported: {error}{hint}") from error
        value = module if modules[name] == f"{package}.{name}" else getattr(module, name)
        setattr(sys.modules[package], name, value)  # later accesses are ordinary
        return value

    def list_attributes() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return get_attribute, list_attributes


def import_optional(module: str, *, feature: str, extra: str) -> ModuleType:
    """Import `module`, or raise ImportError that names the `feature` and the `extra` to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{feature} needs {module.partition('.')[0]}, which is not installed: "
            f'pip install "isoadapt[{extra}]"'
        ) from error
