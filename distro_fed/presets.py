"""What a run takes where its settings leave something open."""

from __future__ import annotations

from typing import Any

# The demo measures `quantized` in lora mode and `subspace` in full mode (docs/measurements.md); the other values are
# starting points that were not tuned.
DEFAULT_COMPRESSOR = {"lora": "quantized", "full": "subspace"}
COMPRESSOR_PRESETS: dict[str, dict[str, Any]] = {
    "quantized": {"bits": 1},
    "subspace": {"bits": 1, "rank": 1},
    "lowrank": {"bits": 4, "rank": 4},
    "topk": {"density": 1 / 64},
    "dct-topk": {"density": 1 / 512},
    "dense": {},
}
LEARNING_RATES = {"lora": 5e-3, "full": 1e-4, "subspace": 2e-2, "core": 5e-2}

#: whole pipelines by name, for the setting ``preset``. The first two are the best of their mode in
#: docs/frontier.md so far; the others rest on the demo.
PIPELINES: dict[str, dict[str, Any]] = {
    "lora-default": {
        "mode": "lora", "compressor": "quantized", "bits": 1, "error-feedback": True, "server-residual": True,
        "peft.r": 1, "peft.lora-alpha": 2, "peft.target-modules": "gate_proj,up_proj,down_proj", "local-steps": 5,
        "learning-rate": 1e-2,
    },
    "full-default": {
        "mode": "full", "compressor": "subspace", "bits": 1, "rank": 8, "local-steps": 5, "learning-rate": 2e-2,
    },
    # nothing is kept between rounds, at client or server; four bits make up for the residuals
    "stateless": {
        "mode": "lora", "compressor": "quantized", "bits": 4, "peft.r": 1, "peft.lora-alpha": 2,
        "peft.target-modules": "gate_proj,up_proj,down_proj",
    },
    "secure": {
        "mode": "lora", "compressor": "quantized", "bits": 1, "error-feedback": True, "server-residual": True,
        "secure-aggregation": True, "initial-scale": "adamw", "weighted-by": "", "peft.r": 1, "peft.lora-alpha": 2,
        "peft.target-modules": "gate_proj,up_proj,down_proj",
    },
}  # fmt: skip
