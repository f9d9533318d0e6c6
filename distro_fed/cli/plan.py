"""``distro-fed plan``: bytes, time and bottleneck of a run before it is started."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import click
import typer
from click.core import ParameterSource

from distro_fed.cli.common import VerboseOption, console
from distro_fed.errors import SettingsError
from distro_fed.model.packaged import SMOLLM2_NAME
from distro_fed.planner.advice import advise
from distro_fed.planner.codec import Codec
from distro_fed.planner.links import NODE, SERVER, Link, Network, equal_nodes, read_network
from distro_fed.planner.model_shapes import lora_layout, model_shape, trained_layout
from distro_fed.planner.output import plan_to_dict, print_distro_report, print_plan
from distro_fed.planner.plan import Scenario, make_plan
from distro_fed.planner.presets import PRESETS, plan_distro_report
from distro_fed.presets import DEFAULT_COMPRESSOR, TRAINED_INSIDE

NODES = 4


def plan(
    context: typer.Context,
    model: Annotated[
        str, typer.Argument(help="Number of parameters (135M, 1.2e9), model folder, or packaged:smollm2-135m.")
    ] = SMOLLM2_NAME,
    nodes: Annotated[int | None, typer.Option(help=f"How many train (default: those of --links, or {NODES}).")] = None,
    topology: Annotated[
        Literal["server", "peer-to-peer", "hybrid"], typer.Option(help="Who sends to whom; hybrid: regional groups.")
    ] = "server",
    groups: Annotated[int | None, typer.Option(help="Groups of hybrid, each with an aggregator.")] = None,
    mode: Annotated[Literal["lora", "full"], typer.Option(help="Train an adapter, or every weight.")] = "lora",
    lora_rank: Annotated[int, typer.Option(help="Rank of the adapter.")] = 8,
    lora_modules: Annotated[str, typer.Option(help="Its target modules, such as q_proj,v_proj.")] = "all-linear",
    trained_modules: Annotated[
        str, typer.Option(help="Mode full: train these modules alone, such as up_proj,down_proj; empty: all.")
    ] = "",
    compressor: Annotated[
        str,
        typer.Option(
            help="dense, quantized, topk, dct-topk, subspace, lowrank, tracking, tracking-topk; auto: of the mode."
        ),
    ] = "auto",
    bits: Annotated[int | None, typer.Option(help="Bits a value: quantized, subspace, lowrank, tracking.")] = None,
    rank: Annotated[
        int | None, typer.Option(help="Rank of the projection: subspace, lowrank, tracking, tracking-topk.")
    ] = None,
    density: Annotated[
        float | None, typer.Option(help="Share of coefficients sent: topk, dct-topk, tracking-topk.")
    ] = None,
    value_bits: Annotated[
        int | None, typer.Option(help="Bits of a selected value: topk, dct-topk, tracking-topk.")
    ] = None,
    dense_dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16: dense.")] = None,
    downlink_bits: Annotated[int | None, typer.Option(help="Bits of the aggregated update.")] = None,
    downlink_density: Annotated[float | None, typer.Option(help="Density of the aggregated update.")] = None,
    local_steps: Annotated[int, typer.Option(help="Optimizer steps in a round (H).")] = 10,
    rounds: Annotated[int, typer.Option(help="Rounds of the run.")] = 10,
    down: Annotated[float, typer.Option(help="Mbit/s towards a node.")] = NODE.down_mbit,
    up: Annotated[float, typer.Option(help="Mbit/s from a node.")] = NODE.up_mbit,
    latency: Annotated[float, typer.Option(help="One-way delay in ms.")] = NODE.latency_ms,
    step_seconds: Annotated[float, typer.Option(help="Seconds of an optimizer step.")] = NODE.step_seconds,
    server_down: Annotated[float, typer.Option(help="Mbit/s to the server, or to each aggregator.")] = SERVER.down_mbit,
    server_up: Annotated[float, typer.Option(help="Mbit/s from the server or aggregator.")] = SERVER.up_mbit,
    links: Annotated[Path | None, typer.Option(help="TOML file with the link of each node.")] = None,
    preset: Annotated[str | None, typer.Option(help=f"A published setting: {', '.join(PRESETS)}.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    verbose: VerboseOption = False,
) -> None:
    """Plan a run: bytes and time of a round, where the bottleneck is, and what to change."""
    if preset is not None:
        _show_preset(preset, context, as_json)
        return
    shape = model_shape(model)
    if trained_modules and mode != "full":
        raise SettingsError("--trained-modules chooses among the model's weights: use --mode full, or --lora-modules")
    if mode == "full":
        layout = trained_layout(shape.layout, trained_modules)
    else:
        layout = lora_layout(shape.layout, lora_rank, lora_modules)
    name = DEFAULT_COMPRESSOR[mode] if compressor == "auto" else compressor
    if name in TRAINED_INSIDE and mode != "full":
        raise SettingsError(f"--compressor {name} trains inside the matrices of the model: use --mode full")
    uplink = Codec.preset(
        name, **_given(bits=bits, rank=rank, density=density, value_bits=value_bits, dense_dtype=dense_dtype)
    )
    downlink = uplink.for_downlink(**_given(bits=downlink_bits, density=downlink_density))
    node = Link("node", down, up, latency, step_seconds)
    server = replace(SERVER, down_mbit=server_down, up_mbit=server_up, latency_ms=latency)
    if links is not None:
        network = read_network(links, nodes, node, server)
    else:
        network = Network(equal_nodes(NODES if nodes is None else nodes, node), server)
    if groups is not None:
        network = network.in_groups(groups)
    result = make_plan(Scenario(shape, mode, layout, uplink, downlink, network, topology, local_steps, rounds))
    changes = advise(result)
    if as_json:
        typer.echo(json.dumps(plan_to_dict(result, changes), indent=2, ensure_ascii=False))
    else:
        print_plan(result, changes, console)


def _show_preset(preset: str, context: click.Context, as_json: bool) -> None:
    if preset not in PRESETS:
        raise SettingsError(f"unknown preset {preset!r}; there is: {', '.join(PRESETS)}")
    for name in context.params.keys() - {"preset", "as_json", "verbose"}:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = "MODEL" if name == "model" else f"--{name.replace('_', '-')}"
            raise SettingsError(f"--preset {preset} is complete in itself: leave {option} out")
    report = plan_distro_report()
    if as_json:
        printed = asdict(report.printed)
        values = {"preset": preset, "parameters": report.parameters, "norm_parameters": report.norm_parameters}
        typer.echo(json.dumps({**values, **printed, "not_rounded": asdict(report.exact)}, indent=2))
    else:
        print_distro_report(report, console)


def _given(**options: Any) -> dict[str, Any]:
    return {key: value for key, value in options.items() if value is not None}
