from __future__ import annotations

import pytest

from distro_fed.data.formats import detect_format, require_messages, require_text
from distro_fed.errors import UnusableData


@pytest.mark.parametrize(
    ("columns", "shape"),
    [
        (["text"], "text"),
        (["id", "completion", "prompt"], "prompt-completion"),
        (["messages", "source"], "messages"),
        (["text", "messages", "prompt", "completion"], "messages"),
        (["text", "prompt", "completion"], "prompt-completion"),
        (["text", "prompt"], "text"),
    ],
)
def test_the_shape_follows_from_the_columns(columns: list[str], shape: str) -> None:
    assert detect_format(columns, "f") == shape


@pytest.mark.parametrize("columns", ([], ["prompt"], ["instruction", "output"]))
def test_other_columns_are_listed_with_the_shapes(columns: list[str]) -> None:
    with pytest.raises(UnusableData, match=r"one of these shapes .*'prompt' and 'completion'") as caught:
        detect_format(columns, "notes.jsonl")
    assert "notes.jsonl" in str(caught.value)
    for column in columns:
        assert repr(column) in str(caught.value)


def test_text_columns_hold_strings_only() -> None:
    assert require_text(["a", "b"], "text", "f") == ["a", "b"]
    with pytest.raises(UnusableData, match=r"notes\.jsonl, column 'text', row 2: expected a string, found NoneType"):
        require_text(["secret", None], "text", "notes.jsonl")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("secret", "found str"),
        ([], "found an empty list"),
        (["secret"], "message 1: 'role' is not a string"),
        ([{"role": "user", "content": "secret"}, {"role": "user"}], "message 2: 'content' is not a string"),
    ],
)
def test_messages_hold_role_and_content(value: object, message: str) -> None:
    with pytest.raises(UnusableData, match=f"f.jsonl, column 'messages', row 7.*{message}") as caught:
        require_messages(value, "messages", 7, "f.jsonl")
    assert "secret" not in str(caught.value)
