"""What all members of a run must agree on to understand each other's updates."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from distro_fed.compression.base import Compressor, Decoded, Residual, RoundKey
from distro_fed.errors import SettingsError
from distro_fed.layout import Layout, TensorSpec
from distro_fed.update import OVERHEAD_BYTES, Kind, Update, check_update

if TYPE_CHECKING:
    import torch

#: stands before the names of the remembered tensors in a keyframe; no parameter's name has a space
_MEMORY = "memory "


@dataclass(frozen=True)
class Agreement:
    """The public facts of a run; two members with equal :attr:`run` digests can exchange updates.

    Attributes
    ----------
    layout : Layout
        Trainable tensors.
    uplink, downlink : Compressor
        What codes a client's update and the aggregated update. Both work in the same coefficient space; other
        parameters may differ.
    seed : int
        Public randomness of the run.
    base_digest : str
        Identity of the frozen base model (hex); empty if there is none.
    run_id : int
        Flower's id of the run: an update of another run with equal settings is refused too.
    turns : tuple of tuple of str
        Names of the tensors that are trained and sent on top of version 0, 1, ..., and again from the start; empty: all
        of them in every version.
    """

    layout: Layout
    uplink: Compressor
    downlink: Compressor
    seed: int = 0
    base_digest: str = ""
    run_id: int = 0
    turns: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        if self.turns and self.uplink.memory_layout(self.layout, 1) is not None:
            raise SettingsError(
                f"compressor {self.uplink.name!r} needs the same tensors in every round, and this run trains some of "
                "them in turn (lora-factors = 'alternating'): take another compressor"
            )
        for round_ in (1, 2**32 - 1):
            key = self.key(round_, 0)
            if self.downlink.space(self.trained(0), key) != self.space(key):
                raise SettingsError(
                    f"the aggregated update ({self.downlink.describe()}) and the members' updates "
                    f"({self.uplink.describe()}) have different spaces: give both the same rank"
                )
        if not self.uplink.remembers_like(self.downlink):
            raise SettingsError(
                f"the aggregated update ({self.downlink.describe()}) and the members' updates "
                f"({self.uplink.describe()}) do not give the next round the same basis: let them differ in bits alone"
            )

    @cached_property
    def run(self) -> bytes:
        """16 bytes over all of it."""
        state = hashlib.blake2b(digest_size=16, person=b"df-run")
        state.update("\0".join(self.facts().values()).encode())
        return state.digest()

    def facts(self) -> dict[str, str]:
        """Each fact by name, to say which one differs when two members disagree."""
        return {
            "run id": str(self.run_id),
            "seed": str(self.seed),
            "base model": self.base_digest,
            "trainable tensors": self.layout.digest.hex(),
            "trained in turn": " ".join(part.digest.hex() for part in self._parts),
            "uplink": f"{self.uplink.describe()} {self.uplink.parameters():08x}",
            "downlink": f"{self.downlink.describe()} {self.downlink.parameters():08x}",
        }

    def key(self, round_: int, version: int, memory: torch.Tensor | None = None) -> RoundKey:
        """What is public about a round; ``memory`` is needed to analyse and to synthesise."""
        return RoundKey(self.seed, round_, version, memory)

    @cached_property
    def _parts(self) -> tuple[Layout, ...]:
        return tuple(Layout(spec for spec in self.layout if spec.name in turn) for turn in self.turns)

    def turn(self, version: int) -> int:
        """Which of the turns has a version; 0 if there are none."""
        return version % max(1, len(self.turns))

    def trained(self, version: int) -> Layout:
        """The tensors that are trained and sent on top of a version."""
        return self._parts[self.turn(version)] if self._parts else self.layout

    def space(self, key: RoundKey) -> Layout:
        """Layout of the coefficients of a round."""
        return self.uplink.space(self.trained(key.version), key)

    @property
    def residual(self) -> Residual:
        """Where error feedback keeps its residual."""
        in_turn = self.turns and self.uplink.residual is Residual.IN_COEFFICIENTS
        return Residual.IN_TENSORS if in_turn else self.uplink.residual

    @cached_property
    def residual_layout(self) -> Layout:
        """Layout of what error feedback keeps between rounds."""
        return self.layout if self.residual is Residual.IN_TENSORS else self.space(self.key(1, 0))

    def keyframe_space(self, version: int) -> Layout:
        """Layout of a full state: the trainable tensors, and behind them what is remembered."""
        memory = self.uplink.memory_layout(self.layout, version)
        if memory is None:
            return self.layout
        return Layout((*self.layout, *(TensorSpec(_MEMORY + spec.name, spec.shape) for spec in memory)))

    def keyframe_bytes(self, version: int) -> int:
        """Bytes of the frame of a full state."""
        return OVERHEAD_BYTES + 4 * self.keyframe_space(version).numel

    def analyse(self, delta: torch.Tensor, key: RoundKey) -> torch.Tensor:
        """Coefficients of a pseudo-gradient of all tensors, as :meth:`Compressor.analyse`."""
        part = self.trained(key.version)
        if part is not self.layout:
            change = delta.new_empty(part.numel)
            for whole, place in self._places(part):
                change[place] = delta[whole]
            delta = change
        return self.uplink.analyse(delta, part, key)

    def synthesise(self, coefficients: torch.Tensor, replica: torch.Tensor, key: RoundKey) -> None:
        """Add what coefficients stand for to all tensors, as :meth:`Compressor.synthesise`."""
        part = self.trained(key.version)
        if part is self.layout:
            self.downlink.synthesise(coefficients, replica, part, key)
            return
        change = replica.new_zeros(part.numel)
        self.downlink.synthesise(coefficients, change, part, key)
        for whole, place in self._places(part):
            replica[whole] += change[place]

    def _places(self, part: Layout) -> Iterator[tuple[slice, slice]]:
        """Where each tensor of a part lies among all tensors, and where in the part."""
        places = {spec.name: place for spec, place in self.layout.slices()}
        return ((places[spec.name], place) for spec, place in part.slices())

    def frame(self, kind: Kind, round_: int, base_version: int, chain: bytes, body: bytes) -> Update:
        """Wrap a body that was coded by the compressor of this direction."""
        coder, parameters = self._coder(kind, self.key(round_, base_version))
        return Update(kind, coder.codec, parameters, round_, base_version, self.run, self.layout.digest, chain, body)

    def open(self, update: Update, *, kind: Kind, base_version: int, chain: bytes) -> Decoded:
        """Check an update and its body completely.

        Raises
        ------
        UpdateError
            One of its named subclasses; nothing has been changed then.
        """
        coder, parameters = self._coder(kind, self.key(update.round, base_version))
        check_update(
            update,
            kind=kind,
            run=self.run,
            layout=self.layout.digest,
            base_version=base_version,
            chain=chain,
            codec=coder.codec,
            parameters=parameters,
        )
        return self.decode(update)

    def decode(self, update: Update) -> Decoded:
        """Check the body alone, against the space of the update's own round and version.

        Raises
        ------
        CorruptBody
        """
        version = update.base_version
        if update.kind is Kind.KEYFRAME:
            space = self.keyframe_space(version)
        else:
            space = self.space(self.key(update.round, version))
        return self.compressor(update.kind).decode(update.body, space)

    def _coder(self, kind: Kind, key: RoundKey) -> tuple[Compressor, int]:
        coder = self.compressor(kind)
        return coder, coder.parameters_in(key)

    def compressor(self, kind: Kind) -> Compressor:
        """The compressor that codes frames of this kind; a keyframe is always exact (float32)."""
        if kind is Kind.KEYFRAME:
            from distro_fed.compression import make_compressor

            return make_compressor("dense", dtype="float32")
        return self.uplink if kind is Kind.CLIENT else self.downlink
