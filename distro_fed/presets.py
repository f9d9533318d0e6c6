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
    "tracking": {"bits": 1, "rank": 1},
    "tracking-topk": {"density": 1 / 16, "rank": 2},
    "topk": {"density": 1 / 64},
    "dct-topk": {"density": 1 / 512},
    "dense": {},
}
#: compressors whose coefficients are what is trained
TRAINED_INSIDE = ("subspace", "tracking", "tracking-topk")
#: compressors that leave coefficients out
SELECTING = ("topk", "dct-topk", "tracking-topk")
LEARNING_RATES = {"lora": 5e-3, "full": 1e-4, "subspace": 2e-2, "core": 5e-2}

# Rounds of one step: at one bit a value they lose least for every byte (docs/frontier.md). Checkpoints and evaluations
# of every round would take longer than the training.
_EVERY_STEP: dict[str, Any] = {"local-steps": 1, "num-server-rounds": 100, "evaluate-every": 10, "save-rounds": 10}
_RANK_ONE: dict[str, Any] = {
    "mode": "lora", "compressor": "quantized", "peft.r": 1, "peft.lora-alpha": 2,
    "peft.target-modules": "gate_proj,up_proj,down_proj", "learning-rate": 1.5e-2,
}  # fmt: skip

#: whole pipelines by name, for the setting ``preset``; docs/frontier.md has what they lose. Where a round takes much
#: longer than a step, as in a deployment, more ``local-steps`` are faster, and lose more.
PIPELINES: dict[str, dict[str, Any]] = {
    # more of the same adapter: it loses nothing in longer runs either, where rank 1 at a third of the bytes does; after
    # a single step nothing is left for the clients' residual: it is for those who set more local-steps
    "lora-default": {
        **_EVERY_STEP, **_RANK_ONE, "bits": 1, "error-feedback": True, "server-residual": True, "peft.r": 2,
        "peft.target-modules": "all-linear",
    },
    # a third of those bytes: the largest values of a higher rank, out of steps that tell large from small, which
    # AdamW's first does not; what is not sent waits at both ends
    "lora-sparse": {
        **_EVERY_STEP, **_RANK_ONE, "compressor": "topk", "density": 0.0305, "value-bits": 2, "error-feedback": True,
        "server-residual": True, "optim": "muon", "peft.r": 4, "learning-rate": 9e-2,
    },
    # every linear layer, on bases that follow the updates: clients keep nothing between rounds
    "full-default": {
        **_EVERY_STEP, "mode": "full", "compressor": "tracking", "bits": 1, "rank": 4, "server-residual": True,
        "learning-rate": 1e-2,
    },
    # nothing is kept between rounds, at client or server; four bits make up for the residuals
    "stateless": {**_EVERY_STEP, **_RANK_ONE, "bits": 4},
    # a round takes three exchanges
    "secure": {
        **_EVERY_STEP, **_RANK_ONE, "bits": 1, "error-feedback": True, "server-residual": True, "local-steps": 2,
        "num-server-rounds": 50, "learning-rate": 2e-2, "secure-aggregation": True, "initial-scale": "adamw",
        "weighted-by": "",
    },
}  # fmt: skip
