"""Answers of a model, for a person to read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distro_fed.data.formats import PLAIN_CHAT_TEMPLATE

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def generate_text(
    model: PreTrainedModel | PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    prompt: str | list[dict[str, str]],
    max_new_tokens: int = 40,
) -> str:
    """Greedy continuation of a prompt, without the prompt and without special tokens.

    Parameters
    ----------
    model : transformers.PreTrainedModel or peft.PeftModel
        On any device; it goes back to the mode it was in.
    tokenizer : transformers.PreTrainedTokenizerBase
        The model's own.
    prompt : str or list of dict
        Plain text, continued as it is; or messages, laid out as in training.
    max_new_tokens : int
        Length at which to stop if the model does not stop by itself.
    """
    import torch

    generator: Any = model  # transformers leaves parts of its models untyped
    if isinstance(prompt, str):
        encoded = tokenizer(prompt, return_tensors="pt")
    else:
        encoded = tokenizer.apply_chat_template(
            prompt,
            chat_template=tokenizer.chat_template or PLAIN_CHAT_TEMPLATE,
            add_generation_prompt=True,
            return_dict=True,
            return_tensors="pt",
        )
    device = next(model.parameters()).device
    input_ids = encoded["input_ids"].to(device)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    was_training = model.training
    generator.eval()
    try:
        with torch.no_grad():
            generated = generator.generate(
                input_ids=input_ids,
                attention_mask=encoded["attention_mask"].to(device),
                max_new_tokens=max_new_tokens,
                do_sample=False,
                pad_token_id=pad,
                eos_token_id=tokenizer.eos_token_id,
            )
    finally:
        model.train(was_training)
    return str(tokenizer.decode(generated[0, input_ids.shape[1] :], skip_special_tokens=True)).strip()
