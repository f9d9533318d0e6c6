"""The server's side of the five stages: replies in, the next message out.

::

    server = ServerSession(roster, proposal, min_survivors=3)
    ... server.proposal_message ...        each reply: server.accept(reply)
    ... server.keys() ...                  each reply: server.accept(reply)
    ... server.deliveries(model) ...       each reply: server.accept(reply)
    ... server.survivor_set() ...          each reply: server.accept(reply)
    ... server.proof() ...                 each reply: server.accept(reply)
    sums = server.result()

A reply that is not sound raises :class:`~distro_fed.errors.BadReply` and changes nothing: its member counts as one who
did not answer. If too few are left, the next step raises :class:`~distro_fed.errors.RoundAborted`. Masked vectors are
added as they come, so the server holds one vector however many members there are. Secrets that it rebuilds live only
inside :meth:`ServerSession.result`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distro_fed.errors import BadReply, EncodingError, Refused, RoundAborted
from distro_fed.secure_aggregation import rules
from distro_fed.secure_aggregation.key_agreement import KEY_BYTES, exchange, new_seed, private_key
from distro_fed.secure_aggregation.masked_vector import VectorSum
from distro_fed.secure_aggregation.messages import (
    ADVERTISEMENT_BYTES,
    ENCRYPTED_SHARES_BYTES,
    SERVER,
    Kind,
    Message,
    decode_table,
    encode_delivery,
    encode_table,
    parse,
    read_refusal,
)
from distro_fed.secure_aggregation.proposal import Proposal
from distro_fed.secure_aggregation.roster import Roster
from distro_fed.secure_aggregation.shamir import SHARE_BYTES, read_share
from distro_fed.secure_aggregation.transcript import (
    body_digest,
    keys_transcript,
    masking_transcript,
    signed_bytes,
    survivor_transcript,
)
from distro_fed.secure_aggregation.unmasking import leftover_masks, rebuild_secrets
from distro_fed.secure_aggregation.weighting import total_weight


@dataclass(frozen=True)
class SecureSum:
    """What the server learns.

    Attributes
    ----------
    sums : ndarray of uint16 or uint32, shape (count,)
        Sums of the survivors' codes, each times its member's weight.
    survivors : tuple of int
        Roster indices of those whose codes are in it.
    weight : int
        Sum of their weights; without weights, their number.
    """

    sums: NDArray[np.unsignedinteger]
    survivors: tuple[int, ...]
    weight: int


class ServerSession:
    """One attempt at one round.

    Parameters
    ----------
    roster : Roster
        The members' own; a server that holds another one is refused by all.
    proposal : Proposal
        As :func:`~.proposal.make_proposal` gives it.
    min_survivors : int
        As in the members' policies: with fewer they would refuse.
    """

    def __init__(self, roster: Roster, proposal: Proposal, min_survivors: int) -> None:
        self._roster, self._proposal = roster, proposal
        self._context = self._transcript = self._masking = proposal.context
        self._needed = rules.members_needed(proposal.threshold, min_survivors)
        self._awaited: Kind | None = Kind.ADVERTISEMENT
        self._expected = frozenset(proposal.cohort)
        self._replies = dict[int, bytes]()
        self._advertisements = dict[int, bytes]()
        self._sharers = self._survivors = frozenset[int]()
        self._sum = VectorSum(proposal.count, proposal.width)

    @property
    def proposal_message(self) -> bytes:
        """Stage 0, for every member of the cohort."""
        return self._proposal.to_bytes()

    @property
    def has_enough(self) -> bool:
        """Whether as many have answered the last message as the next stage needs."""
        return len(self._replies) >= self._needed

    @property
    def missing(self) -> frozenset[int]:
        """Members who have not answered the last message yet."""
        return self._expected - set(self._replies)

    def accept(self, data: bytes | memoryview) -> int:
        """Take one reply to the last message.

        Returns
        -------
        int
            Roster index of the member.

        Raises
        ------
        BadReply
            With the reason, which may be the member's own refusal; nothing has changed.
        """
        try:
            message = parse(data)
            self._check(message)
            self._replies[message.sender] = self._take(message)
        except (Refused, EncodingError) as error:
            raise BadReply(f"a reply is not sound: {error}") from None
        return message.sender

    def keys(self) -> bytes:
        """Close stage 0: the signed keys, the same for every member that answered."""
        rows = self._close(Kind.ADVERTISEMENT, Kind.SHARES, self._needed)
        self._advertisements = {member: row[:ADVERTISEMENT_BYTES] for member, row in rows.items()}
        self._transcript = keys_transcript(self._context, rows)
        return self._message(Kind.KEYS, encode_table(rows))

    def deliveries(self, model: bytes) -> dict[int, bytes]:
        """Close stage 1: for each member the shares that it was sent, and the digest of the model to train on."""
        replies = self._close(Kind.SHARES, Kind.MASKED_VECTOR, self._needed)
        shares = {sender: decode_table(body, ENCRYPTED_SHARES_BYTES) for sender, body in replies.items()}
        self._sharers = frozenset(shares)
        self._transcript = self._masking = masking_transcript(self._transcript, shares, model)
        return {
            receiver: self._message(
                Kind.DELIVERY,
                encode_delivery(model, {sender: rows[receiver] for sender, rows in shares.items() if receiver in rows}),
            )
            for receiver in shares
        }

    def survivor_set(self) -> bytes:
        """Close stage 2: who is in the sum, the same for every one of them."""
        survivors = self._close(Kind.MASKED_VECTOR, Kind.ACKNOWLEDGEMENT, self._needed)
        self._survivors = frozenset(survivors)
        self._transcript = survivor_transcript(self._transcript, survivors)
        return self._message(Kind.SURVIVOR_SET, encode_table(survivors))

    def proof(self) -> bytes:
        """Close stage 3: as many acknowledgements as the threshold, for everyone who acknowledged."""
        threshold = self._proposal.threshold
        signatures = self._close(Kind.ACKNOWLEDGEMENT, Kind.UNMASK_SHARES, threshold)
        chosen = sorted(signatures)[:threshold]
        return self._message(Kind.PROOF, encode_table({member: signatures[member] for member in chosen}))

    def result(self) -> SecureSum:
        """Close stage 4: the sum over the survivors.

        Raises
        ------
        RoundAborted
            Also if the shares do not give the secrets, or a sum is larger than any sum of codes.
        """
        proposal, survivors = self._proposal, self._survivors
        replies = self._close(Kind.UNMASK_SHARES, None, proposal.threshold)
        shares = {holder: decode_table(body, SHARE_BYTES) for holder, body in replies.items()}
        secrets = rebuild_secrets(shares, proposal.threshold, self._advertisements, survivors, self._context)
        masks = leftover_masks(secrets, self._advertisements, survivors, self._masking, proposal.width)
        sums = self._sum.remove(masks)
        weight = total_weight(proposal.weighting, self._roster, survivors)
        largest = rules.largest_sum(proposal.bits, weight)
        if int(sums.max()) > largest:
            raise RoundAborted(
                f"a sum of {len(survivors)} codes of {proposal.bits} bits is {int(sums.max())}, above {largest}: "
                "a member masked something else than codes"
            )
        return SecureSum(sums, tuple(sorted(survivors)), weight)

    def _close(self, kind: Kind, following: Kind | None, needed: int) -> dict[int, bytes]:
        """Replies of the stage that ends, by member; whoever is not among them is left behind."""
        if self._awaited is not kind:
            raise RoundAborted(f"stage {kind.name} cannot end now: {self._awaited and self._awaited.name} is awaited")
        if len(self._replies) < needed:
            missing = ", ".join(self._roster.members[member].name for member in sorted(self.missing))
            raise RoundAborted(
                f"{len(self._replies)} of {len(self._expected)} members sent {kind.name}, {needed} are needed; "
                f"missing: {missing}"
            )
        closed = dict(sorted(self._replies.items()))
        self._awaited, self._expected, self._replies = following, frozenset(closed), {}
        return closed

    def _message(self, kind: Kind, body: bytes) -> bytes:
        return Message(kind, SERVER, self._context, body).to_bytes()

    def _check(self, message: Message) -> None:
        """The reply belongs here: attempt, stage, sender, signature."""
        if message.kind is Kind.REFUSAL:
            reason, text = read_refusal(message)
            raise BadReply(f"member {message.sender} refuses: {reason}: {text}")
        if message.context != self._context:
            raise BadReply(
                f"{message.kind.name} of attempt {message.context.hex()[:16]}, not {self._context.hex()[:16]}"
            )
        if message.kind is not self._awaited:
            raise BadReply(f"{message.kind.name} while {self._awaited and self._awaited.name} is awaited")
        if message.sender not in self.missing:
            raise BadReply(f"{message.kind.name} of member {message.sender}, who is not awaited")
        signed = signed_bytes(message.kind, message.sender, self._transcript, body_digest(message.body))
        if not self._roster.verify(message.sender, message.signature, signed):
            raise BadReply(f"{message.kind.name}: the signature is not that of member {message.sender} on this attempt")

    def _take(self, message: Message) -> bytes:
        """Check the body of a signed reply; what is to be kept of it."""
        body = message.body
        if message.kind is Kind.ADVERTISEMENT:
            self._check_advertisement(bytes(body))
            return bytes(body) + message.signature
        if message.kind is Kind.SHARES:
            rows = decode_table(body, ENCRYPTED_SHARES_BYTES)
            if set(rows) != self._expected - {message.sender}:
                raise BadReply(f"shares of member {message.sender} are not for everybody else")
            return bytes(body)
        if message.kind is Kind.MASKED_VECTOR:
            self._sum.add(body)
            return b""
        if message.kind is Kind.ACKNOWLEDGEMENT:
            if body:
                raise BadReply(f"acknowledgement of member {message.sender} has a body of {len(body)} bytes")
            return message.signature
        shares = decode_table(body, SHARE_BYTES)
        if set(shares) != self._sharers:
            raise BadReply(f"member {message.sender} did not send a share for each of {sorted(self._sharers)}")
        for share in shares.values():
            read_share(share)
        return bytes(body)

    def _check_advertisement(self, body: bytes) -> None:
        """Leave out a member whose keys would make all others refuse."""
        if len(body) != ADVERTISEMENT_BYTES:
            raise BadReply(f"advertisement of {len(body)} bytes, expected {ADVERTISEMENT_BYTES}")
        keys = _public_keys(body)
        taken = {key for row in self._replies.values() for key in _public_keys(row)}
        if keys[0] == keys[1] or taken & set(keys):
            raise BadReply("a public key is used twice")
        for key in keys:
            exchange(private_key(new_seed()), key)  # refuses keys of low order


def _public_keys(row: bytes) -> tuple[bytes, bytes]:
    return row[:KEY_BYTES], row[KEY_BYTES : 2 * KEY_BYTES]
