from __future__ import annotations

from typing import Any

import pytest
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from distro_fed.data.tokenize import Example, Tokenized, tokenize_examples
from distro_fed.errors import UnusableData
from tests.tiny import END, tiny_tokenizer

CHAT = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "yo"},
    {"role": "user", "content": "and?"},
    {"role": "assistant", "content": "so"},
]


def _tokenize(rows: list[dict[str, Any]], tokenizer: Any, max_length: int = 1000) -> Tokenized:
    return tokenize_examples(Dataset.from_list(rows), tokenizer, max_length=max_length, source="notes.jsonl")


def _spelled(tokenizer: Any, example: Example) -> tuple[str, list[str]]:
    """The whole text, and each run of trained tokens as text."""
    runs: list[list[int]] = [[]]
    for token, label in zip(example.input_ids, example.labels, strict=True):
        assert label in (-100, token)
        if label == -100:
            runs.append([])
        else:
            runs[-1].append(token)
    return tokenizer.decode(example.input_ids), [tokenizer.decode(run) for run in runs if run]


@pytest.mark.parametrize("pad", ("own", "eos", "none"))
@pytest.mark.parametrize(
    ("row", "whole", "trained"),
    [
        ({"text": "abc"}, f"abc{END}", [f"abc{END}"]),
        ({"prompt": "ab", "completion": " cd"}, f"ab cd{END}", [f" cd{END}"]),
        ({"prompt": "", "completion": "cd"}, f"cd{END}", [f"cd{END}"]),
    ],
)
def test_plain_text_is_trained_with_its_end_whatever_the_pad_token_is(
    pad: Any, row: dict[str, str], whole: str, trained: list[str]
) -> None:
    tokenizer = tiny_tokenizer(pad=pad)
    (example,) = _tokenize([row], tokenizer).examples
    assert _spelled(tokenizer, example) == (whole, trained)
    assert example.labels[-1] == tokenizer.eos_token_id


@pytest.mark.parametrize("chat", ("plain", "generation"))
def test_of_a_conversation_only_the_answers_and_their_ends_are_trained(chat: Any) -> None:
    tokenizer = tiny_tokenizer(pad="eos", chat=chat)
    (example,) = _tokenize([{"messages": CHAT}], tokenizer).examples
    whole, trained = _spelled(tokenizer, example)
    assert whole == tokenizer.apply_chat_template(CHAT, tokenize=False)
    assert trained == [f"yo{END}", f"so{END}"]


def test_a_tokenizer_without_chat_template_has_a_plain_format() -> None:
    tokenizer = tiny_tokenizer(chat="none")
    (example,) = _tokenize([{"messages": CHAT}], tokenizer).examples
    whole, trained = _spelled(tokenizer, example)
    assert whole == f"User: hi\n\nAssistant: yo{END}\n\nUser: and?\n\nAssistant: so{END}\n\n"
    assert trained == [f" yo{END}", f" so{END}"]


@pytest.mark.parametrize("chat", ("none", "plain", "generation"))
def test_of_a_prompt_in_messages_nothing_is_trained(chat: Any) -> None:
    tokenizer = tiny_tokenizer(chat=chat)
    (example,) = _tokenize([{"prompt": CHAT[:3], "completion": CHAT[3:]}], tokenizer).examples
    _, trained = _spelled(tokenizer, example)
    assert [run.strip() for run in trained] == [f"so{END}"]


def test_a_template_that_rewrites_history_trains_only_the_turns_it_keeps() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}[{{ m['role'] }}]"
        "{% if m['role'] == 'assistant' and not loop.last %}...{% else %}{{ m['content'] }}{% endif %}<|im_end|>"
        "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    (example,) = _tokenize([{"messages": CHAT}], tokenizer).examples
    whole, trained = _spelled(tokenizer, example)
    assert whole == f"[user]hi{END}[assistant]...{END}[user]and?{END}[assistant]so{END}"
    assert trained == [f"so{END}"]


def test_an_end_token_just_outside_the_generation_marks_is_trained() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}"
        "{% endgeneration %}{% else %}{{ m['content'] }}{% endif %}<|im_end|>{% endfor %}"
    )
    (example,) = _tokenize([{"messages": CHAT}], tokenizer).examples
    assert _spelled(tokenizer, example)[1] == [f"yo{END}", f"so{END}"]


def test_an_answer_without_any_end_in_the_template_gets_one() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    (example,) = _tokenize([{"messages": CHAT}], tokenizer).examples
    assert _spelled(tokenizer, example) == (f"<user>hi<assistant>yo<user>and?<assistant>so{END}", ["yo", f"so{END}"])


def test_a_tokenizer_that_adds_start_and_end_by_itself_gets_them_once() -> None:
    from tokenizers.processors import TemplateProcessing

    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|im_start|> $A <|im_end|>", special_tokens=[("<|im_start|>", 256), (END, 257)]
    )
    tokenizer.bos_token = "<|im_start|>"
    (text,) = _tokenize([{"text": "ab"}, {"text": ""}], tokenizer).examples
    assert text.input_ids == [256, 64, 65, 257]
    (pair,) = _tokenize([{"prompt": "ab", "completion": "c"}], tokenizer).examples
    assert (pair.input_ids, pair.labels) == ([256, 64, 65, 66, 257], [-100, -100, -100, 66, 257])


def test_a_truncated_example_does_not_learn_to_stop_there() -> None:
    tokenizer = tiny_tokenizer()
    result = _tokenize(
        [
            {"prompt": "ab", "completion": "cdef"},
            {"prompt": "abcdefgh", "completion": "i"},
            {"prompt": "ab", "completion": ""},
            {"prompt": "abc", "completion": "d"},
        ],
        tokenizer,
        max_length=5,
    )
    assert [_spelled(tokenizer, example) for example in result.examples] == [
        ("abcde", ["cde"]),
        (f"abcd{END}", [f"d{END}"]),
    ]
    assert (result.dropped, result.truncated) == (2, 2)


def test_the_first_token_counts_as_trained_for_nobody() -> None:
    tokenizer = tiny_tokenizer()
    (example,) = _tokenize([{"text": "abc"}, {"text": ""}], tokenizer).examples
    assert example.trained_tokens == 3
    assert _tokenize([{"text": "abc"}, {"text": "x"}], tokenizer, max_length=1 + 1).dropped == 0
    assert Example([1], [1]).trained_tokens == 0


@pytest.mark.parametrize(
    ("rows", "column"),
    [
        ([{"prompt": "abcdefgh", "completion": "i"}] * 3, "completion"),
        ([{"text": ""}] * 3, "text"),
        ([{"messages": CHAT[:1]}] * 3, "messages"),
    ],
)
def test_nothing_left_to_train_names_file_column_and_length(rows: list[dict[str, Any]], column: str) -> None:
    with pytest.raises(UnusableData, match=f"notes.jsonl: .*'{column}': all 3 rows .* max_length = 5 tokens"):
        _tokenize(rows, tiny_tokenizer(), max_length=5)


def test_a_wrong_value_names_file_column_and_row() -> None:
    with pytest.raises(UnusableData, match=r"notes\.jsonl, column 'completion', row 2"):
        _tokenize([{"prompt": "a", "completion": "b"}, {"prompt": "a", "completion": None}], tiny_tokenizer())
    with pytest.raises(UnusableData, match=r"notes\.jsonl has the columns 'question'"):
        _tokenize([{"question": "a"}], tiny_tokenizer())


@settings(deadline=None, max_examples=50)
@given(prompt=st.text(max_size=20), completion=st.text(max_size=20), max_length=st.integers(1, 60))
def test_ids_spell_the_text_and_labels_cover_the_completion(prompt: str, completion: str, max_length: int) -> None:
    tokenizer = tiny_tokenizer(pad="eos")
    prompt_bytes, completion_bytes = len(prompt.encode()), len(completion.encode())
    kept = max(0, min(prompt_bytes + completion_bytes + 1, max_length) - max(prompt_bytes, 1))
    if not completion or not kept:
        with pytest.raises(UnusableData):
            _tokenize([{"prompt": prompt, "completion": completion}], tokenizer, max_length)
        return
    (example,) = _tokenize([{"prompt": prompt, "completion": completion}], tokenizer, max_length).examples
    assert example.trained_tokens == kept
    assert tokenizer.decode(example.input_ids, skip_special_tokens=True) == (prompt + completion).encode()[
        :max_length
    ].decode(errors="replace")
