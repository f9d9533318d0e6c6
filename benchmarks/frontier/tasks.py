"""The two tasks: their text, their model, and what all runs on them have in common."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distro_fed.data.qa_organisations import prepare_organisations
from distro_fed.files import atomic_folder, cache_dir

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedTokenizerBase

    from distro_fed.data.tokenize import Example

# Raise it when a task changes: results of another version do not compare.
VERSION = 1
ORGANISATIONS = ("mathematics", "medicine", "reading", "trivia")
TRAIN_EXAMPLES = {"real": 512, "small": 4000}
TEST_EXAMPLES = {"real": 64, "small": 95}


@dataclass(frozen=True)
class Task:
    """Text and model of a task.

    Attributes
    ----------
    name : str
    folder : Path
        ``<client>/train.jsonl`` for every client, in ``clients-<n>``, and ``test/<organisation>.jsonl``.
    settings : mapping
        Settings of the product that all runs share.
    """

    name: str
    folder: Path
    settings: Mapping[str, Any]

    def clients(self, count: int) -> list[Path]:
        """Training files of all clients; the name of a client is that of its folder."""
        return [_client_folder(self, index, count) / "train.jsonl" for index in range(count)]

    def held_out(self, tokenizer: PreTrainedTokenizerBase) -> dict[str, list[Example]]:
        """Held-out examples of every organisation."""
        from distro_fed.data.load import load_examples
        from distro_fed.data.tokenize import tokenize_examples

        out = {}
        for name in ORGANISATIONS:
            source = str(self.folder / "test" / f"{name}.jsonl")
            examples = load_examples(source, split="train", allow_download=False)
            tokenized = tokenize_examples(
                examples, tokenizer, max_length=int(self.settings["max-length"]), source=source
            )
            out[name] = tokenized.examples
        return out

    def losses(self, model: nn.Module, tokenizer: PreTrainedTokenizerBase) -> dict[str, float]:
        """Held-out loss of a model for every organisation, nats a token."""
        from distro_fed.evaluation.held_out import held_out_loss

        pad = tokenizer.pad_token_id or 0
        return {
            name: held_out_loss(model, examples, 16, pad).loss for name, examples in self.held_out(tokenizer).items()
        }


def open_task(name: str) -> Task:
    """A task with its files in the cache, written if they are not there."""
    folder = cache_dir() / "frontier" / f"{name}-{VERSION}"
    if not folder.is_dir():
        _write(name, folder)
    common = {"lr-scheduler-type": "linear", "threads": 1, "device": "cpu", "max-length": 96, "evaluate-every": 0,
              "max-grad-norm": 1.0}  # fmt: skip
    if name == "real":
        return Task(name, folder, {**common, "base-model": "packaged:smollm2-135m", "per-device-train-batch-size": 2})
    return Task(name, folder, {**common, "base-model": str(folder / "model"), "per-device-train-batch-size": 4})


def _write(name: str, folder: Path) -> None:
    """The organisations' text as plain text: every token is trained and measured."""
    source = cache_dir() / "frontier" / f"text-{name}-{VERSION}"
    prepare_organisations(source, train_examples=TRAIN_EXAMPLES[name], test_examples=TEST_EXAMPLES[name])
    with atomic_folder(folder) as target:
        for organisation in ORGANISATIONS:
            for split in ("train", "test"):
                rows = map(json.loads, (source / organisation / f"{split}.jsonl").read_text().splitlines())
                _write_lines(
                    target / split / f"{organisation}.jsonl", [row["prompt"] + row["completion"] for row in rows]
                )
        if name == "small":
            from benchmarks.frontier.small_model import write_small_model

            texts = [line for path in sorted((target / "train").iterdir()) for line in read_texts(path)]
            write_small_model(target / "model", texts)


def _client_folder(task: Task, index: int, count: int) -> Path:
    """Client ``index`` holds a part of one organisation's text; organisations take turns."""
    organisation = ORGANISATIONS[index % len(ORGANISATIONS)]
    shares = len(range(index % len(ORGANISATIONS), count, len(ORGANISATIONS)))
    number = index // len(ORGANISATIONS)
    name = organisation if shares == 1 else f"{organisation}-{number:02d}"
    folder = task.folder / f"clients-{count}" / name
    if not (folder / "train.jsonl").is_file():
        texts = read_texts(task.folder / "train" / f"{organisation}.jsonl")
        with atomic_folder(folder, replace=True) as target:
            _write_lines(target / "train.jsonl", texts[number::shares])
    return folder


def read_texts(path: Path) -> list[str]:
    """Texts of a file with one JSON object a line."""
    return [json.loads(line)["text"] for line in path.read_text().splitlines()]


def _write_lines(path: Path, texts: Sequence[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
