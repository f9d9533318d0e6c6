"""32-byte digests of what server and members must mean alike: model, tensors, and how updates are compressed."""

from __future__ import annotations

from distro_fed.secure_aggregation.encoding import digest
from distro_fed.settings import RunSettings

#: settings under which a member could be made to learn nothing, or something else than the others. Those that a machine
#: decides for itself (device, batch size, number formats) are not among them
_WORK = (
    "mode", "lora-factors", "max-length", "max-train-examples", "local-steps", "learning-rate", "optim",
    "optimizer-state", "momentum", "lr-scheduler-type", "warmup-steps", "weight-decay", "adam-beta1", "adam-beta2",
    "max-grad-norm", "error-feedback", "error-feedback-decay", "weight-unit",
)  # fmt: skip


def model_digest(chain: bytes) -> bytes:
    """Of the values that training starts from; ``chain`` is the replica's chain digest."""
    return digest("model", chain)


def layout_digest(space: bytes) -> bytes:
    """Of the coefficients of a round; ``space`` is the digest of their layout."""
    return digest("layout", space)


def work_digest(settings: RunSettings) -> bytes:
    """Of the settings that decide what a member computes from its data."""
    flat = settings.flat()
    keys = [key for key in sorted(flat) if key in _WORK or key.startswith("peft.")]
    return digest("work", *(f"{key} = {flat[key]!r}" for key in keys))


def plan_digest(run: bytes, work: bytes) -> bytes:
    """Of all that members agree on for the whole run.

    Parameters
    ----------
    run : bytes
        Digest of the agreement.
    work : bytes
        :func:`work_digest`.
    """
    return digest("plan", run, work)
