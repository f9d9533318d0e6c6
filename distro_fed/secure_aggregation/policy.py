"""What a member agrees to: a file of its own, never taken from the server.

::

    mode = "required"               # or "allowed": updates without secure aggregation are sent too
    server = "malicious"            # or "honest-but-curious"; fixes the threshold
    min-cohort = 4
    min-survivors = 3
    fixed-cohort = true             # the cohort is the whole roster
    max-attempts = 3
    bits = [1, 16]
    weights = ["uniform"]           # "uniform", "roster", "masked"; the server takes the first of its own
    max-values = 8589934592
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from distro_fed.errors import PolicyError
from distro_fed.files import write_atomically
from distro_fed.secure_aggregation.encoding import MAX_MEMBERS
from distro_fed.secure_aggregation.refusals import Reason, refuse
from distro_fed.secure_aggregation.roster import Roster
from distro_fed.secure_aggregation.rules import ServerModel
from distro_fed.secure_aggregation.toml_file import TomlFile
from distro_fed.secure_aggregation.weighting import Weighting

#: most bits of a code; with 255 members the sum still fits 32 bits
MAX_BITS = 24


@dataclass(frozen=True, slots=True)
class Policy:
    """Limits within which a member takes part. Defaults are safe for four members and more."""

    #: False: the member also sends updates without secure aggregation if the server asks for them
    required: bool = True
    #: what is expected of the server; fixes the threshold
    server: ServerModel = ServerModel.MALICIOUS
    #: members that a proposal must have at least, 3..255
    min_cohort: int = 4
    #: members that must be left at every later stage, 2..255; the threshold may ask for more
    min_survivors: int = 3
    #: the cohort must be the whole roster, so that the server cannot compare sums of different cohorts
    fixed_cohort: bool = True
    #: attempts at one round, 1..65535
    max_attempts: int = 3
    #: least and most bits of a code, 1..24
    bits: tuple[int, int] = (1, 16)
    #: weightings allowed; a server proposes the first
    weights: tuple[Weighting, ...] = (Weighting.UNIFORM,)
    #: longest vector
    max_values: int = 2**33

    def refuse_plain(self) -> None:
        """To be called when the server asks for an update without secure aggregation.

        Raises
        ------
        Refused
            ``plain-refused``, unless the policy has ``mode = "allowed"``.
        """
        if self.required:
            raise refuse(Reason.PLAIN_REFUSED)


_RANGES = {
    "min-cohort": (3, MAX_MEMBERS),
    "min-survivors": (2, MAX_MEMBERS),
    "max-attempts": (1, 2**16 - 1),
    "max-values": (1, 2**40),
}
_MODES = {"required": True, "allowed": False}


def create_policy(path: str | Path, policy: Policy | None = None) -> Policy:
    """Write a new policy file.

    Raises
    ------
    PolicyError
        If the file exists.
    """
    if Path(path).exists():
        raise PolicyError(f"{path} exists already; edit it, or choose another file")
    policy = policy or Policy()
    write_atomically(path, f"# What this member agrees to in secure aggregation.\n{show_policy(policy)}\n")
    return policy


def show_policy(policy: Policy) -> str:
    """The policy as TOML."""
    weights = ", ".join(f'"{weighting.word}"' for weighting in policy.weights)
    return "\n".join(
        [
            f'mode = "{"required" if policy.required else "allowed"}"',
            f'server = "{policy.server}"',
            f"min-cohort = {policy.min_cohort}",
            f"min-survivors = {policy.min_survivors}",
            f"fixed-cohort = {str(policy.fixed_cohort).lower()}",
            f"max-attempts = {policy.max_attempts}",
            f"bits = [{policy.bits[0]}, {policy.bits[1]}]",
            f"weights = [{weights}]",
            f"max-values = {policy.max_values}",
        ]
    )


def read_policy(path: str | Path) -> Policy:
    """Read and check a policy; what is not in the file has its default.

    Raises
    ------
    PolicyError
        With file and line.
    """
    source = TomlFile.read(path, PolicyError, "make one with create_policy")
    data, default = source.data, Policy()
    names = {item.name.replace("_", "-") for item in fields(Policy)} - {"required"} | {"mode"}
    source.check_keys(data, names)
    mode = source.take(data, "mode", str, "required")
    if mode not in _MODES:
        raise source.fail("mode", f"mode = {mode!r} is not one of {', '.join(_MODES)}")
    server = source.take(data, "server", str, str(default.server))
    if server not in list(ServerModel):
        raise source.fail("server", f"server = {server!r} is not one of {', '.join(ServerModel)}")
    numbers = {key: source.take(data, key, int, getattr(default, key.replace("-", "_"))) for key in _RANGES}
    for key, (low, high) in _RANGES.items():
        if not low <= numbers[key] <= high:
            raise source.fail(key, f"{key} = {numbers[key]} is not in {low}..{high}")
    bits = source.take(data, "bits", list, list(default.bits))
    if len(bits) != 2 or not all(type(bit) is int for bit in bits) or not 1 <= bits[0] <= bits[1] <= MAX_BITS:
        raise source.fail("bits", f"bits = {bits} must be the least and the most bits of a value, 1 to {MAX_BITS}")
    words = source.take(data, "weights", list, [weighting.word for weighting in default.weights])
    try:
        weights = tuple(Weighting.from_word(word) for word in words)
    except ValueError as error:
        raise source.fail("weights", f"weights = {words}: {error}") from None
    if not weights:
        raise source.fail("weights", "weights = [] allows no round at all")
    return Policy(
        required=_MODES[mode],
        server=ServerModel(server),
        min_cohort=numbers["min-cohort"],
        min_survivors=numbers["min-survivors"],
        fixed_cohort=source.take(data, "fixed-cohort", bool, default.fixed_cohort),
        max_attempts=numbers["max-attempts"],
        bits=(bits[0], bits[1]),
        weights=weights,
        max_values=numbers["max-values"],
    )


def check_policy(policy: Policy, roster: Roster) -> list[str]:
    """What in a policy does not go together with a roster; empty if nothing."""
    problems = []
    members = len(roster.members)
    if members < policy.min_cohort:
        problems.append(f"the roster has {members} members, but min-cohort is {policy.min_cohort}: no round can start")
    if policy.min_survivors > members:
        problems.append(f"min-survivors is {policy.min_survivors}, more than the {members} members of the roster")
    return problems
