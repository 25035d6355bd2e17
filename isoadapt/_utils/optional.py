"""Import of optional dependencies, with one message if they are not installed."""

import importlib
from types import ModuleType


def import_optional(module: str, *, feature: str, extra: str) -> ModuleType:
    """Import `module`, or raise ImportError with the `extra` to install.

    `feature` is what needs the module, as the subject of the message's sentence.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{feature} needs {module.partition('.')[0]}, which is not installed: "
            f'pip install "isoadapt[{extra}]"'
        ) from error
