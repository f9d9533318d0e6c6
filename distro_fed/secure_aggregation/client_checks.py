"""What a member checks before it answers; each check that fails is a refusal with its own word."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from distro_fed.secure_aggregation import rules
from distro_fed.secure_aggregation.client_state import OpenAttempt
from distro_fed.secure_aggregation.encoding import encode_members
from distro_fed.secure_aggregation.key_agreement import KEY_BYTES
from distro_fed.secure_aggregation.messages import ADVERTISEMENT_BYTES, Kind
from distro_fed.secure_aggregation.policy import MAX_BITS, Policy
from distro_fed.secure_aggregation.proposal import Proposal
from distro_fed.secure_aggregation.refusals import Reason, refuse
from distro_fed.secure_aggregation.roster import Roster
from distro_fed.secure_aggregation.transcript import body_digest, signed_bytes
from distro_fed.secure_aggregation.weighting import total_weight


def check_proposal(proposal: Proposal, roster: Roster, policy: Policy, me: int, run: int) -> None:
    """Stage 0: everything in the proposal is what the rules give and the policy allows."""
    if proposal.run != run:
        raise refuse(Reason.OTHER_RUN, f"{proposal.run}, this is run {run}")
    if proposal.roster != roster.digest:
        raise refuse(Reason.OTHER_ROSTER, f"{proposal.roster.hex()[:16]}, own {roster.digest.hex()[:16]}")
    if any(member >= len(roster.members) for member in proposal.cohort):
        raise refuse(Reason.UNKNOWN_MEMBER, f"cohort {proposal.cohort} of {len(roster.members)} members")
    if me not in proposal.cohort:
        raise refuse(Reason.NOT_IN_COHORT, f"cohort {proposal.cohort}, own index {me}")
    size = len(proposal.cohort)
    if size < policy.min_cohort:
        raise refuse(Reason.SMALL_COHORT, f"{size}, at least {policy.min_cohort}")
    if policy.fixed_cohort and proposal.cohort != roster.everybody:
        raise refuse(Reason.COHORT_CHANGED, f"{size} of {len(roster.members)} members")
    if proposal.threshold != rules.threshold(size, policy.server):
        raise refuse(Reason.WRONG_THRESHOLD, f"{proposal.threshold}, not {rules.threshold(size, policy.server)}")
    _check_numbers(proposal, roster, policy)


def _check_numbers(proposal: Proposal, roster: Roster, policy: Policy) -> None:
    low, high = policy.bits
    if not max(low, 1) <= proposal.bits <= min(high, MAX_BITS):
        raise refuse(Reason.FORBIDDEN_BITS, f"{proposal.bits}, allowed are {low} to {high}")
    if proposal.weighting not in policy.weights:
        raise refuse(Reason.FORBIDDEN_WEIGHTS, f"weighting {proposal.weighting}")
    width = rules.sum_width(proposal.bits, total_weight(proposal.weighting, roster, proposal.cohort))
    if proposal.width != width or width > rules.MAX_WIDTH:
        raise refuse(Reason.WRONG_WIDTH, f"{proposal.width}, not {width}, at most {rules.MAX_WIDTH}")
    if not 1 <= proposal.count <= policy.max_values:
        raise refuse(Reason.TOO_MANY_VALUES, f"{proposal.count}, at most {policy.max_values}")
    if not 1 <= proposal.attempt <= policy.max_attempts:
        raise refuse(Reason.TOO_MANY_ATTEMPTS, f"attempt {proposal.attempt}, at most {policy.max_attempts}")


def check_enough(members: Collection[int], proposal: Proposal, policy: Policy) -> None:
    """Stages 1 to 3: as many are left as threshold and policy need."""
    needed = rules.members_needed(proposal.threshold, policy.min_survivors)
    if len(members) < needed:
        raise refuse(Reason.TOO_FEW_MEMBERS, f"{len(members)}, at least {needed}")


def check_keys(rows: Mapping[int, bytes], context: bytes, own: bytes, roster: Roster, me: int) -> None:
    """Stage 1: every row is signed by its member for this attempt, all keys differ, and the own row is intact.

    Parameters
    ----------
    rows : mapping of int to bytes
        Advertisement and signature of each member, 160 bytes.
    own : bytes
        The own advertisement, 96 bytes.
    """
    if rows.get(me, b"")[:ADVERTISEMENT_BYTES] != own:
        raise refuse(Reason.OWN_KEY_CHANGED)
    keys = set[bytes]()
    for member, row in rows.items():
        body, signature = row[:ADVERTISEMENT_BYTES], row[ADVERTISEMENT_BYTES:]
        signed = signed_bytes(Kind.ADVERTISEMENT, member, context, body_digest(body))
        if not roster.verify(member, signature, signed):
            raise refuse(Reason.BAD_SIGNATURE, f"keys of member {member}")
        keys |= {body[:KEY_BYTES], body[KEY_BYTES : 2 * KEY_BYTES]}
    if len(keys) != 2 * len(rows):
        raise refuse(Reason.REPEATED_KEY)


def check_acknowledgements(signatures: Mapping[int, bytes], attempt: OpenAttempt, roster: Roster) -> None:
    """Stage 4: as many survivors as the threshold signed exactly the transcript that this member signed."""
    for member, signature in signatures.items():
        if member not in attempt.survivors:
            raise refuse(Reason.UNKNOWN_MEMBER, f"acknowledgement of member {member}")
        signed = signed_bytes(Kind.ACKNOWLEDGEMENT, member, attempt.survivor_transcript, body_digest(b""))
        if not roster.verify(member, signature, signed):
            raise refuse(Reason.BAD_SIGNATURE, f"acknowledgement of member {member}")
    if len(signatures) < attempt.proposal.threshold:
        raise refuse(Reason.TOO_FEW_ACKNOWLEDGEMENTS, f"{len(signatures)}, at least {attempt.proposal.threshold}")


def check_members(members: Collection[int], within: Collection[int]) -> None:
    """Nobody appears who was not there before."""
    strangers = set(members) - set(within)
    if strangers:
        raise refuse(Reason.UNKNOWN_MEMBER, f"bits {encode_members(strangers).hex()}")
