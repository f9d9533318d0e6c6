"""How the server removes what did not cancel: the self-masks of the survivors, and the pairwise masks of the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from distro_fed.errors import RoundAborted
from distro_fed.secure_aggregation import shamir
from distro_fed.secure_aggregation.attempt_crypto import point
from distro_fed.secure_aggregation.key_agreement import (
    KEY_BYTES,
    pair_mask_key,
    private_key,
    public_key,
    self_mask_commitment,
    self_mask_key,
)
from distro_fed.secure_aggregation.masks import Masks


def rebuild_secrets(
    shares: Mapping[int, Mapping[int, bytes]],
    threshold: int,
    advertisements: Mapping[int, bytes],
    survivors: frozenset[int],
    context: bytes,
) -> dict[int, bytes]:
    """One secret of each member who shared: its self-mask if it survived, else its mask key.

    Each is compared with what its owner advertised. If a share is wrong, other sets of ``threshold`` members are tried:
    as many as there are members who answered, so that one who lies spoils nothing as long as one more answers than are
    needed.

    Parameters
    ----------
    shares : mapping
        Shares by the member that answered and then by the owner of the secret; the same owners for all.
    threshold : int
    advertisements : mapping of int to bytes
        What every owner advertised, 96 bytes.
    survivors : frozenset of int
    context : bytes

    Raises
    ------
    RoundAborted
        If a secret cannot be rebuilt.
    """
    missing = set(next(iter(shares.values())))
    secrets = dict[int, bytes]()
    for holders in _sets(sorted(shares), threshold):
        weights = shamir.lagrange_weights([point(holder) for holder in holders])
        for owner in sorted(missing):
            secret = shamir.combine([shares[holder][owner] for holder in holders], weights)
            if _is_secret(secret, owner, advertisements[owner], owner in survivors, context):
                secrets[owner] = secret
                missing.discard(owner)
        if not missing:
            return secrets
    raise RoundAborted(
        f"the shares of {len(shares)} members do not give the secrets of members {sorted(missing)}: some are wrong"
    )


def leftover_masks(
    secrets: Mapping[int, bytes],
    advertisements: Mapping[int, bytes],
    survivors: frozenset[int],
    transcript: bytes,
    width: int,
) -> Masks:
    """Masks that take the sum of the survivors' masked vectors to the sum of their codes."""
    plus, minus = list[bytes](), list[bytes]()
    for owner, secret in secrets.items():
        if owner in survivors:
            minus.append(self_mask_key(secret, transcript, owner))
            continue
        private = private_key(secret)
        for survivor in sorted(survivors):
            public = advertisements[survivor][KEY_BYTES : 2 * KEY_BYTES]
            key = pair_mask_key(private, public, transcript, owner, survivor)
            # the survivor added this mask if it is the lower of the two
            (minus if survivor < owner else plus).append(key)
    return Masks(plus, minus, width)


def _sets(members: Sequence[int], size: int) -> Iterator[list[int]]:
    """Runs of ``size`` neighbours on the circle of members; if there are more, each of them is left out of some run."""
    for start in range(len(members) if len(members) > size else 1):
        yield [members[(start + step) % len(members)] for step in range(size)]


def _is_secret(secret: bytes, owner: int, advertised: bytes, survived: bool, context: bytes) -> bool:
    if survived:
        return self_mask_commitment(context, owner, secret) == advertised[2 * KEY_BYTES :]
    return public_key(private_key(secret)) == advertised[KEY_BYTES : 2 * KEY_BYTES]
