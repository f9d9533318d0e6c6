"""The shapes of training data, named and laid out as in TRL, and told apart by their columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from distro_fed.errors import UnusableData

Format = Literal["messages", "prompt-completion", "text"]

#: columns of each shape, in the order in which they are looked for
FORMAT_COLUMNS: dict[Format, tuple[str, ...]] = {
    "messages": ("messages",),
    "prompt-completion": ("prompt", "completion"),
    "text": ("text",),
}

#: Chat format of a tokenizer that has none: ``Role: content``, an empty line between turns, and the end
#: token after each answer. The generation marks say what is trained.
PLAIN_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}"
    "{{ 'Assistant:' }}"
    "{% generation %}{{ ' ' + message['content'] + (eos_token or '') }}{% endgeneration %}{{ '\n\n' }}"
    "{% else %}{{ message['role'].capitalize() + ': ' + message['content'] + '\n\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)


def detect_format(columns: Iterable[str], source: str) -> Format:
    """Shape of a data set by its columns; further columns are ignored.

    Raises
    ------
    UnusableData
        If no shape fits; the message lists the columns found and the shapes accepted.
    """
    found = list(columns)
    for name, needed in FORMAT_COLUMNS.items():
        if set(needed) <= set(found):
            return name
    accepted = "; ".join(" and ".join(repr(column) for column in needed) for needed in FORMAT_COLUMNS.values())
    raise UnusableData(
        f"{source} has the columns {', '.join(map(repr, found)) or 'none'}; one of these shapes is needed: {accepted}"
    )


def require_text(values: Sequence[object], column: str, source: str) -> list[str]:
    """The values of a column that must all be strings.

    Raises
    ------
    UnusableData
        Naming source, column, row and type, never the content.
    """
    for row, value in enumerate(values, start=1):
        if not isinstance(value, str):
            raise UnusableData(
                f"{source}, column {column!r}, row {row}: expected a string, found {type(value).__name__}"
            )
    return [str(value) for value in values]


def require_messages(value: object, column: str, row: int, source: str) -> list[dict[str, str]]:
    """One conversation: a list of ``{"role": str, "content": str}``; other keys are kept.

    An assistant's message that only calls tools may have no content; it counts as empty.

    Raises
    ------
    UnusableData
        Naming source, column, row and what is wrong, never the content.
    """
    if not isinstance(value, list) or not value:
        raise UnusableData(
            f"{source}, column {column!r}, row {row}: expected a list of messages with role and content, "
            f"found {'an empty list' if value == [] else type(value).__name__}"
        )
    value = [
        {**message, "content": ""}
        if isinstance(message, dict) and message.get("tool_calls") and message.get("content") is None
        else message
        for message in value
    ]
    for number, message in enumerate(value, start=1):
        for key in ("role", "content"):
            if not isinstance(message, dict) or not isinstance(message.get(key), str):
                raise UnusableData(f"{source}, column {column!r}, row {row}, message {number}: {key!r} is not a string")
    return value
