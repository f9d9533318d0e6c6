"""32-byte digests of what server and members must mean alike: model, tensors, and how updates are compressed."""

from __future__ import annotations

from distro_fed.secure_aggregation.encoding import digest


def model_digest(chain: bytes) -> bytes:
    """Of the values that training starts from; ``chain`` is the replica's chain digest."""
    return digest("model", chain)


def layout_digest(space: bytes) -> bytes:
    """Of the coefficients of a round; ``space`` is the digest of their layout."""
    return digest("layout", space)


def plan_digest(run: bytes) -> bytes:
    """Of all that members agree on for the whole run; ``run`` is the agreement's digest."""
    return digest("plan", run)
