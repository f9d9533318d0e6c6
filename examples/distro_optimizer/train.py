"""Processes on one computer train a small Llama together, each on the text of another organisation.

    python examples/distro_optimizer/train.py --peers 4 --k 8

The training loop is an ordinary one; what makes it distributed is the optimizer, and the one line that tells it how to
reach the others. With ``--topology aggregator`` this process sums the frames, and peers may be killed while it runs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
import torch.multiprocessing

from distro_fed.data.qa_organisations import prepare_organisations
from distro_fed.errors import DataNotFound
from distro_fed.files import cache_dir
from distro_fed.optim import Aggregator, AggregatorLink, AllGather, DistroAdamW, FrameCoder

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small Llama with DisTrO-AdamW on several processes.")
    parser.add_argument("--peers", type=int, default=4, help="training processes")
    parser.add_argument("--topology", choices=["all-gather", "aggregator"], default="all-gather")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--k", type=int, default=8, help="coefficients that a chunk of 4096 values sends in a step")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--momentum", type=float, default=0.95, help="0.999 for thousands of steps, less for few")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--length", type=int, default=128, help="bytes of text in one sequence")
    parser.add_argument("--hidden", type=int, default=128, help="width of the model")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--report-every", type=int, default=20, help="steps")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds that the aggregator waits for a dead peer")
    parser.add_argument(
        "--data", type=Path, help="folder with ORGANISATION/train.jsonl and test.jsonl; else the demo's"
    )
    return parser.parse_args(arguments)


def new_model(options: argparse.Namespace) -> LlamaForCausalLM:
    """A Llama that reads bytes; the same weights in every process."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256,
            hidden_size=options.hidden,
            intermediate_size=3 * options.hidden,
            num_hidden_layers=options.layers,
            num_attention_heads=4,
            max_position_embeddings=options.length,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=None,
        )
    )


def read_text(path: Path) -> torch.Tensor:
    """All prompts and completions of a file, as bytes."""
    examples = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    text = "\n".join(example["prompt"] + example["completion"] for example in examples)
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).long()


def batches(text: torch.Tensor, options: argparse.Namespace, seed: int) -> Iterator[torch.Tensor]:
    """Random pieces of a text, without end."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(0, len(text) - options.length, (options.batch_size,), generator=generator)
        yield torch.stack([text[start : start + options.length] for start in starts.tolist()])


@torch.no_grad()
def held_out_loss(model: LlamaForCausalLM, texts: Sequence[torch.Tensor], options: argparse.Namespace) -> float:
    """Mean over organisations, nats a byte."""
    total = 0.0
    for text in texts:
        batch = next(batches(text, options, seed=0))
        total += float(model(input_ids=batch, labels=batch).loss)
    return total / len(texts)


def train(peer: int, options: argparse.Namespace, folders: Sequence[Path], port: int) -> None:
    """One peer."""
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    model = new_model(options)
    optimizer = DistroAdamW(model.parameters(), lr=options.lr, k=options.k, momentum=options.momentum)
    if options.topology == "aggregator":
        optimizer.exchange = AggregatorLink(store, peer)
    else:
        dist.init_process_group("gloo", store=store, rank=peer, world_size=options.peers)
        optimizer.exchange = AllGather()
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.05, 1 - step / options.steps))

    data = batches(read_text(folders[peer % len(folders)] / "train.jsonl"), options, seed=peer)
    test = [read_text(folder / "test.jsonl") for folder in folders]
    if peer == 0:
        print(f"held-out loss before: {held_out_loss(model, test, options):.4f}", flush=True)
    for step in range(1, options.steps + 1):
        batch = next(data)
        optimizer.zero_grad()
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        schedule.step()
        if peer == 0 and (step % options.report_every == 0 or step == options.steps):
            traffic = describe_traffic(optimizer, options.peers)
            print(f"step {step:5}  loss {float(loss.detach()):.4f}  {traffic}", flush=True)

    optimizer.check_equal()
    if peer == 0:
        print(f"held-out loss after: {held_out_loss(model, test, options):.4f}; all peers are equal", flush=True)
    if isinstance(optimizer.exchange, AggregatorLink):
        optimizer.exchange.leave()
    else:
        dist.destroy_process_group()


def describe_traffic(optimizer: DistroAdamW, peers: int) -> str:
    """Bytes of one peer and step, against a ring all-reduce of float32 gradients."""
    sent, received = (total / optimizer.steps for total in (optimizer.bytes_sent, optimizer.bytes_received))
    values = sum(parameter.numel() for parameter in optimizer.parameters)
    each_way = 2 * (peers - 1) / peers * 4 * values
    return (
        f"bytes a step: {sent:,.0f} sent, {received:,.0f} received; an all-reduce: {each_way:,.0f} each way, "
        f"{2 * each_way / max(1, sent + received):,.0f} times as many"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse_options(arguments)
    data = options.data or cache_dir() / "demo-organisations"
    if options.data is None:
        prepare_organisations(data)
    folders = sorted(path.parent for path in data.glob("*/train.jsonl"))
    if not folders:
        raise DataNotFound(f"{data} has no folder with a train.jsonl and a test.jsonl")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = torch.multiprocessing.get_context("spawn")
    peers = [
        context.Process(target=train, args=(peer, options, folders, store.port), name=f"peer {peer}", daemon=True)
        for peer in range(options.peers)
    ]
    for process in peers:
        process.start()
    if options.topology == "aggregator":
        with torch.device("meta"):
            coder = FrameCoder.of_parameters(new_model(options).parameters(), options.k)
        aggregator = Aggregator(store, coder, timeout=options.timeout, start_peers=options.peers)
        aggregator.serve(stop=lambda: not any(process.is_alive() for process in peers))
    for process in peers:
        process.join()
    failed = [f"{process.name} ended with {process.exitcode}" for process in peers if process.exitcode]
    if len(failed) == len(peers) or (failed and options.topology == "all-gather"):
        raise SystemExit("; ".join(failed))


if __name__ == "__main__":
    main()
