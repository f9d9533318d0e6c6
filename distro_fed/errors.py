"""Every error that this package raises on purpose, as one tree.

A message says what was found (the value), what was expected, and the way out. ``code`` is a stable
kebab-case word that may leave the machine: it never holds a value, a path or a text.

::

    DistroFedError
    ├── SettingsError            a run setting is unknown, of the wrong type or out of range
    ├── ModelError
    │   ├── ModelNotFound        not a folder, not installed, not in the local cache
    │   ├── ModelDigestMismatch  the weights are not the ones that were named
    │   ├── QuantizationUnavailable    no library or no device for a base in 4 or 8 bits
    │   └── LayoutMismatch       other tensors (names, shapes, dtypes) than this run trains
    ├── DataError
    │   ├── DataNotFound
    │   └── UnusableData         empty, wrong columns, or nothing left after truncation
    ├── TrainingError            a local loss or update is not finite
    ├── UpdateError              a received update is refused
    │   ├── TruncatedFrame / BadMagic / UnsupportedVersion / UnknownCodec / ChecksumMismatch
    │   ├── WrongRun / WrongLayout / WrongBase / WrongCodec
    │   ├── CorruptBody
    │   └── UnusableScales       of a round in which all members code with the same scales
    ├── ReplicaError             a replica or its update log cannot serve what is asked
    ├── FederationError
    │   ├── NotEnoughNodes
    │   ├── CheckpointError      what a run has saved is damaged, or belongs to another run
    │   └── PeerLost / PeersDiffer   a peer cannot be reached, or has other parameters
    ├── DeploymentError          a certificate or key of a deployment cannot be made or used
    ├── EgressError              something may not leave this machine
    │   ├── EgressRefused        the node's own rules do not let it
    │   └── EgressLogError       the log of what left cannot be written or was tampered with
    └── SecureAggregationError
        ├── IdentityError / RosterError / PolicyError / LedgerError    a file of this member
        ├── EncodingError        values cannot be coded for a secure sum
        ├── Refused              a client does not do what the server asks
        ├── BadReply             the server does not take what a client answered
        └── RoundAborted         too few members are left, or the sum is not one
"""

from __future__ import annotations

from typing import ClassVar


class DistroFedError(Exception):
    """Base of all errors of this package."""

    code: ClassVar[str] = "error"


class SettingsError(DistroFedError):
    """A run setting is unknown, of the wrong type, or out of range."""

    code = "settings"


class ModelError(DistroFedError):
    """A base model or adapter cannot be used."""

    code = "model"


class ModelNotFound(ModelError):
    """The named model is neither a folder, nor packaged, nor in the local cache."""

    code = "model-not-found"


class ModelDigestMismatch(ModelError):
    """The weights found are not the weights that were named."""

    code = "model-digest-mismatch"


class LayoutMismatch(ModelError):
    """Tensors differ in name, order, shape or dtype from what the run trains."""

    code = "layout-mismatch"


class QuantizationUnavailable(ModelError):
    """A base model in 4 or 8 bits is asked of a machine that cannot hold it."""

    code = "quantization-unavailable"


class DataError(DistroFedError):
    """Training or held-out data cannot be used."""

    code = "data"


class DataNotFound(DataError):
    """The named data does not exist on this machine."""

    code = "data-not-found"


class UnusableData(DataError):
    """Data is empty, has the wrong columns, or nothing is left of it after truncation."""

    code = "unusable-data"


class TrainingError(DistroFedError):
    """Local training produced something that must not be sent, such as a NaN."""

    code = "training"


class UpdateError(DistroFedError):
    """A received update is refused."""

    code = "update"


class TruncatedFrame(UpdateError):
    """The bytes end before, or go on after, the frame does."""

    code = "truncated-frame"


class BadMagic(UpdateError):
    """The bytes are not a frame of this format."""

    code = "bad-magic"


class UnsupportedVersion(UpdateError):
    """The frame has a format version that this release does not read."""

    code = "unsupported-version"


class UnknownCodec(UpdateError):
    """The frame names a codec or kind that this release does not know."""

    code = "unknown-codec"


class ChecksumMismatch(UpdateError):
    """The frame was damaged on its way."""

    code = "checksum-mismatch"


class WrongRun(UpdateError):
    """The update belongs to another run."""

    code = "wrong-run"


class WrongLayout(UpdateError):
    """The update was made for other tensors (rank, target modules, base model)."""

    code = "wrong-layout"


class WrongBase(UpdateError):
    """The update was made on top of another version of the replica."""

    code = "wrong-base"


class WrongCodec(UpdateError):
    """The update was made by another compressor, or one with other parameters."""

    code = "wrong-codec"


class CorruptBody(UpdateError):
    """The body breaks a rule of its codec: counts, order, range, or a value that is not finite."""

    code = "corrupt-body"


class UnusableScales(UpdateError):
    """The scales that all members of a round are to code with are not one usable number for each tensor."""

    code = "unusable-scales"


class ReplicaError(DistroFedError):
    """A replica or its update log cannot serve what is asked of it."""

    code = "replica"


class FederationError(DistroFedError):
    """The federation as a whole cannot go on."""

    code = "federation"


class NotEnoughNodes(FederationError):
    """Fewer nodes than needed came in time."""

    code = "not-enough-nodes"


class CheckpointError(FederationError):
    """What a run has saved is damaged, or belongs to another run than the one that is to go on."""

    code = "checkpoint"


class PeerLost(FederationError):
    """Another peer, or the aggregator between peers, cannot be reached."""

    code = "peer-lost"


class PeersDiffer(FederationError):
    """Peers that must have equal parameters have not."""

    code = "peers-differ"


class DeploymentError(DistroFedError):
    """A certificate or key of a deployment cannot be made or used."""

    code = "deployment"


class EgressError(DistroFedError):
    """Something may not leave this machine."""

    code = "egress"


class EgressRefused(EgressError):
    """The node's own rules do not let it leave."""

    code = "egress-refused"


class EgressLogError(EgressError):
    """The log of what left cannot be written, or somebody has changed it."""

    code = "egress-log"


class SecureAggregationError(DistroFedError):
    """Secure aggregation cannot be done as asked."""

    code = "secure-aggregation"


class IdentityError(SecureAggregationError):
    """The file with a member's signing key is missing, damaged or readable by others."""

    code = "identity"


class RosterError(SecureAggregationError):
    """The list of members and their public keys is missing or wrong."""

    code = "roster"


class PolicyError(SecureAggregationError):
    """The file that says what this member agrees to is missing or wrong."""

    code = "policy"


class LedgerError(SecureAggregationError):
    """The record of the rounds that this member took part in is missing or damaged."""

    code = "ledger"


class EncodingError(SecureAggregationError):
    """Values, scales or counts cannot be coded as integers for a secure sum."""

    code = "secure-encoding"


class Refused(SecureAggregationError):
    """A client refuses what the server asks of it.

    ``reason`` is a stable word that may leave the machine
    (:class:`distro_fed.secure_aggregation.refusals.Reason`).
    """

    code = "refused"

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(f"{reason}: {text}")
        self.reason = reason


class BadReply(SecureAggregationError):
    """The server refuses the reply of one member, who is left out."""

    code = "bad-reply"


class RoundAborted(SecureAggregationError):
    """A round gives no sum; the model stays as it was."""

    code = "round-aborted"
