"""Bits, speed and memory of the compressors on the shapes of SmolLM2-135M.

    python benchmarks/codec.py [--json] [--parameters 135e6] [--quick]

Speed is a ratio: the DeMo way of doing the same selection (``demo_reference.py``) and this package's run in turns in
one process, on one thread each, and medians of their processor time are compared (on one thread it is the time on an
idle machine, and other load disturbs it little). ``speedup_vs_demo`` compares whole exchanges with error feedback, as
a step of the DeMo optimizer has it: there what was sent is transformed back to leave the momentum, here the residual
stays in coefficient space. ``speedup_vs_demo_without_feedback`` leaves that out on both sides.

Memory is the peak of a fresh process above input vector and output replica. Bits are those of whole bodies; the bound
is log2 C(n, k) / k and one sign.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import demo_reference
import numpy as np
import torch

from distro_fed.compression.base import Compressor, RoundKey
from distro_fed.compression.dct_topk import DctTopK
from distro_fed.compression.positions import decode_positions, encode_positions
from distro_fed.compression.topk import TopK
from distro_fed.layout import Layout, TensorSpec

KEY = RoundKey(seed=0, round=1)
AREA = demo_reference.CHUNK**2
HEADLINE_K = 8
REFERENCE_BITS = {
    "DeMo (int64 index, float32 value)": 96.0,
    "Psyche (16-bit index, sign)": 17.0,
    "templar, claimed (12-bit index, 2-bit value)": 14.0,
    "templar, measured on its files": 20.07,
}


def smollm2_layout(parameters: float) -> Layout:
    """Trainable tensors of SmolLM2-135M (tied embedding), with fewer layers and words for fewer parameters."""
    scale = min(1.0, parameters / 134_515_008)
    hidden, kv, inner = 576, 192, 1536
    specs = [TensorSpec("model.embed_tokens.weight", (64 * max(1, round(768 * scale)), hidden), kind="embedding")]
    for layer in range(max(1, round(30 * scale))):
        shapes = {
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
        }
        for name, shape in shapes.items():
            kind = "matrix" if len(shape) == 2 else "vector"
            specs.append(TensorSpec(f"model.layers.{layer}.{name}.weight", shape, kind=kind))
    return Layout([*specs, TensorSpec("model.norm.weight", (hidden,), kind="vector")])


def pseudo_gradient(layout: Layout) -> torch.Tensor:
    """Heavy-tailed pseudo-random values, made in place so that making them does not raise the memory peak."""
    flat = torch.empty(layout.numel).normal_(generator=torch.Generator().manual_seed(0))
    for start in range(0, layout.numel, 2**20):
        block = flat[start : start + 2**20]
        block.mul_(block.abs().mul_(1e-4))
    return flat


def exchange(
    compressor: Compressor, delta: torch.Tensor, layout: Layout, sums: torch.Tensor, replica: torch.Tensor
) -> bytes:
    """Whole path of one update through this package: client, wire, server, replica."""
    body = compressor.encode(compressor.analyse(delta, layout, KEY), layout, 0)
    compressor.decode(body, layout).add_to(sums.zero_())
    compressor.synthesise(sums, replica, layout, KEY)
    return body


def exchange_with_residual(
    compressor: Compressor,
    delta: torch.Tensor,
    residual: torch.Tensor,
    layout: Layout,
    sums: torch.Tensor,
    replica: torch.Tensor,
) -> torch.Tensor:
    """The same with error feedback, which costs no transform of its own: the residual stays in coefficient space."""
    coefficients = compressor.analyse(delta, layout, KEY).add_(residual)
    body = compressor.encode(coefficients, layout, 0)
    compressor.decode(body, layout).add_to(coefficients, -1.0)
    compressor.decode(body, layout).add_to(sums.zero_())
    compressor.synthesise(sums, replica, layout, KEY)
    return coefficients


def demo_exchange(k: int, delta: torch.Tensor, layout: Layout, replica: torch.Tensor) -> None:
    """Whole path of one update the DeMo way, without its momentum."""
    for spec, where in layout.slices():
        tensor = delta[where].view(spec.shape)
        indices, values, chunks = demo_reference.compress(tensor, k)
        replica[where].view(spec.shape).add_(demo_reference.decompress(indices, values, chunks, tensor.shape))


def demo_step(k: int, delta: torch.Tensor, momentum: torch.Tensor, layout: Layout, replica: torch.Tensor) -> None:
    """One step of the DeMo optimizer (algorithm 1): what was sent is transformed back and leaves the momentum."""
    for spec, where in layout.slices():
        kept = momentum[where].view(spec.shape).add_(delta[where].view(spec.shape))
        indices, values, chunks = demo_reference.compress(kept, k)
        kept.sub_(demo_reference.decompress(indices, values, chunks, kept.shape))
        replica[where].view(spec.shape).add_(demo_reference.decompress(indices, values, chunks, kept.shape))


def seconds(run: Callable[[], object]) -> float:
    """Processor time of one call; one thread."""
    start = time.process_time()
    run()
    return time.process_time() - start


def compare_speed(layout: Layout, k: int, repeats: int) -> dict[str, float]:
    """Times of DeMo, dct-topk and topk at the same density, with and without feedback, in turns; medians."""
    source = pseudo_gradient(layout)
    delta, kept, sums, replica = source.clone(), torch.zeros_like(source), source.clone(), torch.zeros_like(source)
    dct, top = DctTopK(k / AREA), TopK(k / AREA)
    ways: dict[str, Callable[[], object]] = {
        "demo": lambda: demo_exchange(k, delta, layout, replica),
        "dct-topk": lambda: exchange(dct, delta, layout, sums, replica),
        "topk": lambda: exchange(top, delta, layout, sums, replica),
        "demo with feedback": lambda: demo_step(k, delta, kept, layout, replica),
        "dct-topk with feedback": lambda: exchange_with_residual(dct, delta, kept, layout, sums, replica),
        "topk with feedback": lambda: exchange_with_residual(top, delta, kept, layout, sums, replica),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            delta.copy_(source)
            kept.zero_()
            times[name].append(seconds(way))
    return {name: statistics.median(values) for name, values in times.items()}


def selection_agreement(layout: Layout, k: int) -> float:
    """Share of DeMo's coefficients of the first attention matrix that dct-topk selects too."""
    spec = next(spec for spec in layout if spec.kind == "matrix")
    one = Layout([spec])
    delta = pseudo_gradient(one)
    indices, _, chunks = demo_reference.compress(delta.view(spec.shape), k)
    marks = torch.zeros(chunks).flatten(2).scatter_(-1, indices, 1.0).view(chunks).permute(0, 2, 1, 3).flatten()
    sums, compressor = torch.zeros(one.numel), DctTopK(k / AREA)
    compressor.decode(compressor.encode(compressor.analyse(delta, one, KEY), one, 0), one).add_to(sums)
    return float(((sums != 0) & (marks != 0)).sum() / marks.sum())


def entropy_bound(n: int, k: int) -> float:
    """log2 C(n, k) / k."""
    return (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)) / math.log(2) / k


def bits_of_body(compressor: Compressor, layout: Layout) -> dict[str, float]:
    """Bits of a whole body over its coefficients, beside the bound."""
    body = compressor.encode(compressor.analyse(pseudo_gradient(layout), layout, KEY), layout, 0)
    count = int.from_bytes(body[:8], "little")
    return {"bits": 8 * len(body) / count, "bound": entropy_bound(layout.numel, count) + 1, "bytes": len(body)}


def position_table(n: int) -> list[dict[str, float]]:
    """Random positions at densities 1/8 to 1/4096: bits, bound, and speed both ways."""
    rows = []
    generator = np.random.default_rng(0)
    for inverse in (2**power for power in range(3, 13)):
        k = n // inverse
        positions = np.sort(generator.choice(n, k, replace=False))
        code = encode_positions(positions)
        taken = [seconds(partial(encode_positions, positions)), seconds(partial(decode_positions, code, k, n))]
        if not np.array_equal(decode_positions(code, k, n), positions):
            raise SystemExit(f"positions at density 1/{inverse} do not survive a round trip")
        bits, bound = 8 * len(code) / k, entropy_bound(n, k)
        rows.append({"inverse_density": inverse, "bits": bits, "bound": bound, "over": bits / bound - 1})
        rows[-1] |= {"encode_millions_per_second": k / taken[0] / 1e6, "decode_millions_per_second": k / taken[1] / 1e6}
    return rows


def memory(field: str) -> int:
    """``VmRSS`` (now) or ``VmHWM`` (peak) of this process, in bytes; the peak for both where there is no /proc.

    ``ru_maxrss`` alone would do, had a child not inherited that of the process that started it.
    """
    status = Path("/proc/self/status")
    if status.exists():
        return 1024 * int(status.read_text().split(field + ":")[1].split()[0])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def extra_memory_here(name: str, parameters: float) -> float:
    """Peak of :func:`exchange` above input and replica over the bytes of the tensors; for a fresh process."""
    compressor: Compressor = DctTopK(HEADLINE_K / AREA) if name == "dct-topk" else TopK(HEADLINE_K / AREA)
    warm = smollm2_layout(1)  # libraries allocate their own buffers once
    exchange(compressor, pseudo_gradient(warm), warm, torch.zeros(warm.numel), torch.zeros(warm.numel))
    layout = smollm2_layout(parameters)
    delta, replica = pseudo_gradient(layout), torch.zeros(layout.numel).add_(0.0)
    before = memory("VmRSS")
    exchange(compressor, delta, layout, torch.empty(layout.numel), replica)
    return (memory("VmHWM") - before) / (4 * layout.numel)


def extra_memory(name: str, parameters: float) -> float:
    command = [sys.executable, __file__, "--peak-of", name, "--parameters", str(parameters)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout)


def measure(parameters: float, quick: bool) -> dict[str, Any]:
    """All figures."""
    layout = smollm2_layout(parameters)
    compare_speed(smollm2_layout(1), HEADLINE_K, 1)
    speed = {k: compare_speed(layout, k, 5 if k == HEADLINE_K and not quick else 1) for k in (1, HEADLINE_K, 32)}
    bits = {k: bits_of_body(DctTopK(k / AREA), layout) for k in speed}
    headline = speed[HEADLINE_K]
    return {
        "bits_per_coefficient": bits[HEADLINE_K]["bits"],
        "bound_bits_per_coefficient": bits[HEADLINE_K]["bound"],
        "speedup_vs_demo": headline["demo with feedback"] / headline["dct-topk with feedback"],
        "speedup_vs_demo_without_feedback": headline["demo"] / headline["dct-topk"],
        "peak_extra_memory_ratio": extra_memory("dct-topk", parameters),
        "topk": {
            **bits_of_body(TopK(HEADLINE_K / AREA), layout),
            "speedup_vs_demo": headline["demo with feedback"] / headline["topk with feedback"],
            "speedup_vs_demo_without_feedback": headline["demo"] / headline["topk"],
            "peak_extra_memory_ratio": extra_memory("topk", parameters),
        },
        "by_k_of_4096": {k: {**bits[k], "seconds": speed[k]} for k in speed},
        "selection_agreement_with_demo": selection_agreement(layout, HEADLINE_K),
        "positions": position_table(2**22 if quick else 2**24),
        "reference_bits_per_coefficient": REFERENCE_BITS,
        "parameters": layout.numel,
        "threads": 1,
    }


def show(figures: dict[str, Any]) -> None:
    """Print the figures for a person."""
    topk = figures["topk"]
    print(f"{figures['parameters']:,} parameters, one thread, density 1/512 ({HEADLINE_K} of {AREA})\n")
    print(f"{'':46}{'dct-topk':>10}{'topk':>10}")
    print(f"{'bits per coefficient, whole body':46}{figures['bits_per_coefficient']:10.2f}{topk['bits']:10.2f}")
    print(
        f"{'  bound: log2 C(n, k) / k + 1 sign':46}{figures['bound_bits_per_coefficient']:10.2f}{topk['bound']:10.2f}"
    )
    for name, bits in figures["reference_bits_per_coefficient"].items():
        print(f"{'  ' + name:46}{bits:10.2f}")
    for key, label in (
        ("speedup_vs_demo", "times faster than a step of DeMo"),
        ("speedup_vs_demo_without_feedback", "  without momentum and residual on both sides"),
    ):
        print(f"{label:46}{figures[key]:10.2f}{topk[key]:10.2f}")
    memory = "peak extra memory / trainable tensors"
    print(f"{memory:46}{figures['peak_extra_memory_ratio']:10.2f}{topk['peak_extra_memory_ratio']:10.2f}")
    print(f"{'DeMo coefficients that dct-topk selects too':46}{figures['selection_agreement_with_demo']:10.4f}")
    print(f"\n{'k of 4096':>10}{'bytes':>12}{'bits':>8}{'bound':>8}{'DeMo s':>9}{'dct-topk s':>12}{'topk s':>9}")
    for k, row in figures["by_k_of_4096"].items():
        s = row["seconds"]
        print(f"{k:>10}{row['bytes']:12,}{row['bits']:8.2f}{row['bound']:8.2f}", end="")
        print(f"{s['demo']:9.2f}{s['dct-topk']:12.2f}{s['topk']:9.2f}")
    print(f"\n{'density':>10}{'position bits':>16}{'bound':>8}{'over':>8}{'encode M/s':>12}{'decode M/s':>12}")
    for row in figures["positions"]:
        print(
            f"{'1/' + str(row['inverse_density']):>10}{row['bits']:16.3f}{row['bound']:8.3f}{row['over']:8.2%}", end=""
        )
        print(f"{row['encode_millions_per_second']:12.0f}{row['decode_millions_per_second']:12.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument("--parameters", type=float, default=135e6, help="size of the pseudo-gradient (at most 135e6)")
    parser.add_argument("--quick", action="store_true", help="8 million parameters, one repetition")
    parser.add_argument("--peak-of", choices=["dct-topk", "topk"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    parameters = min(arguments.parameters, 8e6) if arguments.quick else arguments.parameters
    if arguments.peak_of:
        print(extra_memory_here(arguments.peak_of, parameters))
        return
    figures = measure(parameters, arguments.quick)
    print(json.dumps(figures, indent=2)) if arguments.json else show(figures)


if __name__ == "__main__":
    main()
