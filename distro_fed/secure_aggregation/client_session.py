"""A member's side of the five stages: one message in, one answer out, nothing in memory in between.

A method either answers, and then the ledger has noted it, or raises :class:`~distro_fed.errors.Refused` and nothing has
changed. :meth:`ClientSession.respond` makes a refusal into an answer. Stage 2 has two steps, with training between::

    delivery = session.receive_shares(message, state)     # refuses before any work is done
    codes = ...                                           # train, round with delivery.rounding_key
    answer = session.send_masked(delivery, codes, model=..., layout=..., plan=...)
"""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from distro_fed.errors import EncodingError, LedgerError, Refused
from distro_fed.secure_aggregation import client_checks as checks
from distro_fed.secure_aggregation.attempt_crypto import (
    advertisement,
    encrypted_shares,
    open_shares,
    unmask_shares,
    vector_masks,
)
from distro_fed.secure_aggregation.client_state import ClientState, OpenAttempt
from distro_fed.secure_aggregation.identity import Identity
from distro_fed.secure_aggregation.key_agreement import new_seed
from distro_fed.secure_aggregation.ledger import Entry, Ledger, Stage
from distro_fed.secure_aggregation.masked_vector import Codes, check_codes, masked_blocks
from distro_fed.secure_aggregation.messages import (
    HEADER_BYTES,
    SIGNATURE_BYTES,
    Kind,
    Message,
    decode_table,
    encode_table,
    header,
    parse,
    refusal,
)
from distro_fed.secure_aggregation.packing import packed_size
from distro_fed.secure_aggregation.policy import Policy
from distro_fed.secure_aggregation.proposal import Proposal
from distro_fed.secure_aggregation.refusals import TEXTS, Reason, refuse
from distro_fed.secure_aggregation.roster import Roster
from distro_fed.secure_aggregation.transcript import body_digest, signed_bytes
from distro_fed.secure_aggregation.weighting import total_weight

log = logging.getLogger("distro_fed")


@dataclass(frozen=True, slots=True)
class Answer:
    """What goes to the server, and what has to be kept for the next stage."""

    reply: bytes
    state: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Delivery:
    """A sound delivery: all is there to mask a vector.

    Attributes
    ----------
    proposal : Proposal
        What was agreed on.
    model : bytes
        32-byte digest of the model to train on, as the server announced it.
    rounding_key : bytes
        Seed for the stochastic rounding of this vector.
    """

    proposal: Proposal
    model: bytes
    rounding_key: bytes = field(repr=False)
    _attempt: OpenAttempt = field(repr=False)
    _kept: ClientState = field(repr=False)


class ClientSession:
    """One member in one run.

    Parameters
    ----------
    identity, roster, policy, ledger
        From files of this member's own.
    run : int
        Flower's id of the run.

    Raises
    ------
    RosterError
        If the roster does not have this identity.
    """

    def __init__(self, identity: Identity, roster: Roster, policy: Policy, ledger: Ledger, run: int) -> None:
        self._identity, self._roster, self._policy, self._ledger = identity, roster, policy, ledger
        self._run = run
        self.me = roster.index(identity)

    def respond(self, message: bytes, state: bytes) -> Answer:
        """Answer a message of stage 0, 1, 3 or 4; a refusal is an answer too and leaves the state as it is."""
        stages = {
            Kind.PROPOSAL: self.advertise,
            Kind.KEYS: self.share_keys,
            Kind.SURVIVOR_SET: self.acknowledge,
            Kind.PROOF: self.unmask,
        }
        try:
            kind = parse(message).kind
            if kind not in stages:
                raise refuse(Reason.MALFORMED, f"{kind.name} is not answered here")
            return stages[kind](message, state)
        except (Refused, LedgerError) as error:
            return Answer(self.refusal(error, message), state)

    def respond_all(self, messages: Iterable[bytes], state: bytes) -> tuple[list[bytes], bytes]:
        """Answer messages that came together, such as the end of a round and the beginning of the next."""
        replies = []
        for message in messages:
            answer = self.respond(message, state)
            replies.append(answer.reply)
            state = answer.state
        return replies, state

    def refusal(self, error: Refused | LedgerError, message: bytes) -> bytes:
        """The answer that says why there is none. Details go to this member's log only."""
        log.warning("secure aggregation: %s", error)
        reason = Reason(error.reason) if isinstance(error, Refused) else Reason.NOT_SET_UP
        context = bytes(message[HEADER_BYTES - 32 : HEADER_BYTES]).ljust(32, b"\0")
        return refusal(reason, TEXTS[reason], self.me, context)

    def advertise(self, message: bytes, state: bytes) -> Answer:
        """Stage 0: check the proposal, make fresh secrets, and sign their public side."""
        proposal = Proposal.from_message(self._parse(message, Kind.PROPOSAL))
        checks.check_proposal(proposal, self._roster, self._policy, self.me, self._run)
        attempt = OpenAttempt(self.me, new_seed(), (bytes(message),))
        reply = self._signed(Kind.ADVERTISEMENT, attempt, attempt.context, advertisement(attempt))
        self._ledger.record(_entry(attempt, Stage.ADVERTISE))
        names = ", ".join(self._roster.members[member].name for member in proposal.cohort)
        log.info("secure aggregation: round %d, attempt %d with %s", proposal.round, proposal.attempt, names)
        return self._answer(reply, self._load(state).opened(attempt))

    def share_keys(self, message: bytes, state: bytes) -> Answer:
        """Stage 1: check everybody's keys, and encrypt to each member a share of the own secrets."""
        kept = self._load(state)
        attempt = self._next(kept, message, Kind.KEYS, stage=1)
        checks.check_members(attempt.keys, attempt.proposal.cohort)
        checks.check_enough(attempt.keys, attempt.proposal, self._policy)
        checks.check_keys(attempt.keys, attempt.context, advertisement(attempt), self._roster, self.me)
        body = encode_table(encrypted_shares(attempt))
        reply = self._signed(Kind.SHARES, attempt, attempt.keys_transcript, body)
        self._ledger.record(_entry(attempt, Stage.SHARE))
        return self._answer(reply, kept.changed(attempt))

    def receive_shares(self, message: bytes, state: bytes) -> Delivery:
        """Stage 2, before training: open the shares of the others."""
        kept = self._load(state)
        attempt = self._next(kept, message, Kind.DELIVERY, stage=2)
        model, rows = attempt.delivered
        checks.check_members(rows, set(attempt.keys) - {self.me})
        checks.check_enough(attempt.sharers, attempt.proposal, self._policy)
        for member in rows:
            open_shares(attempt, member)
        self._ledger.check(_entry(attempt, Stage.MASK))
        return Delivery(attempt.proposal, model, attempt.secrets.rounding_key, attempt, kept)

    def send_masked(self, delivery: Delivery, codes: Codes, *, model: bytes, layout: bytes, plan: bytes) -> Answer:
        """Stage 2, after training: the one masked vector that leaves in this round.

        Parameters
        ----------
        delivery : Delivery
        codes : ndarray of unsigned integers, shape (delivery.proposal.count,)
            Below ``2**delivery.proposal.bits``; they are multiplied by this member's weight here.
        model, layout, plan : bytes
            32-byte digests of what was really trained on, of the tensors, and of how they were trained and compressed.
            Whatever changes with every round, such as public scales, belongs to the model's.

        Raises
        ------
        Refused
            ``other-model``, ``other-layout``, ``other-plan``: the server announced others; or the ledger's reasons.
        EncodingError
            If the codes are not those of the proposal.
        """
        attempt, proposal = delivery._attempt, delivery.proposal
        for own, announced, reason in (
            (model, delivery.model, Reason.OTHER_MODEL),
            (layout, proposal.layout, Reason.OTHER_LAYOUT),
            (plan, proposal.plan, Reason.OTHER_PLAN),
        ):
            if own != announced:
                raise refuse(reason, f"{announced.hex()[:16]}, own {own.hex()[:16]}")
        check_codes(codes, proposal.count, proposal.bits)
        size = HEADER_BYTES + packed_size(proposal.count, proposal.width) + SIGNATURE_BYTES
        # a buffer that grows would be copied again and again
        reply, body_hash = io.BytesIO(bytes(size)), hashlib.sha256()
        reply.write(header(Kind.MASKED_VECTOR, self.me, attempt.context))
        weight = total_weight(proposal.weighting, self._roster, [self.me])
        for block in masked_blocks(codes, proposal.width, vector_masks(attempt), weight):
            body_hash.update(block.data)
            reply.write(block.data)
        signed = signed_bytes(Kind.MASKED_VECTOR, self.me, attempt.masking_transcript, body_hash.digest())
        reply.write(self._identity.sign(signed))
        self._ledger.record(_entry(attempt, Stage.MASK))
        return self._answer(reply.getvalue(), delivery._kept.changed(attempt))

    def acknowledge(self, message: bytes, state: bytes) -> Answer:
        """Stage 3: sign the set of members that are in the sum."""
        kept = self._load(state)
        attempt = self._next(kept, message, Kind.SURVIVOR_SET, stage=3)
        checks.check_members(attempt.survivors, attempt.sharers)
        if self.me not in attempt.survivors:
            raise refuse(Reason.NOT_A_SURVIVOR)
        checks.check_enough(attempt.survivors, attempt.proposal, self._policy)
        reply = self._signed(Kind.ACKNOWLEDGEMENT, attempt, attempt.survivor_transcript, b"")
        self._ledger.record(_entry(attempt, Stage.ACKNOWLEDGE))
        return self._answer(reply, kept.changed(attempt))

    def unmask(self, message: bytes, state: bytes) -> Answer:
        """Stage 4: one share for each member: of its self-mask if its vector is in the sum, of its mask key if not."""
        kept = self._load(state)
        attempt = self._next(kept, message, Kind.PROOF, stage=4)
        checks.check_acknowledgements(decode_table(parse(message).body, SIGNATURE_BYTES), attempt, self._roster)
        body = encode_table(unmask_shares(attempt))
        reply = self._signed(Kind.UNMASK_SHARES, attempt, attempt.survivor_transcript, body)
        self._ledger.record(_entry(attempt, Stage.UNMASK))
        # the seed goes with the attempt: nobody can come back for the other share
        return self._answer(reply, kept.closed(attempt))

    def _next(self, kept: ClientState, message: bytes, kind: Kind, stage: int) -> OpenAttempt:
        """The attempt that a message belongs to, with the message as its next one."""
        parsed = self._parse(message, kind)
        attempt = kept.find(parsed.context)
        if attempt is None:
            raise refuse(Reason.UNKNOWN_ATTEMPT, f"context {parsed.context.hex()[:16]}")
        if attempt.stage != stage:
            reason = Reason.ALREADY_ANSWERED if attempt.stage > stage else Reason.OUT_OF_ORDER
            raise refuse(reason, f"{kind.name} after {attempt.stage} stages")
        return attempt.after(bytes(message))

    def _parse(self, message: bytes, kind: Kind) -> Message:
        parsed = parse(message)
        if parsed.kind is not kind:
            raise refuse(Reason.MALFORMED, f"{parsed.kind.name} instead of {kind.name}")
        return parsed

    def _load(self, state: bytes) -> ClientState:
        try:
            return ClientState.from_bytes(state, self._identity.sealing_key, self.me)
        except EncodingError as error:
            log.warning("secure aggregation: %s", error)
            return ClientState()

    def _answer(self, reply: bytes, kept: ClientState) -> Answer:
        return Answer(reply, kept.to_bytes(self._identity.sealing_key))

    def _signed(self, kind: Kind, attempt: OpenAttempt, transcript: bytes, body: bytes) -> bytes:
        signature = self._identity.sign(signed_bytes(kind, self.me, transcript, body_digest(body)))
        return Message(kind, self.me, attempt.context, body, signature).to_bytes()


def _entry(attempt: OpenAttempt, stage: Stage) -> Entry:
    proposal = attempt.proposal
    return Entry(proposal.run, proposal.round, proposal.attempt, stage, attempt.context.hex()[:16])
