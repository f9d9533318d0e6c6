"""A tiny random Llama and a byte-level tokenizer, built in memory in well under a second."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

END = "<|im_end|>"
START = "<|im_start|>"
PAD = "<|pad|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

CHAT_TEMPLATE_WITH_GENERATION = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ message['content'] + '<|im_end|>' + '\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tiny_tokenizer(
    *,
    pad: Literal["own", "eos", "none"] = "own",
    chat: Literal["none", "plain", "generation"] = "plain",
) -> PreTrainedTokenizerFast:
    """One token a byte, and three special tokens: 259 ids in all.

    ``pad``: a pad token of its own, the end token, or none at all.
    ``chat``: no chat template, a ChatML one, or the same with ``{% generation %}`` marks.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([START, END, PAD])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token={"own": PAD, "eos": END, "none": None}[pad],
    )
    fast.chat_template = {"none": None, "plain": CHAT_TEMPLATE, "generation": CHAT_TEMPLATE_WITH_GENERATION}[chat]
    return fast


def tiny_llama(
    *,
    vocab: int = 272,
    layers: int = 2,
    hidden: int = 32,
    tied: bool = True,
    dtype: str = "float32",
    seed: int = 0,
) -> LlamaForCausalLM:
    """A random Llama of about 30,000 parameters; the same arguments give the same weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=257,
        pad_token_id=258,
        initializer_range=0.1,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    return model.to(getattr(torch, dtype))


def tiny_model_folder(
    path: Path,
    *,
    pad: Literal["own", "eos", "none"] = "own",
    chat: Literal["none", "plain", "generation"] = "plain",
    tied: bool = True,
    dtype: str = "float32",
    seed: int = 0,
) -> Path:
    """Save a tiny model with its tokenizer as a folder that ``load_base_model`` takes."""
    tiny_llama(tied=tied, dtype=dtype, seed=seed).save_pretrained(path)
    tiny_tokenizer(pad=pad, chat=chat).save_pretrained(path)
    return path
