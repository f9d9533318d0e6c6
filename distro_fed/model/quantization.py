"""A frozen base in 8 or 4 bits, through bitsandbytes, for adapters on machines with little memory.

An update is about the adapter alone, so members with and without it train in one run.
"""

from __future__ import annotations

import importlib.util
from typing import Any

from distro_fed.errors import QuantizationUnavailable

LIBRARY = "bitsandbytes"


def quantized_loading(quantization: str, dtype: str, device: str) -> dict[str, Any]:
    """Keyword arguments of ``from_pretrained`` that load a base in few bits.

    Parameters
    ----------
    quantization : str
        ``8bit`` (LLM.int8(), T. Dettmers et al., arXiv 2208.07339) or ``4bit`` (NF4, T. Dettmers et al., "QLoRA", arXiv
        2305.14314, section 3).
    dtype : str
        What 4-bit weights are multiplied in.
    device : str
        Weights are quantised on the device that computes with them, and stay there.

    Raises
    ------
    QuantizationUnavailable
        bitsandbytes is not installed.
    """
    if importlib.util.find_spec(LIBRARY) is None:
        raise unavailable(quantization, device, f"{LIBRARY} is not installed; pip install {LIBRARY}")
    import transformers

    make: Any = transformers.BitsAndBytesConfig
    if quantization == "8bit":
        config = make(load_in_8bit=True)
    else:
        config = make(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)
    return {"quantization_config": config, "device_map": {"": device}}


def unavailable(quantization: str, device: str, why: object) -> QuantizationUnavailable:
    """The error of a machine that cannot do it."""
    return QuantizationUnavailable(
        f"quantization = {quantization!r} cannot be done on this machine (device {device}): {why}. Set quantization = "
        "'none', in the node config if other members keep it"
    )
