from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from huggingface_hub import ModelCard

from distro_fed.model.card import CardFacts, OrganisationFacts, write_model_card

FACTS = CardFacts(
    base_model="packaged:smollm2-135m",
    base_digest="00ff" * 8,
    mode="lora",
    compressor="quantized 1 bit",
    rounds=10,
    local_steps=8,
    organisations=[OrganisationFacts("ward | a", 512, 64, ["prompt", "completion"])],
    bytes_up=1_234_567,
    bytes_down=89,
    loss_before={"ward | a": 1.5},
    loss_after={"ward | a": 1.25},
)


def test_the_card_holds_the_facts_and_metadata_that_the_hub_reads(tmp_path: Path) -> None:
    path = write_model_card(tmp_path, FACTS)
    card = ModelCard.load(path)
    assert card.data.base_model == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert card.data.library_name == "peft"
    assert {"federated-learning", "lora"} <= set(card.data.tags)
    for fact in ("00ff" * 8, "quantized 1 bit", "1,234,567", "| 89 |", "1.5000 | 1.2500", "prompt, completion"):
        assert fact in card.text
    assert r"| ward \| a | 512 | 64 |" in card.text


def test_a_full_model_is_a_transformers_model(tmp_path: Path) -> None:
    card = ModelCard.load(write_model_card(tmp_path, replace(FACTS, mode="full", base_model="org/model")))
    assert card.data.library_name == "transformers"
    assert card.data.base_model == "org/model"
    assert "lora" not in card.data.tags
    assert "every weight" in card.text
    some = write_model_card(tmp_path, replace(FACTS, mode="full", trained_modules="up_proj,down_proj"))
    assert "the weights of up_proj,down_proj" in some.read_text()
    assert "PeftModel" not in card.text


def test_the_path_of_a_folder_is_not_told(tmp_path: Path) -> None:
    text = write_model_card(tmp_path, replace(FACTS, base_model="/home/someone/secret/model-x")).read_text()
    assert "model-x" in text
    assert "secret" not in text
    assert ModelCard(text).data.base_model is None


def test_a_run_without_evaluation_has_a_card_too(tmp_path: Path) -> None:
    text = write_model_card(tmp_path, replace(FACTS, loss_before={}, loss_after={})).read_text()
    assert "| - | - |" in text
