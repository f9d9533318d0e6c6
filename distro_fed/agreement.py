"""What all members of a run must agree on to understand each other's updates."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

from distro_fed.compression.base import Compressor, Decoded, RoundKey
from distro_fed.layout import Layout
from distro_fed.update import Kind, Update, check_update


@dataclass(frozen=True)
class Agreement:
    """The public facts of a run; two members with equal :attr:`run` digests can exchange updates.

    Attributes
    ----------
    layout : Layout
        Trainable tensors.
    uplink, downlink : Compressor
        What codes a client's update and the aggregated update. Same class, so that both work in the
        same coefficient space; parameters may differ.
    seed : int
        Public randomness of the run.
    base_digest : str
        Identity of the frozen base model (hex); empty if there is none.
    run_id : int
        Flower's id of the run: an update of another run with equal settings is refused too.
    """

    layout: Layout
    uplink: Compressor
    downlink: Compressor
    seed: int = 0
    base_digest: str = ""
    run_id: int = 0

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
            "uplink": f"{self.uplink.describe()} {self.uplink.parameters():08x}",
            "downlink": f"{self.downlink.describe()} {self.downlink.parameters():08x}",
        }

    @cached_property
    def space(self) -> Layout:
        """Layout of the coefficients."""
        return self.uplink.space(self.layout)

    def key(self, round_: int) -> RoundKey:
        """Public randomness of a round."""
        return RoundKey(self.seed, round_)

    def frame(self, kind: Kind, round_: int, base_version: int, chain: bytes, body: bytes) -> Update:
        """Wrap a body that was coded by the compressor of this direction."""
        coder = self.compressor(kind)
        return Update(
            kind, coder.codec, coder.parameters(), round_, base_version, self.run, self.layout.digest, chain, body
        )

    def open(self, update: Update, *, kind: Kind, base_version: int, chain: bytes) -> Decoded:
        """Check an update and its body completely.

        Raises
        ------
        UpdateError
            One of its named subclasses; nothing has been changed then.
        """
        coder = self.compressor(kind)
        check_update(
            update,
            kind=kind,
            run=self.run,
            layout=self.layout.digest,
            base_version=base_version,
            chain=chain,
            codec=coder.codec,
            parameters=coder.parameters(),
        )
        return coder.decode(update.body, self.layout if kind is Kind.KEYFRAME else self.space)

    def compressor(self, kind: Kind) -> Compressor:
        """The compressor that codes frames of this kind; a keyframe is always exact (float32)."""
        if kind is Kind.KEYFRAME:
            from distro_fed.compression import make_compressor

            return make_compressor("dense", dtype="float32")
        return self.uplink if kind is Kind.CLIENT else self.downlink
