"""What a member does with a message: in clear, or under the masks of secure aggregation.

Which of the two is for the member to say: one that has files for secure aggregation follows the policy among them, and
that asks for masks unless it says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable

from flwr.app import Context, Message, RecordDict

from distro_fed.clients.masked_upload import MaskedUpload
from distro_fed.clients.process_state import ProcessState
from distro_fed.errors import LedgerError, Refused, SecureAggregationError
from distro_fed.transport.records import CONFIG, Reply, read_request, reply_records
from distro_fed.transport.secure_records import add_messages, read_messages, request_digest

OpenUpload = Callable[[], MaskedUpload]


def answer_light_stages(message: Message, context: Context, state: ProcessState) -> RecordDict:
    """Answer the stages of secure aggregation that need no model.

    Raises
    ------
    SecureAggregationError
        This member has no files for it, or they cannot be used.
    """
    member = state.secure_member(context)
    if member is None:
        raise _no_files()
    return add_messages(RecordDict(), member.answer(read_messages(message.content), context))


def train(message: Message, context: Context, state: ProcessState) -> RecordDict:
    """One round of local training."""
    request = read_request(message)
    masks = _masks(message, context, state)
    participant, info = state.participant(context), state.round_info(request, context)
    if masks is None:
        return reply_records(participant.train(request, info))
    return masks(lambda open_: participant.train_masked(request, info, open_))


def evaluate(message: Message, context: Context, state: ProcessState) -> RecordDict:
    """Held-out loss of the replica that the message is about."""
    request = read_request(message)
    masks = _masks(message, context, state)
    participant, info = state.participant(context), state.round_info(request, context)
    if masks is None:
        return reply_records(participant.evaluate(request, info))
    return masks(lambda open_: participant.evaluate_masked(request, info, open_))


def _masks(
    message: Message, context: Context, state: ProcessState
) -> Callable[[Callable[[OpenUpload], tuple[Reply, bytes]]], RecordDict] | None:
    """What turns masked work into a reply; None if the message asks for work in clear, and this member gives it.

    Raises
    ------
    Refused
        The policy allows nothing in clear.
    """
    deliveries, member = read_messages(message.content), state.secure_member(context)
    if not deliveries:
        if member is not None:
            member.policy.refuse_plain()
        return None
    if member is None:
        raise _no_files()
    asked = request_digest(message.content.config_records[CONFIG])

    def reply(work: Callable[[OpenUpload], tuple[Reply, bytes]]) -> RecordDict:
        try:
            words, masked = work(lambda: MaskedUpload.open(member, deliveries[0], context, asked))
        except (Refused, LedgerError) as error:
            return add_messages(RecordDict(), [member.session.refusal(error, deliveries[0])])
        content = reply_records(words)
        return add_messages(content, [masked]) if masked else content

    return reply


def _no_files() -> SecureAggregationError:
    return SecureAggregationError(
        "the server asks for secure aggregation, but this node's config names no 'secure-folder' with identity.toml, "
        "roster.toml and policy.toml"
    )
