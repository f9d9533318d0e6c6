"""Which arguments of a strategy are out of range or do not go together, and why."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from distro_fed.compression.base import Residual
from distro_fed.errors import SettingsError
from distro_fed.presets import SELECTING

if TYPE_CHECKING:
    from distro_fed.agreement import Agreement
    from distro_fed.strategies.distro import DistroStrategy


def check_options(strategy: DistroStrategy) -> None:
    """Raise :class:`SettingsError` for the first argument that cannot work."""
    for name, least, most in (
        ("fraction_train", 0.0, 1.0), ("fraction_evaluate", 0.0, 1.0), ("quorum", 0.0, 1.0),
        ("min_train_nodes", 1, math.inf), ("seed", 0, 2**63 - 1), ("outer_momentum", 0.0, 0.999999),
    ):  # fmt: skip
        value = getattr(strategy, name)
        if not least <= value <= most:
            raise SettingsError(f"{name} = {value}; it must be between {least} and {most}")
    if not 0 < strategy.outer_learning_rate < math.inf:
        raise SettingsError(
            f"outer_learning_rate = {strategy.outer_learning_rate}; it must be above 0, and 1 applies the mean as it is"
        )
    if strategy.aggregation not in ("mean", "contributors"):
        raise SettingsError(f"aggregation = {strategy.aggregation!r}; choose 'mean' or 'contributors'")
    _check_compressors(strategy)


def check_turns(strategy: DistroStrategy, agreement: Agreement) -> None:
    """Raise :class:`SettingsError` if the server would keep a momentum of tensors that are trained in turn."""
    if agreement.turns and strategy.outer_momentum:
        raise SettingsError(
            f"outer_momentum = {strategy.outer_momentum:g}: this run trains tensors in turn (lora-factors = "
            "'alternating'), so what one round has moved has no place in the next; set it to 0"
        )


def _check_compressors(strategy: DistroStrategy) -> None:
    up, down = strategy.compressor, strategy.downlink_compressor
    if type(down) is not type(up):
        raise SettingsError(
            f"downlink compressor {down.describe()!r} and uplink compressor {up.describe()!r} are of different kinds; "
            "both must work in the same space"
        )
    if strategy.aggregation == "contributors" and up.name not in SELECTING:
        raise SettingsError(
            f"aggregation = 'contributors' with compressor {up.name!r}, of which every member sends every coefficient: "
            f"take 'mean', which is the same there, or one of the compressors {', '.join(SELECTING)}"
        )
    if up.residual is Residual.IN_COEFFICIENTS:
        return
    if strategy.server_residual:
        raise SettingsError(f"server_residual = True with compressor {up.name!r}, whose space changes every round")
    if strategy.outer_momentum:
        raise SettingsError(
            f"outer_momentum = {strategy.outer_momentum} with compressor {up.name!r}, whose space changes every round: "
            "what one round has moved has no place in the next; set it to 0, or take quantized, topk, dct-topk, "
            "tracking, tracking-topk or dense"
        )
