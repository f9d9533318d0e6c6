"""``distro-fed merge``: put an adapter into its base model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from distro_fed.cli.common import VerboseOption, console
from distro_fed.errors import SettingsError


def merge(
    adapter: Annotated[Path, typer.Argument(help="Adapter folder of a run, such as runs/demo-lora/model.")],
    out: Annotated[Path, typer.Argument(help="Folder of the merged model; must not exist.")],
    dtype: Annotated[
        Literal["bfloat16", "float16", "float32"], typer.Option(help="Of the merged weights.")
    ] = "bfloat16",
    base: Annotated[str | None, typer.Option(help="Base model, if not the one that the adapter names.")] = None,
    verbose: VerboseOption = False,
) -> None:
    """Merge an adapter into its base model, for use without peft."""
    from distro_fed.model.export import merge_adapter

    if out.exists():
        raise SettingsError(f"{out} exists already: remove it or choose another folder")
    with console.status("merging"):
        merge_adapter(adapter, out, dtype=dtype, base=base)
    console.print(f"merged model: {out}", soft_wrap=True, highlight=False)
