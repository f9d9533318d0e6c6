"""What a run was measured on. Nothing here names a host, a user or a path."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

PACKAGES = ("distro-fed", "flwr", "ray", "torch", "transformers", "peft", "datasets", "numpy")


def describe_machine() -> dict[str, Any]:
    """Operating system, processor and Python version; ``cpus`` are those that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    return {
        "system": platform.system(),
        "processor": platform.machine(),
        "cpus": len(affinity(0)) if affinity else os.cpu_count(),
        "python": platform.python_version(),
    }


def installed_versions() -> dict[str, str]:
    """Versions of the packages that decide about a result, those that are installed."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
