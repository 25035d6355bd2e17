"""The versions of packages and the hardware that figures depend on."""

import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from joblib import cpu_count

PACKAGES = ("numpy", "torch", "scikit-learn", "skorch", "zuko", "transformers", "isoadapt")


def versions() -> dict[str, Any]:
    """Return versions, the number of CPUs and threads, and the GPU; not the name of the machine."""
    return {
        "python": platform.python_version(),
        **{package: _version(package) for package in PACKAGES},
        "cpus": cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def written(found: Mapping[str, Any]) -> str:
    """Format the entries that are not None as text."""
    return ", ".join(f"{name} {value}" for name, value in found.items() if value is not None)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
