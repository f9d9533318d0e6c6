"""Federated fine-tuning of language models with compressed updates both ways, on Flower."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distro_fed.errors import DistroFedError
from distro_fed.settings import RunSettings

if TYPE_CHECKING:
    from distro_fed.clients import PrivateClient, make_client_app
    from distro_fed.strategies import DistroStrategy

__version__ = "0.1.0"
__all__ = ["DistroFedError", "DistroStrategy", "PrivateClient", "RunSettings", "__version__", "make_client_app"]


def __getattr__(name: str) -> Any:
    # lazily, so that a light process (command line, tests of the wire format) never pays for Flower or torch
    if name in ("PrivateClient", "make_client_app"):
        import distro_fed.clients as module
    elif name == "DistroStrategy":
        import distro_fed.strategies as module  # type: ignore[no-redef]
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(module, name)
