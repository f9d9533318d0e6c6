"""The one masked vector that a member sends in a round of secure aggregation."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray

from distro_fed.clients.secure_member import SecureMember
from distro_fed.compression.round_code import integer_code
from distro_fed.layout import Layout
from distro_fed.replica import Replica
from distro_fed.secure_aggregation.digests import layout_digest, model_digest, plan_digest, work_digest
from distro_fed.secure_aggregation.update_vector import summable, times_weight, to_vector
from distro_fed.secure_aggregation.weighting import LARGEST_MASKED, Weighting, own_weight, proposed_bits
from distro_fed.settings import RunSettings
from distro_fed.transport.secure_records import keep_state, kept_state

if TYPE_CHECKING:
    from distro_fed.secure_aggregation.client_session import Delivery

log = logging.getLogger("distro_fed")


@dataclass(frozen=True)
class MaskedUpload:
    """Made before training, so that a request that must be refused costs no training; used once after it.

    Parameters
    ----------
    member : SecureMember
    delivery : Delivery
        What the server has sent for this round, checked.
    context : flwr.app.Context
        Carries the member's state.
    request : bytes
        Digest of what the server asks for.
    work : bytes
        Digest of the settings that this member trains with.
    weight_unit : int
        Training examples that weigh 1 where weights are masked.
    """

    member: SecureMember
    delivery: Delivery
    context: Context
    request: bytes
    work: bytes
    weight_unit: int

    @classmethod
    def open(
        cls, member: SecureMember, message: bytes, context: Context, request: bytes, settings: RunSettings
    ) -> MaskedUpload:
        """Check a delivery.

        Raises
        ------
        Refused
            With the reason; nothing has changed.
        """
        delivery = member.session.receive_shares(message, kept_state(context))
        return cls(member, delivery, context, request, work_digest(settings), settings.security.weight_unit)

    @property
    def rounding_seed(self) -> int:
        """Seed of the stochastic rounding that nobody else knows, 0 <= seed < 2**63."""
        return int.from_bytes(self.delivery.rounding_key[:8], "little") >> 1

    def send_update(
        self, body: bytes, space: Layout, numbers: Sequence[float | None], replica: Replica, examples: int
    ) -> bytes:
        """Mask a coded update; the scales that were measured and some more numbers go under the masks too.

        Parameters
        ----------
        body : bytes
            Coded by the integer code of the uplink compressor, in ``space``.
        numbers : sequence of float or None
            One for each of :data:`~distro_fed.secure_aggregation.update_vector.METRICS`; those that are None, negative
            or not finite are missing in the mean.
        replica : Replica
            What training started from.
        examples : int
            Training examples of this member; they make its weight where weights are masked, and tell nothing else.
        """
        code = integer_code(replica.agreement.uplink)
        codes, scales = code.integers(body, space)
        weighting, further = self.delivery.proposal.weighting, summable(numbers)
        bits = proposed_bits(weighting, code.bits)
        if weighting == Weighting.MASKED:
            weight = own_weight(examples, self.weight_unit)
            log.info("secure aggregation: %d examples weigh %d of 1 to %d", examples, weight, LARGEST_MASKED)
            weighted, weighted_scales = times_weight(codes, scales, weight)
            vector = to_vector(weighted, [*weighted_scales.tolist(), *further, float(weight)], bits)
        else:
            vector = to_vector(codes, [*scales.tolist(), *further], bits)
        return self._send(vector, space.digest, replica)

    def send_losses(self, losses: Sequence[float | None], replica: Replica) -> bytes:
        """Mask losses alone."""
        vector = to_vector(np.empty(0, np.uint8), summable(losses), self.delivery.proposal.bits)
        return self._send(vector, b"", replica)

    def _send(self, vector: NDArray[np.unsignedinteger], space: bytes, replica: Replica) -> bytes:
        answer = self.member.session.send_masked(
            self.delivery,
            vector,
            model=model_digest(replica.chain + self.request),
            layout=layout_digest(space),
            plan=plan_digest(replica.agreement.run, self.work),
        )
        keep_state(self.context, answer.state)
        return answer.reply
