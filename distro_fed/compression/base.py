"""What every compressor is: a linear map into coefficients, and a byte code for coefficients.

One update goes through four steps, each a method here::

    pseudo-gradient --analyse--> coefficients --encode--> body     (client; the server again for the downlink)
    body --decode--> Decoded --add_to--> accumulator --synthesise--> replica

All vectors are flat, float32 and one-dimensional. A pseudo-gradient and a replica are laid out by the
run's :class:`~distro_fed.layout.Layout`; coefficients and accumulators by :meth:`Compressor.space` of it, which may be
another one in every round. ``analyse`` and ``synthesise`` are linear, so the server sums in coefficient space and
transforms once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

from distro_fed.errors import ReplicaError

if TYPE_CHECKING:
    import torch

    from distro_fed.compression.quantized import Quantized
    from distro_fed.layout import Layout


@dataclass(frozen=True, slots=True)
class RoundKey:
    """What is public about one round: all members derive the same space, basis or mask from it.

    Attributes
    ----------
    seed : int
        The run's seed, 0 <= seed < 2**63.
    round : int
        1 for the first round. Rounds that are skipped count.
    version : int
        Aggregated updates applied so far: 0 until the first round succeeds, and the same again after a round that is
        skipped.
    memory : torch.Tensor or None
        What the compressor keeps of the last aggregated update (:meth:`Compressor.remember`), flat float32 on the
        CPU; None before the first, and for compressors that keep nothing.
    """

    seed: int
    round: int
    version: int = 0
    memory: torch.Tensor | None = field(default=None, compare=False, repr=False)


class Residual(Enum):
    """Where that which an update left unsent waits for the next one (error feedback)."""

    #: in coefficient space, which is the same in all rounds, or turns slowly
    IN_COEFFICIENTS = "in coefficients"
    #: in the layout of the tensors, because the space changes from round to round
    IN_TENSORS = "in tensors"
    #: nowhere: the next round cannot send it
    NONE = "none"


class Decoded(ABC):
    """The checked content of one body. It exists only if the body broke no rule of its codec."""

    @abstractmethod
    def add_to(self, accumulator: torch.Tensor, weight: float = 1.0) -> None:
        """Add ``weight`` times the coefficients to ``accumulator`` in place.

        ``accumulator`` is flat float32 with ``space.numel`` values, on any device. The product with the
        weight and the sum are two separate float32 roundings (no fused multiply-add), so that every
        device gets the same bits.
        """


class Compressor(ABC):
    """Base of all compressors. Instances are immutable and hold no state between calls."""

    #: name in settings and reports
    name: ClassVar[str]
    #: number in the frame header, 1..255
    codec: ClassVar[int]
    #: the sum of coefficient vectors of several members can be coded at a fixed size (secure aggregation)
    linear: ClassVar[bool]
    #: a body is one scale for each tensor of the space and integers, as :meth:`integer_code` writes it
    scaled: ClassVar[bool] = False
    #: where error feedback keeps its residual
    residual: ClassVar[Residual] = Residual.IN_COEFFICIENTS

    @abstractmethod
    def parameters(self) -> int:
        """All parameters that change the byte code, packed into 32 bits, for the frame header."""

    def parameters_in(self, key: RoundKey) -> int:
        """Those of the frames of one round (default: the same in all rounds)."""
        del key
        return self.parameters()

    @abstractmethod
    def describe(self) -> str:
        """Name and parameters for a person, such as ``"topk density=1/64"``."""

    def integer_code(self) -> Quantized | None:
        """The code whose integers a secure sum adds up; None if updates of this kind cannot be summed as integers."""
        return None

    def space(self, layout: Layout, key: RoundKey) -> Layout:
        """Layout of the coefficients of one round (default: that of the tensors).

        The key's memory is not looked at.
        """
        del key
        return layout

    def analyse(self, delta: torch.Tensor, layout: Layout, key: RoundKey) -> torch.Tensor:
        """Coefficients of a pseudo-gradient.

        ``delta`` may be overwritten and returned, unless the residual is kept in tensors.
        """
        del layout, key
        return delta

    def synthesise(self, coefficients: torch.Tensor, replica: torch.Tensor, layout: Layout, key: RoundKey) -> None:
        """Add the tensors that ``coefficients`` stand for to ``replica``, in place.

        ``coefficients`` may be overwritten.
        """
        del layout, key
        replica.add_(coefficients)

    def memory_layout(self, layout: Layout, version: int) -> Layout | None:
        """Layout of what a replica of this version remembers; None (default): nothing.

        It depends on the version alone, so that a full state can be read by those who do not know its history.
        """
        del layout, version
        return None

    def remembers_like(self, other: Compressor) -> bool:
        """Whether another compressor remembers the same of an update; only then the two can be up- and downlink."""
        del other
        return True

    def remember(self, coefficients: torch.Tensor, layout: Layout, key: RoundKey) -> torch.Tensor | None:
        """What the next round needs to know of an aggregated update: its key's ``memory``.

        It is public, and part of the replica: a function of coefficients that are equal at all members bit for bit,
        and itself the same bits at all of them. ``coefficients`` is left as it is.
        """
        del coefficients, layout, key
        return None

    @abstractmethod
    def encode(self, coefficients: torch.Tensor, space: Layout, seed: int) -> bytes:
        """Code coefficients into a body. ``coefficients`` is left as it is.

        Parameters
        ----------
        coefficients : torch.Tensor
            Flat float32, ``space.numel`` values, any device.
        space : Layout
            ``self.space(layout, key)``.
        seed : int
            Seed of the stochastic rounding, if the codec rounds at random; 0 <= seed < 2**63.

        Raises
        ------
        TrainingError
            If a coefficient is NaN or infinite.
        """

    @abstractmethod
    def decode(self, body: bytes | memoryview, space: Layout) -> Decoded:
        """Check a body completely and return its content.

        Memory used before the body is known to be sound is bounded by its own length and by ``space``,
        never by a number read from it.

        Raises
        ------
        CorruptBody
            If a count, an order, a range, a value or the length breaks a rule of the codec.
        """


def check_memory(compressor: Compressor, layout: Layout, key: RoundKey) -> None:
    """Raise :class:`ReplicaError` if a key does not hold what a replica of its version remembers."""
    remembered = compressor.memory_layout(layout, key.version)
    expected = 0 if remembered is None else remembered.numel
    given = 0 if key.memory is None else key.memory.numel()
    if given != expected:
        raise ReplicaError(f"version {key.version} remembers {expected} values, but its key holds {given}")
