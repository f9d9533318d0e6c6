"""Published settings, planned by the same arithmetic as any other: the DisTrO report.

Source: Peng et al. 2024, "A Preliminary Report on DisTrO", tables 1 and 3 and section 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from distro_fed.planner.links import transfer_seconds
from distro_fed.planner.model_shapes import decoder_layout
from distro_fed.reporting.references import allreduce_bf16, distro_report, ratio

PRESETS = ("distro-report",)

#: table 1 of the report: Llama 2 architecture, output head of its own
DISTRO_REPORT_CONFIG: Mapping[str, Any] = {
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 32000, "tie_word_embeddings": False,
}  # fmt: skip
NODES = 32
DOWN_MBIT, UP_MBIT = 100.0, 10.0
#: one coefficient of each 64 x 64 chunk: index as int64, value as bfloat16 (the public DeMo code with k = 1)
_CHUNK_VALUES, _COEFFICIENT_BYTES = 64 * 64, 8 + 2


@dataclass(frozen=True, slots=True)
class Figures:
    """What the report counts in one step, for one of the nodes.

    Attributes
    ----------
    gradient_bytes : int
        The bf16 gradient of the whole model.
    message_bytes : int
        What a node sends instead.
    all_reduce_bytes_per_step : int
        Received if every other node sends its whole gradient; the report's "All-Reduce". This is R3.
    distro_bytes_per_step : int
        Received if every other node sends its message. Sent as well, peer to peer.
    ratio_naive : float
        Of these two.
    ring_bytes_per_step : int
        Received in a ring all-reduce of the gradient. This is R2 in one direction.
    ratio_ring : float
        The ring's bytes over ``distro_bytes_per_step``.
    upload_bytes_server : int
        Sent if a server passes the message on to the others.
    seconds_down, seconds_up : float
        With that server, at 100 Mbit/s down and 10 Mbit/s up.
    seconds_up_peer_to_peer : float
        Without it.
    """

    gradient_bytes: int
    message_bytes: int
    all_reduce_bytes_per_step: int
    distro_bytes_per_step: int
    ratio_naive: float
    ring_bytes_per_step: int
    ratio_ring: float
    upload_bytes_server: int
    seconds_down: float
    seconds_up: float
    seconds_up_peer_to_peer: float


@dataclass(frozen=True, slots=True)
class DistroReport:
    """The report's figures, as printed and without its rounding.

    Attributes
    ----------
    parameters : int
        Weights of the matrices.
    norm_parameters : int
        Weights of the norms, which are left out: they would add 10 kB to a message.
    printed : Figures
        With the report's rounded sizes: they give every figure that it prints.
    exact : Figures
        The same with sizes in bytes.
    """

    parameters: int
    norm_parameters: int
    printed: Figures
    exact: Figures


def plan_distro_report() -> DistroReport:
    """Derive the report's figures from its model, 32 nodes and bf16.

    Two sizes of the report are rounded to one decimal before they are multiplied, and in different units: the model is
    "1.2B", so its gradient 2.4 GB of 10^9 bytes; the message of 2,941,440 bytes is 2.8 MiB, is called 2.8 MB, and goes
    on as 2.8 * 10^6 bytes.
    """
    layout = decoder_layout(DISTRO_REPORT_CONFIG)
    parameters = sum(spec.numel for spec in layout if len(spec.shape) == 2)
    message = parameters // _CHUNK_VALUES * _COEFFICIENT_BYTES
    return DistroReport(
        parameters=parameters,
        norm_parameters=layout.numel - parameters,
        printed=_figures(round(parameters, -8), round(round(message / 2**20, 1) * 1e6)),
        exact=_figures(parameters, message),
    )


def _figures(parameters: int, message: int) -> Figures:
    step = {"parameters": parameters, "clients": NODES, "rounds": 1, "local_steps": 1}
    naive, ring = distro_report(**step), allreduce_bf16(**step)
    received = (NODES - 1) * message
    return Figures(
        gradient_bytes=2 * parameters,
        message_bytes=message,
        all_reduce_bytes_per_step=naive.received,
        distro_bytes_per_step=received,
        ratio_naive=ratio(naive.received, received) or 0.0,
        ring_bytes_per_step=ring.received,
        ratio_ring=ratio(ring.received, received) or 0.0,
        upload_bytes_server=message,
        seconds_down=transfer_seconds(received, DOWN_MBIT),
        seconds_up=transfer_seconds(message, UP_MBIT),
        seconds_up_peer_to_peer=transfer_seconds(received, UP_MBIT),
    )
