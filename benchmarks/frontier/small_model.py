"""A small Llama with random weights and a vocabulary of its own, for runs that the real model is too slow for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

VOCABULARY = 4096
SHAPE = {"hidden_size": 160, "intermediate_size": 448, "num_hidden_layers": 4, "num_attention_heads": 5,
         "num_key_value_heads": 5, "max_position_embeddings": 256}  # fmt: skip


def write_small_model(folder: Path, texts: Sequence[str]) -> None:
    """Write model and tokenizer as transformers does; the same text gives the same files.

    Parameters
    ----------
    folder : Path
        Made if it is not there.
    texts : sequence of str
        What the byte-pair encoding is learned from.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<pad>", "<eos>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator(texts, trainer)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = LlamaForCausalLM(
            LlamaConfig(vocab_size=VOCABULARY, tie_word_embeddings=True, pad_token_id=0, eos_token_id=1, **SHAPE)
        )
    model.save_pretrained(folder)
    wrapped.save_pretrained(folder)
