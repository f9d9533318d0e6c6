"""What a run takes where its settings leave something open."""

from __future__ import annotations

from typing import Any

# The demo measures `quantized` in lora mode and `subspace` in full mode (docs/measurements.md); the other values are
# starting points that were not tuned.
DEFAULT_COMPRESSOR = {"lora": "quantized", "full": "subspace"}
COMPRESSOR_PRESETS: dict[str, dict[str, Any]] = {
    "quantized": {"bits": 1},
    "subspace": {"bits": 1, "rank": 1},
    "topk": {"density": 1 / 64},
    "dct-topk": {"density": 1 / 512},
    "dense": {},
}
LEARNING_RATES = {"lora": 5e-3, "full": 1e-4, "subspace": 2e-2}
