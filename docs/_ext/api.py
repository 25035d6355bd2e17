"""The pages of the API reference, made from the `__all__` of every public module."""

import inspect
import pkgutil
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

import isoadapt

_GROUPS = {  # of the sidebar, where the name of the package is none
    "adapted": "Encoders and heads",
    "encoders": "Encoders and heads",
    "heads": "Encoders and heads",
    "finetune": "Fine-tuning",
    "interop": "Saving and exporting",
    "report": "Plots and reports",
}


class Export(NamedTuple):
    """An exported name under the one module where it is documented."""

    module: str
    name: str
    thing: Any

    @property
    def path(self) -> str:
        """The name with its module, as users import it."""
        return f"{self.module}.{self.name}"


def public_modules() -> list[ModuleType]:
    """Give isoadapt and the public modules and packages below it that are used from Python."""
    names = [each.name for each in pkgutil.iter_modules(isoadapt.__path__) if each.name != "cli"]
    public = [import_module(f"isoadapt.{name}") for name in names if not name.startswith("_")]
    return [isoadapt, *(module for module in public if hasattr(module, "__all__"))]


def exports() -> list[Export]:
    """Give every exported name once: at the top if it is exported there, else where it lives."""
    found: dict[int, Export] = {}
    for module in public_modules():
        for name in sorted(module.__all__):
            thing = getattr(module, name)
            found.setdefault(id(thing), Export(module.__name__, name, thing))
    return list(found.values())


def aliases() -> dict[str, str]:
    """Give the documented path of every path under which a name can be imported."""
    documented = {id(each.thing): each.path for each in exports()}
    return {
        f"{module.__name__}.{name}": documented[id(getattr(module, name))]
        for module in public_modules()
        for name in module.__all__
    }


def pages() -> dict[str, str]:
    """Give the text of each page by the name of its file."""
    listed = exports()
    return {"index.rst": _index(listed)} | {f"{each.path}.rst": _page(each) for each in listed}


def _index(listed: list[Export]) -> str:
    lines = [*_title("API reference", "="), ""]
    lines += ["Every public name, by the module from which it is imported.", ""]
    for module in public_modules():
        names = [each for each in listed if each.module == module.__name__]
        if not names:
            continue
        lines += [f".. py:module:: {module.__name__}", ""]
        lines += [*_title(module.__name__, "-"), "", _summary(module), ""]
        lines += [".. list-table::", "   :widths: 35 65", ""]
        for each in names:
            lines += [f"   * - :doc:`{each.name} <{each.path}>`", f"     - {_summary(each.thing)}"]
        lines += [""]
    for group in dict.fromkeys(map(_group, listed)):
        lines += [".. toctree::", "   :hidden:", f"   :caption: {group}", ""]
        lines += [f"   {each.name} <{each.path}>" for each in listed if _group(each) == group]
        lines += [""]
    return "\n".join(lines)


def _group(each: Export) -> str:
    """Give the caption of the sidebar below which a name stands, by the package that defines it."""
    package = each.thing.__module__.split(".")[1]
    return _GROUPS.get(package, package.replace("_", " ").capitalize())


def _page(each: Export) -> str:
    lines = [*_title(each.name, "="), "", f".. currentmodule:: {each.module}", ""]
    if inspect.isroutine(each.thing):
        return "\n".join([*lines, f".. autofunction:: {each.path}", ""])
    if not inspect.isclass(each.thing):
        return "\n".join(
            [*lines, f".. py:data:: {each.path}", "", f"   {_summary(each.thing)}", ""]
        )
    lines += [f".. autoclass:: {each.path}", ""]
    for method in _methods(each.thing):
        lines += [f"   .. automethod:: {method}", ""]
    return "\n".join(lines)


def _methods(class_: type) -> Iterator[str]:
    """Give the public methods of a class that isoadapt itself defines."""
    for name in sorted(dir(class_)):
        owner = next((each for each in class_.__mro__ if name in vars(each)), object)
        member = inspect.getattr_static(class_, name)
        generated = name.startswith("set_") and name.endswith("_request")  # scikit-learn makes it
        if name.startswith("_") or generated or isinstance(member, property):
            continue
        if owner.__module__.startswith("isoadapt") and callable(getattr(class_, name)):
            yield name


def _summary(thing: Any) -> str:
    """Give the first paragraph of a docstring; an instance has only that of its class."""
    if not (inspect.isclass(thing) or inspect.isroutine(thing) or inspect.ismodule(thing)):
        return f"An instance of {type(thing).__name__}."
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def _title(text: str, line: str) -> list[str]:
    return [text, line * len(text)]
