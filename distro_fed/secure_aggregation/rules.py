"""Numbers that follow from the size of the cohort, so that no party can choose them."""

from __future__ import annotations

from enum import StrEnum

#: most bits of a sum
MAX_WIDTH = 32


class ServerModel(StrEnum):
    """What the members expect of the server."""

    #: it may deviate from the protocol in every way
    MALICIOUS = "malicious"
    #: it follows the protocol and learns from what it sees
    HONEST_BUT_CURIOUS = "honest-but-curious"


def threshold(cohort_size: int, server: ServerModel) -> int:
    """Members that can remove masks together.

    Malicious server: ``floor(2n/3) + 1``, so that two sets of so many members have more than n/3 in common and
    hence an honest member, as long as fewer than n/3 collude (Bonawitz et al. 2017, section 6.2: 2t > n + colluders).
    Honest-but-curious: a majority, ``floor(n/2) + 1``.
    """
    if server is ServerModel.MALICIOUS:
        return 2 * cohort_size // 3 + 1
    return cohort_size // 2 + 1


def sum_width(bits: int, weight: int) -> int:
    """Bits b of the modulus ``2**b`` in which codes of ``bits`` bits are summed: ``bits + ceil(log2 W)``.

    ``weight`` is the sum W of the weights of a whole cohort, which without weights is its size.
    ``W (2**bits - 1) < 2**b``: the sum of a whole cohort never wraps around.
    """
    return bits + (weight - 1).bit_length()


def largest_sum(bits: int, weight: int) -> int:
    """Largest sum of codes of members with these weights together; a greater one is none."""
    return weight * ((1 << bits) - 1)


def members_needed(threshold: int, min_survivors: int) -> int:
    """Members without whom no stage goes on."""
    return max(threshold, min_survivors)
