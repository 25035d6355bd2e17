"""One message for an optional dependency that is not installed."""

import importlib
from types import ModuleType


def import_optional(module: str, *, feature: str, extra: str) -> ModuleType:
    """Import `module`, or say which feature needs it and how to install it.

    Parameters
    ----------
    module : str
        Dotted name of the module.
    feature : str
        What the user asked for, as the subject of a sentence.
    extra : str
        Extra of isoadapt that brings the module.

    Returns
    -------
    ModuleType
        The imported module.

    Raises
    ------
    ImportError
        If the module cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{feature} needs {module.partition('.')[0]}, which is not installed: "
            f'pip install "isoadapt[{extra}]"'
        ) from error
