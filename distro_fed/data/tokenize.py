"""From text to token ids with labels: which tokens are trained, and where an example ends.

* ``text``: every token is trained, and the end token after them.
* ``prompt`` and ``completion`` as strings: joined as they are (write the space between them yourself); the
  completion and the end token are trained.
* ``prompt`` and ``completion`` as message lists, and ``messages``: laid out by the tokenizer's chat template, or
  by :data:`~distro_fed.data.formats.PLAIN_CHAT_TEMPLATE` if it has none; only assistant turns are trained (of a
  prompt, none).

The end token is trained even where pad and end are the same token, because nothing here looks at ids to find
padding.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distro_fed.data.formats import PLAIN_CHAT_TEMPLATE, detect_format, require_messages, require_text
from distro_fed.errors import UnusableData

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

#: label of a token that is not trained
IGNORE = -100

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Example:
    """One tokenised example; ``labels`` are ``input_ids`` where trained and -100 elsewhere, not shifted."""

    input_ids: list[int]
    labels: list[int]

    @property
    def trained_tokens(self) -> int:
        """Tokens that the model is asked to predict; the first one has nothing before it."""
        return sum(label != IGNORE for label in self.labels[1:])


@dataclass(frozen=True, slots=True)
class Tokenized:
    """A tokenised data set.

    Attributes
    ----------
    examples : list of Example
        Never empty; in the order of the rows.
    dropped : int
        Rows of which no trained token was left.
    truncated : int
        Rows that were longer than ``max_length``, dropped ones included.
    """

    examples: list[Example]
    dropped: int
    truncated: int


def tokenize_examples(
    dataset: Dataset, tokenizer: PreTrainedTokenizerBase, *, max_length: int, source: str = "the data"
) -> Tokenized:
    """Tokenise a data set of any of the three shapes.

    Parameters
    ----------
    dataset : datasets.Dataset
        Rows in one of the shapes of :data:`~distro_fed.data.formats.FORMAT_COLUMNS`.
    tokenizer : transformers.PreTrainedTokenizerBase
        With or without pad token and chat template.
    max_length : int
        Longer examples lose their end, and the end token with it.
    source : str
        Name of the data for error messages.

    Raises
    ------
    UnusableData
        If the columns fit no shape, a value has the wrong type, or no trained token is left at all.
    """
    shape = detect_format(dataset.column_names, source)
    if shape == "text":
        pairs = _text(require_text(dataset["text"][:], "text", source), tokenizer)
    elif shape == "messages":
        rows = (require_messages(value, "messages", row, source) for row, value in enumerate(dataset["messages"], 1))
        pairs = (_conversation(messages, tokenizer) for messages in rows)
    elif dataset.num_rows and isinstance(dataset[0]["prompt"], list):
        pairs = (
            _conversation(
                [
                    *require_messages(prompt, "prompt", row, source),
                    *require_messages(completion, "completion", row, source),
                ],
                tokenizer,
                first_trained=len(prompt),
            )
            for row, (prompt, completion) in enumerate(zip(dataset["prompt"], dataset["completion"], strict=True), 1)
        )
    else:
        prompts = require_text(dataset["prompt"][:], "prompt", source)
        completions = require_text(dataset["completion"][:], "completion", source)
        pairs = _prompt_completion(prompts, completions, tokenizer)

    examples, dropped, truncated = [], 0, 0
    for ids, labels in pairs:
        truncated += len(ids) > max_length
        example = Example(ids[:max_length], labels[:max_length])
        if example.trained_tokens:
            examples.append(example)
        else:
            dropped += 1
    if not examples:
        column = {"text": "text", "messages": "messages"}.get(shape, "completion")
        raise UnusableData(
            f"{source}: nothing to train on in column {column!r}: all {dropped} rows are empty or lose it to "
            f"max_length = {max_length} tokens ({truncated} rows are longer); raise max-length or check the column"
        )
    return Tokenized(examples, dropped, truncated)


_Pair = tuple[list[int], list[int]]


def _text(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> Iterator[_Pair]:
    for ids in _encode(texts, tokenizer):
        # a text without tokens has no end to learn
        complete = [*ids, *_end(tokenizer)] if _content(ids, tokenizer) else []
        yield complete, complete


def _prompt_completion(
    prompts: Sequence[str], completions: Sequence[str], tokenizer: PreTrainedTokenizerBase
) -> Iterator[_Pair]:
    answers = tokenizer(list(completions), add_special_tokens=False)["input_ids"] if completions else []
    for prompt, answer in zip(_encode(prompts, tokenizer), answers, strict=True):
        # Tokenised apart, as at generation time, so that the border between both is a border of tokens.
        trained = [*answer, *_end(tokenizer)] if answer else []
        yield prompt + trained, [IGNORE] * len(prompt) + trained


def _conversation(messages: list[Message], tokenizer: PreTrainedTokenizerBase, first_trained: int = 0) -> _Pair:
    """Ids of a whole conversation; labels on its assistant turns from ``first_trained`` on."""
    template = _template(tokenizer)
    marked = re.search(r"\{%-?\s*generation\b", template) is not None
    if marked and first_trained == 0:
        encoded = _render(messages, tokenizer, return_dict=True, return_assistant_tokens_mask=True)
        ids, spans = list(encoded["input_ids"]), list(_runs(encoded["assistant_masks"]))
    else:
        ids = _render(messages, tokenizer)
        spans = list(_assistant_spans(messages, ids, tokenizer, first_trained))
    labels = [IGNORE] * len(ids)
    for start, stop in spans:
        stop = _turn_end(ids, start, stop, tokenizer)
        labels[start:stop] = ids[start:stop]
    if spans and spans[-1][1] == len(ids) and labels[-1] != IGNORE and ids[-1] not in _special_ids(tokenizer):
        ids, labels = ids + _end(tokenizer), labels + _end(tokenizer)
    return ids, labels


def _assistant_spans(
    messages: list[Message], ids: list[int], tokenizer: PreTrainedTokenizerBase, first: int
) -> Iterator[tuple[int, int]]:
    """Where each assistant turn lies in ``ids``, found by rendering the conversation up to it.

    The tokens before a turn, with the header that asks for an answer, and the tokens up to its end must
    both be prefixes of the whole. Templates that rewrite history (dropping the reasoning of earlier
    turns) break that for earlier turns: these stay untrained rather than be trained wrongly.
    """
    for index in range(first, len(messages)):
        if messages[index]["role"] != "assistant":
            continue
        before = _render(messages[:index], tokenizer, add_generation_prompt=True) if index else []
        upto = _render(messages[: index + 1], tokenizer)
        if ids[: len(upto)] == upto and upto[: len(before)] == before:
            yield len(before), len(upto)


def _turn_end(ids: list[int], start: int, stop: int, tokenizer: PreTrainedTokenizerBase) -> int:
    """Let a turn end with its end token.

    A line break that a template writes after the token is never generated; a token that stands just
    outside the generation marks still has to be learnt.
    """
    end = tokenizer.eos_token_id
    for place in range(stop - 1, start - 1, -1):
        if ids[place] == end:
            return place + 1
    return stop + 1 if ids[stop : stop + 1] == [end] else stop


def _render(messages: list[Message], tokenizer: PreTrainedTokenizerBase, **options: Any) -> Any:
    options.setdefault("return_dict", False)
    return tokenizer.apply_chat_template(messages, chat_template=_template(tokenizer), tokenize=True, **options)


def _template(tokenizer: PreTrainedTokenizerBase) -> str:
    return tokenizer.get_chat_template() if tokenizer.chat_template else PLAIN_CHAT_TEMPLATE


def _runs(mask: Iterable[int]) -> Iterator[tuple[int, int]]:
    start = None
    for place, marked in enumerate([*mask, 0]):
        if marked and start is None:
            start = place
        elif not marked and start is not None:
            yield start, place
            start = None


def _encode(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """Token ids with the tokenizer's own start token, without an end token that it might add."""
    if not texts:
        return []
    encoded: list[list[int]] = tokenizer(list(texts))["input_ids"]
    end = _end(tokenizer)
    if end and tokenizer("a")["input_ids"][-1:] == end:
        return [ids[:-1] for ids in encoded]
    return encoded


def _content(ids: list[int], tokenizer: PreTrainedTokenizerBase) -> bool:
    return any(token != tokenizer.bos_token_id for token in ids)


def _end(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    return [] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]


def _special_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    return set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
