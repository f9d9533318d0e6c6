"""What the server proposes for one attempt at one round, and everybody has to agree to."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from distro_fed.errors import EncodingError
from distro_fed.secure_aggregation import rules
from distro_fed.secure_aggregation.encoding import decode_members, digest, encode_members
from distro_fed.secure_aggregation.messages import SERVER, Kind, Message
from distro_fed.secure_aggregation.policy import Policy
from distro_fed.secure_aggregation.refusals import Reason, refuse
from distro_fed.secure_aggregation.roster import Roster
from distro_fed.secure_aggregation.weighting import Weighting, total_weight

_BODY = struct.Struct("<QIHBBBBQ32s32s32s32s")
_COHORT_FIELD = 8


@dataclass(frozen=True, slots=True)
class Proposal:
    """Everything public about one attempt at one round; its digest is the attempt's context.

    Attributes
    ----------
    run : int
        Flower's id of the run, 64 bits.
    round, attempt : int
        From 1; 32 and 16 bits.
    threshold, width : int
        As :mod:`.rules` gives them. They are here so that a disagreement has a name.
    bits : int
        Bits q of a code.
    weighting : int
        Number of a :class:`~.weighting.Weighting`.
    count : int
        Values in the masked vector.
    cohort : tuple of int
        Roster indices, increasing.
    roster, layout, plan : bytes
        32-byte digests of the roster, of the tensors, and of how they are trained and compressed.
    """

    run: int
    round: int
    attempt: int
    threshold: int
    bits: int
    width: int
    weighting: int
    count: int
    cohort: tuple[int, ...]
    roster: bytes
    layout: bytes
    plan: bytes

    def to_body(self) -> bytes:
        """154 bytes."""
        return _BODY.pack(
            self.run, self.round, self.attempt, self.threshold, self.bits, self.width, self.weighting, self.count,
            encode_members(self.cohort), self.roster, self.layout, self.plan,
        )  # fmt: skip

    @property
    def context(self) -> bytes:
        """32 bytes that name the attempt and everything proposed for it."""
        return digest("context", self.to_body())

    def to_bytes(self) -> bytes:
        """The message."""
        return Message(Kind.PROPOSAL, SERVER, self.context, self.to_body()).to_bytes()

    @classmethod
    def from_message(cls, message: Message) -> Proposal:
        """Read the body.

        Raises
        ------
        Refused
            ``malformed``: wrong length, or the context in the header is not the digest of the body.
        """
        if len(message.body) != _BODY.size:
            raise refuse(Reason.MALFORMED, f"proposal of {len(message.body)} bytes, expected {_BODY.size}")
        fields = list(_BODY.unpack(message.body))
        try:
            fields[_COHORT_FIELD] = decode_members(fields[_COHORT_FIELD])
        except EncodingError as error:
            raise refuse(Reason.MALFORMED, str(error)) from None
        proposal = cls(*fields)
        if proposal.context != message.context:
            raise refuse(Reason.MALFORMED, "the context is not the digest of the proposal")
        return proposal


def make_proposal(
    roster: Roster,
    policy: Policy,
    *,
    run: int,
    round_: int,
    attempt: int,
    bits: int,
    count: int,
    layout: bytes,
    plan: bytes,
    weighting: Weighting = Weighting.UNIFORM,
    cohort: tuple[int, ...] | None = None,
) -> Proposal:
    """A proposal in which everything that has a rule follows it.

    Parameters
    ----------
    policy : Policy
        The server's copy of what the members agree to.
    run, round_, attempt, bits, count, layout, plan
        As in :class:`Proposal`.
    cohort : tuple of int, optional
        Roster indices; default: everybody.
    """
    cohort = roster.everybody if cohort is None else tuple(sorted(cohort))
    return Proposal(
        run=run,
        round=round_,
        attempt=attempt,
        threshold=rules.threshold(len(cohort), policy.server),
        bits=bits,
        width=rules.sum_width(bits, total_weight(weighting, roster, cohort)),
        weighting=weighting,
        count=count,
        cohort=cohort,
        roster=roster.digest,
        layout=layout,
        plan=plan,
    )
