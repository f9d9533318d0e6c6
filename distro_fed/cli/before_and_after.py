"""Answers of a model before and after fine-tuning, side by side.

Texts never travel in a run, so this happens where the organisations' data is at hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from distro_fed.data.load import load_examples
from distro_fed.evaluation.generate import generate_text
from distro_fed.model.base import load_base_model
from distro_fed.model.quiet import no_progress_bars
from distro_fed.reporting.units import printable

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: the shortest prompt of so many is asked
CANDIDATES = 16
PROMPT_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class Answers:
    """Texts for a person, on one line each; ``prompt`` is cut to its end if it is long."""

    organisation: str
    prompt: str
    before: str
    after: str
    expected: str


def compare_answers(
    base_model: str, model_folder: Path, data_folder: Path, organisations: list[str], max_new_tokens: int = 40
) -> Iterator[Answers]:
    """Yield the answers to one held-out prompt of each organisation, greedily decoded.

    Parameters
    ----------
    base_model : str
        As in the settings of the run.
    model_folder : Path
        Adapter or full model that the run wrote.
    data_folder : Path
        Holds ``<organisation>/test.jsonl`` with prompt and completion.
    organisations : list of str
        Their folders.
    max_new_tokens : int
        Longest answer.
    """
    base = load_base_model(base_model)
    prompts = {name: _prompt(data_folder / name) for name in organisations}
    before = {name: generate_text(base.model, base.tokenizer, prompts[name][0], max_new_tokens) for name in prompts}
    tuned = _fine_tuned(base.model, model_folder)
    for name, (prompt, expected) in prompts.items():
        after = generate_text(tuned, base.tokenizer, prompt, max_new_tokens)
        shown = prompt if len(prompt) <= PROMPT_CHARACTERS else f"... {prompt[-PROMPT_CHARACTERS:]}"
        yield Answers(*map(_one_line, (name, shown, before[name], after, expected)))


def _fine_tuned(base: PreTrainedModel, folder: Path) -> PreTrainedModel:
    if not (folder / "adapter_config.json").is_file():
        return load_base_model(str(folder)).model
    from peft import PeftModel

    with no_progress_bars():
        adapted = PeftModel.from_pretrained(base, str(folder))
    return cast("PreTrainedModel", adapted)  # generates as the model that it wraps


def _prompt(folder: Path) -> tuple[str, str]:
    examples = load_examples(str(folder), split="test")
    example = min(examples.select(range(min(CANDIDATES, len(examples)))), key=lambda row: len(row["prompt"]))
    return example["prompt"], example["completion"]


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()))
