"""What a member computes from its secrets and the transcript of one attempt."""

from __future__ import annotations

from distro_fed.errors import EncodingError
from distro_fed.secure_aggregation.client_state import OpenAttempt
from distro_fed.secure_aggregation.key_agreement import (
    KEY_BYTES,
    ShareChannel,
    exchange,
    pair_mask_key,
    public_key,
    self_mask_key,
)
from distro_fed.secure_aggregation.masks import Masks
from distro_fed.secure_aggregation.refusals import Reason, refuse
from distro_fed.secure_aggregation.shamir import SHARE_BYTES, read_share


def point(member: int) -> int:
    """Where a member's share lies on everybody's polynomials."""
    return member + 1


def advertisement(attempt: OpenAttempt) -> bytes:
    """Public keys for shares and for masks, and the commitment to the self-mask: 96 bytes."""
    secrets = attempt.secrets
    return public_key(secrets.channel_private) + public_key(secrets.mask_private) + secrets.commitment(attempt.me)


def encrypted_shares(attempt: OpenAttempt) -> dict[int, bytes]:
    """For each other member a share of both secrets, 80 bytes."""
    others = [member for member in attempt.keys if member != attempt.me]
    shares = attempt.secrets.shares([point(member) for member in others], attempt.proposal.threshold)
    return {
        member: _channel(attempt, attempt.me, member).encrypt(pair) for member, pair in zip(others, shares, strict=True)
    }


def open_shares(attempt: OpenAttempt, sender: int) -> bytes:
    """The shares that another member encrypted to this one: of its mask key and of its self-mask, 64 bytes.

    Raises
    ------
    Refused
        ``bad-share``, or ``bad-key`` if the sender's public key is of low order.
    """
    pair = _channel(attempt, sender, attempt.me).decrypt(attempt.delivered[1][sender])
    try:
        read_share(pair[:SHARE_BYTES])
        read_share(pair[SHARE_BYTES:])
    except EncodingError as error:
        raise refuse(Reason.BAD_SHARE, f"member {sender}: {error}") from None
    return pair


def unmask_shares(attempt: OpenAttempt) -> dict[int, bytes]:
    """For each member who shared exactly one share: of its self-mask if its vector is in the sum, else of its mask key.

    Both kinds together would open a single vector.
    """
    pairs = {member: open_shares(attempt, member) for member in attempt.sharers - {attempt.me}}
    [pairs[attempt.me]] = attempt.secrets.shares([point(attempt.me)], attempt.proposal.threshold)
    return {
        member: pair[SHARE_BYTES:] if member in attempt.survivors else pair[:SHARE_BYTES]
        for member, pair in pairs.items()
    }


def vector_masks(attempt: OpenAttempt) -> Masks:
    """All masks of this member's vector; of two members the lower index adds and the other subtracts."""
    secrets, transcript, me = attempt.secrets, attempt.masking_transcript, attempt.me
    plus, minus = [self_mask_key(secrets.self_mask, transcript, me)], list[bytes]()
    for other in sorted(attempt.sharers - {me}):
        public = attempt.keys[other][KEY_BYTES : 2 * KEY_BYTES]
        key = pair_mask_key(secrets.mask_private, public, transcript, me, other)
        (plus if me < other else minus).append(key)
    return Masks(plus, minus, attempt.proposal.width)


def _channel(attempt: OpenAttempt, sender: int, receiver: int) -> ShareChannel:
    other = receiver if sender == attempt.me else sender
    secret = exchange(attempt.secrets.channel_private, attempt.keys[other][:KEY_BYTES])
    return ShareChannel(secret, attempt.keys_transcript, sender, receiver)
