"""Why a client does not do what the server asks: fixed words and sentences, never data."""

from __future__ import annotations

from enum import StrEnum

from distro_fed.errors import Refused


class Reason(StrEnum):
    """Words that may leave the machine; :data:`TEXTS` has a sentence for each."""

    MALFORMED = "malformed"
    UNSUPPORTED_VERSION = "unsupported-version"
    PLAIN_REFUSED = "plain-refused"
    NOT_SET_UP = "not-set-up"

    OTHER_RUN = "other-run"
    OTHER_ROSTER = "other-roster"
    NOT_IN_COHORT = "not-in-cohort"
    SMALL_COHORT = "small-cohort"
    COHORT_CHANGED = "cohort-changed"
    WRONG_THRESHOLD = "wrong-threshold"
    WRONG_WIDTH = "wrong-width"
    FORBIDDEN_BITS = "forbidden-bits"
    FORBIDDEN_WEIGHTS = "forbidden-weights"
    TOO_MANY_VALUES = "too-many-values"
    TOO_MANY_ATTEMPTS = "too-many-attempts"

    UNKNOWN_ATTEMPT = "unknown-attempt"
    OUT_OF_ORDER = "out-of-order"
    ALREADY_ANSWERED = "already-answered"
    STALE_ATTEMPT = "stale-attempt"
    ROUND_CONSUMED = "round-consumed"

    UNKNOWN_MEMBER = "unknown-member"
    TOO_FEW_MEMBERS = "too-few-members"
    BAD_SIGNATURE = "bad-signature"
    BAD_KEY = "bad-key"
    REPEATED_KEY = "repeated-key"
    OWN_KEY_CHANGED = "own-key-changed"
    BAD_SHARE = "bad-share"
    OTHER_MODEL = "other-model"
    OTHER_LAYOUT = "other-layout"
    OTHER_PLAN = "other-plan"
    NOT_A_SURVIVOR = "not-a-survivor"
    TOO_FEW_ACKNOWLEDGEMENTS = "too-few-acknowledgements"


TEXTS: dict[Reason, str] = {
    Reason.MALFORMED: "the message is not a sound message of this protocol",
    Reason.UNSUPPORTED_VERSION: "the message has another protocol version; all members need the same release",
    Reason.PLAIN_REFUSED: "this member's policy allows no update without secure aggregation",
    Reason.NOT_SET_UP: "this member has no usable identity, roster, policy or ledger",
    Reason.OTHER_RUN: "the proposal is for another run",
    Reason.OTHER_ROSTER: "server and member hold different rosters",
    Reason.NOT_IN_COHORT: "the cohort does not contain this member",
    Reason.SMALL_COHORT: "the cohort is smaller than this member's policy allows",
    Reason.COHORT_CHANGED: "this member's policy wants the whole roster as cohort",
    Reason.WRONG_THRESHOLD: "the threshold is not the one that the rule gives for this cohort",
    Reason.WRONG_WIDTH: "the sum's width is not the one that bits, cohort and weights give, or it is above 32 bits",
    Reason.FORBIDDEN_BITS: "this member's policy does not allow so many or so few bits a value",
    Reason.FORBIDDEN_WEIGHTS: "this member's policy does not allow this weighting",
    Reason.TOO_MANY_VALUES: "the vector is longer than this member's policy allows",
    Reason.TOO_MANY_ATTEMPTS: "this member's policy does not allow so many attempts at one round",
    Reason.UNKNOWN_ATTEMPT: "this member holds no such attempt: it took no part, finished, or lost its state",
    Reason.OUT_OF_ORDER: "the stages of an attempt come one after the other",
    Reason.ALREADY_ANSWERED: "this member has answered this stage of this attempt before",
    Reason.STALE_ATTEMPT: "this member has gone on to a later attempt or round",
    Reason.ROUND_CONSUMED: "this member has sent its one masked vector of this round",
    Reason.UNKNOWN_MEMBER: "the message names somebody who is not of the set",
    Reason.TOO_FEW_MEMBERS: "fewer members are left than threshold and policy need",
    Reason.BAD_SIGNATURE: "a signature is not that of the member on this attempt",
    Reason.BAD_KEY: "a member's public key is not usable",
    Reason.REPEATED_KEY: "two public keys are equal",
    Reason.OWN_KEY_CHANGED: "this member's own keys came back changed, or not at all",
    Reason.BAD_SHARE: "a share does not decrypt to a share of this attempt",
    Reason.OTHER_MODEL: "this member trained on another model than the server announced",
    Reason.OTHER_LAYOUT: "this member trains other tensors than the server proposed",
    Reason.OTHER_PLAN: "this member trains or compresses in another way than the server proposed",
    Reason.NOT_A_SURVIVOR: "the survivors do not include this member",
    Reason.TOO_FEW_ACKNOWLEDGEMENTS: "fewer members than the threshold signed this survivor set",
}


def refuse(reason: Reason, detail: str = "") -> Refused:
    """The error for a reason, to be raised; ``detail`` is for this member's own log and is not sent."""
    return Refused(reason, f"{TEXTS[reason]} ({detail})" if detail else TEXTS[reason])
