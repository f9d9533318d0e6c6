"""Bytes of DisTrO-AdamW's frames and answers on the shapes of SmolLM2-135M, coefficients at random places.

    python benchmarks/optimizer_frames.py [--json]

Random places are the worst case for the code: those of real coefficients gather.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np

from distro_fed.layout import Layout, TensorSpec
from distro_fed.optim.coefficient_order import CHUNK_VALUES, CoefficientOrder
from distro_fed.optim.vote_codes import VoteSum, encode_sum, encode_votes
from distro_fed.optim.votes import Votes
from distro_fed.update import OVERHEAD_BYTES

LAYER = [(576, 576), (192, 576), (192, 576), (576, 576), (1536, 576), (1536, 576), (576, 1536), (576,), (576,)]
SHAPES = [(49152, 576), *(shape for _ in range(30) for shape in LAYER), (576,)]
PEERS = (2, 4, 8)


def random_votes(order: CoefficientOrder, k: int, seed: int) -> Votes:
    """``k`` coefficients of every chunk and the pool's share, each with a random sign."""
    rng = np.random.default_rng(seed)
    if k > 1:
        places = np.argpartition(rng.random((order.chunks, CHUNK_VALUES), dtype=np.float32), k, axis=1)[:, :k]
    else:
        places = rng.integers(0, CHUNK_VALUES, (order.chunks, 1))
    chunked = np.sort(places, axis=1) + np.arange(order.chunks)[:, None] * CHUNK_VALUES
    pooled = order.chunks * CHUNK_VALUES + np.sort(rng.choice(order.pool, order.pool_share(k), replace=False))
    numbers = np.concatenate([chunked.ravel(), pooled]).astype(np.int64)
    return Votes.of_one_peer(numbers, rng.random(numbers.size) < 0.5)


def measure(order: CoefficientOrder, k: int) -> dict[str, Any]:
    votes = [random_votes(order, k, seed) for seed in range(max(PEERS))]
    body = len(encode_votes(votes[0], order, k))
    answers = {
        count: OVERHEAD_BYTES + len(encode_sum(VoteSum(tuple(range(count)), Votes.total(votes[:count]))))
        for count in PEERS
    }
    frame = OVERHEAD_BYTES + body
    return {
        "k": k,
        "frame_bytes": frame,
        "bits_per_coefficient": 8 * body / votes[0].numbers.size,
        "ratio_fp32": 4 * order.layout.numel / frame,
        "answer_bytes": answers,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print figures for programs")
    arguments = parser.parse_args()
    order = CoefficientOrder(Layout([TensorSpec(str(index), shape) for index, shape in enumerate(SHAPES)]))
    rows = [measure(order, k) for k in (1, 2, 4, 8, 32)]
    if arguments.json:
        print(json.dumps(rows))
        return
    for row in rows:
        answers = " / ".join(f"{size:,}" for size in row["answer_bytes"].values())
        print(
            f"k {row['k']:2}  frame {row['frame_bytes']:>9,} B  {row['bits_per_coefficient']:.2f} bits a coefficient  "
            f"fp32 gradient / frame {row['ratio_fp32']:,.0f}  answer for 2 / 4 / 8 peers {answers} B"
        )


if __name__ == "__main__":
    main()
