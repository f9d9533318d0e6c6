"""Scales that all members of a round code with: what members measured in the round before says what they are.

The scale of a tensor is the mean of the scales that the members measured, times the ratio of the learning rates of the
two rounds, by which updates shrink. One bit takes it as it is. With more bits a scale is the largest magnitude, and
what is beyond it is clipped: it is taken half as large again, since from one round to the next the largest magnitude
of a tensor rose by up to 36 % in training of small models. Sixteen bits, which stand for dense updates, leave more
room.

A tensor that moved at no member tells nothing about its next update: in the first step of LoRA all of A stays, since B
is 0. Then 0 is announced, as it is for a tensor that was never measured, and with it every member takes its own scale
for that tensor alone: what stays is left where it is, and what moves next is not lost. With the last scale above 0
instead, members would move it by rounding errors or coins for as long as it stays.

In the first round nothing was measured, and every member takes scales of its own unless the run says better. A fresh
AdamW moves a value by about the learning rate at most in a step, and after ``H`` steps the mean magnitude is near
``H ** -0.25`` times the largest: measured 1, 0.69, 0.53 and 0.38 for ``H`` = 1, 4, 10 and 25 in full fine-tuning of a
small model, and 0.56, 0.60 and 0.47 for the last three with LoRA. One bit has no code for 0: with a scale of this rule,
or a given number, members that did not move a tensor send coins, each its own, in that round. They are unbiased and
average out over members, and error feedback takes them back; to the A of LoRA, drawn at random itself, they do no harm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from distro_fed.compression.scales import LARGEST
from distro_fed.errors import SettingsError
from distro_fed.learning_rate import learning_rates_of_round
from distro_fed.setting_groups import TrainingSettings

if TYPE_CHECKING:
    from distro_fed.compression.base import Compressor
    from distro_fed.compression.quantized import Quantized
    from distro_fed.layout import Layout, TensorSpec

#: scale over the largest magnitude that was measured: of two to eight bits, and of sixteen, which can afford more
MARGIN, WIDE_MARGIN = 1.5, 4.0


@dataclass(frozen=True, slots=True)
class ScaleRule:
    """What is public about the updates of a run before any was made.

    Attributes
    ----------
    training : TrainingSettings or None
        How members train: updates follow the learning rate. None: nothing is known about it.
    initial : float or str
        Scale of all tensors in the first round: a number; ``"adamw"``, by the rule for it, if members train as
        ``training`` says; or ``"measured"``: every member takes its own in that round.

    Raises
    ------
    SettingsError
        ``initial`` is something else, or the settings are not completed: their learning rate is 0.
    """

    training: TrainingSettings | None = None
    initial: float | str = "measured"

    def __post_init__(self) -> None:
        number = 0.0 if isinstance(self.initial, str) else self.initial
        if self.initial == "adamw" and self.training is None:
            raise SettingsError("initial = 'adamw' is a rule for training settings; give them, or a number")
        if self.training is not None and not self.training.learning_rate > 0:
            raise SettingsError(
                f"learning_rate = {self.training.learning_rate:g}: scales follow it, so it must be above 0; give those "
                "of RunSettings.completed(), in which 0 has become that of the preset"
            )
        if self.initial not in ("measured", "adamw") and not 0 < number < math.inf:
            raise SettingsError(f"initial = {self.initial!r}; give 'measured', 'adamw' or a number above 0")

    def rates(self, round_: int, rounds: int) -> float:
        """What updates of a round are proportional to."""
        return 1.0 if self.training is None else learning_rates_of_round(round_, rounds, self.training)


class CommonScales:
    """Those of one run.

    Parameters
    ----------
    rule : ScaleRule
    code : Quantized
        What codes updates.
    rounds : int
        Rounds of the run.
    """

    def __init__(self, rule: ScaleRule, code: Quantized, rounds: int) -> None:
        self._rule, self._code, self._rounds = rule, code, rounds
        # by name of a tensor and length of its first axis: scale over learning rates
        self._known: dict[str, dict[int, float]] = {}
        self._first = 0.0
        if rule.initial == "adamw" and rule.training is not None:
            self._first = 1.0 if code.bits > 1 else float(rule.training.local_steps**-0.25)
        elif rule.initial != "measured":
            self._first = float(rule.initial) / rule.rates(1, rounds)

    def announce(self, space: Layout, round_: int) -> bytes:
        """Scales of a round, as :class:`RoundCode` takes them: 0 for a tensor whose is not known; empty if none is."""
        rates = self._rule.rates(round_, self._rounds)
        scales = np.array([self._scale(spec) for spec in space]) * rates
        return self._code.pack(np.minimum(scales, LARGEST).astype(np.float32)) if scales.any() else b""

    def learn(self, space: Layout, round_: int, measured: Sequence[float]) -> None:
        """Take in the mean of what members measured in a round, one number for each tensor."""
        bits = self._code.bits
        margin = 1.0 if bits == 1 else MARGIN if bits <= 8 else WIDE_MARGIN
        rates = self._rule.rates(round_, self._rounds)
        if rates == 0:
            return  # nobody trained: it is what earlier rounds left unsent that was measured
        for spec, scale in zip(space, measured, strict=True):
            self._known.setdefault(spec.name, {})[_length(spec)] = margin * scale / rates

    def to_json(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {name: [[length, scale] for length, scale in known.items()] for name, known in self._known.items()}

    def restore(self, data: dict[str, Any]) -> None:
        """Take back what :meth:`to_json` gave."""
        self._known = {name: dict(known) for name, known in data.items()}

    def _scale(self, spec: TensorSpec) -> float:
        if spec.name not in self._known:
            return self._first
        known = self._known[spec.name]
        if _length(spec) in known:
            return known[_length(spec)]
        # of another length, it is a factor of the same matrix from the other side, whose columns have the same norm
        length, scale = next(iter(known.items()))
        return scale * math.sqrt(length / _length(spec))


def common_scales(compressor: Compressor, rule: ScaleRule | None, rounds: int) -> CommonScales | None:
    """Those of a run; None without a rule.

    Parameters
    ----------
    compressor : Compressor
        What codes members' coefficients; under masks an integer code.
    rule : ScaleRule or None
    rounds : int
        Rounds of the run.

    Raises
    ------
    SettingsError
        Updates of the compressor have no scales that could be the same.
    """
    if rule is None:
        return None
    code = compressor.integer_code() if compressor.scaled else None
    if code is None:
        raise SettingsError(
            f"common scales with compressor {compressor.describe()!r}: only what is coded as integers with one scale a "
            "tensor can share them; take quantized, subspace, lowrank or tracking, or leave the scales to the members"
        )
    return CommonScales(rule, code, rounds)


def _length(spec: TensorSpec) -> int:
    return max(spec.shape[0], 1) if spec.shape else 1
