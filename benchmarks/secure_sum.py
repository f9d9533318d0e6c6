"""Speed and bytes of secure aggregation beside Flower's SecAgg+.

    python benchmarks/secure_sum.py [--json] [--quick]

Flower's own functions and this package's run in turns in one process, and the least processor time of each is
compared: the run that other load disturbed least. Codes have 8 bits. Headline figures are the worst of all rows with
1,000,000 values:

``mask_speedup``          a mask made and added to a vector, one of eight as in a cohort of eight, against
                          ``pseudo_rand_gen`` alone
``client_step_speedup``   stage 2 of one member from the delivery's bytes to the reply's (shares opened, quantised,
                          masked, packed, signed, ledger written), against ``_collect_masked_vectors``
``uplink_bytes_ratio``    all bytes of one member in a round, over Flower's; of all sizes
``unmask_speedup_n100``   the server rebuilds 100 secrets and removes their masks. Flower's time is measured on three
                          secrets and masks and multiplied: all of them take minutes

Flower's masks come from a generator with at most 32 bits of seed, and neither consistency nor authenticity is checked
there.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.client.mod.secure_aggregation.secaggplus_mod import SecAggPlusState, _collect_masked_vectors
from flwr.common import ndarrays_to_parameters
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import encrypt, generate_shared_key
from flwr.common.secure_aggregation.ndarrays_arithmetic import parameters_subtraction
from flwr.common.secure_aggregation.secaggplus_constants import Key
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen, share_keys_plaintext_concat
from flwr.supercore.primitives.asymmetric import bytes_to_private_key, bytes_to_public_key, generate_key_pairs
from flwr.supercore.primitives.asymmetric import private_key_to_bytes as private_bytes
from flwr.supercore.primitives.asymmetric import public_key_to_bytes as public_bytes

from distro_fed.compression.quantized import Quantized
from distro_fed.layout import Layout, TensorSpec
from distro_fed.secure_aggregation import shamir
from distro_fed.secure_aggregation.attempt_crypto import point
from distro_fed.secure_aggregation.client_session import ClientSession
from distro_fed.secure_aggregation.identity import Identity
from distro_fed.secure_aggregation.key_agreement import AttemptSecrets, public_key
from distro_fed.secure_aggregation.ledger import Ledger, create_ledger
from distro_fed.secure_aggregation.masked_vector import VectorSum
from distro_fed.secure_aggregation.masks import Masks, blocks, word_type
from distro_fed.secure_aggregation.messages import decode_table, encode_table
from distro_fed.secure_aggregation.policy import Policy
from distro_fed.secure_aggregation.proposal import make_proposal
from distro_fed.secure_aggregation.roster import Member, Roster
from distro_fed.secure_aggregation.rules import ServerModel, sum_width, threshold
from distro_fed.secure_aggregation.server_session import ServerSession
from distro_fed.secure_aggregation.shamir import SHARE_BYTES
from distro_fed.secure_aggregation.unmasking import leftover_masks, rebuild_secrets
from distro_fed.secure_aggregation.update_vector import to_vector, vector_count

BITS = 8
CODE = Quantized(BITS)
RUN = 1
LAYOUT = PLAN = MODEL = bytes(32)


def in_turns(
    repeats: int, *functions: Callable[[], object], before: Callable[[], object] = lambda: None
) -> list[float]:
    """Least processor time of each function in seconds, without that of ``before``, which runs before each turn."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(repeats):
        before()
        for function, spent in zip(functions, times, strict=True):
            start = time.process_time()
            function()
            spent.append(time.process_time() - start)
    return [min(spent) for spent in times]


def mask(values: int, width: int, repeats: int) -> dict[str, float]:
    """One mask of ``values`` values."""
    vector, together = np.zeros(values, word_type(width)), 8

    def ours() -> None:
        masks = Masks([os.urandom(32) for _ in range(together)], [], width)
        for block in blocks(values):
            masks.apply(vector[block])

    theirs, own = in_turns(repeats, lambda: pseudo_rand_gen(os.urandom(32), 2**32, [(values,)]), ours)
    own /= together
    return {"values": values, "width": width, "flower_ms": 1e3 * theirs, "ms": 1e3 * own, "speedup": theirs / own}


class OurMember:
    """Member 0 of a federation, up to the delivery of the shares."""

    def __init__(self, members: int, values: int, folder: Path) -> None:
        self.identities = [Identity(f"member{index:03d}", os.urandom(32)) for index in range(members)]
        self.roster = Roster("benchmark", tuple(Member(item.name, item.public) for item in self.identities))
        self.folder, self.space = folder, Layout([TensorSpec("update", (values,))])
        policy = self.policy = Policy(min_cohort=3)
        proposal = make_proposal(
            self.roster, policy, run=RUN, round_=1, attempt=1, bits=BITS, layout=LAYOUT, plan=PLAN,
            count=vector_count(values, 1, BITS),
        )  # fmt: skip
        server = ServerSession(self.roster, proposal, policy.min_survivors)
        states = dict.fromkeys(range(members), b"")
        self.uplink = 0
        for stage in range(2):
            sent = server.keys() if stage else server.proposal_message
            for member in range(members):
                answer = self.session(member).respond(sent, states[member])
                states[member] = answer.state
                server.accept(answer.reply)
                self.uplink += len(answer.reply) if member == 0 else 0
        self.state, self.delivery = states[0], server.deliveries(MODEL)[0]
        # acknowledgement, and one share for each member
        self.uplink += 40 + 64 + 40 + 32 + 32 * members + 64

    def session(self, member: int) -> ClientSession:
        path = self.folder / f"{member}.ledger"
        ledger = Ledger(path) if path.exists() else create_ledger(path)
        return ClientSession(self.identities[member], self.roster, self.policy, ledger, RUN)

    def step(self, update: np.ndarray[Any, np.dtype[np.float32]]) -> bytes:
        """What is measured."""
        session = self.session(0)
        delivery = session.receive_shares(self.delivery, self.state)
        seed = int.from_bytes(delivery.rounding_key[:8], "little") >> 1
        codes, scales = CODE.integers(CODE.encode(torch.from_numpy(update), self.space, seed), self.space)
        vector = to_vector(codes, scales.tolist(), BITS)
        return session.send_masked(delivery, vector, model=MODEL, layout=LAYOUT, plan=PLAN).reply

    def forget(self) -> None:
        """Let the same step be done again."""
        path = self.folder / "0.ledger"
        path.write_bytes(b"".join(line for line in path.read_bytes().splitlines(True) if b" mask " not in line))


class FlowerMember:
    """Node 0, up to the delivery of the shares."""

    def __init__(self, members: int) -> None:
        pairs = [(generate_key_pairs(), generate_key_pairs()) for _ in range(members)]
        public = {
            index: (public_bytes(first[1]), public_bytes(second[1])) for index, (first, second) in enumerate(pairs)
        }
        own = pairs[0]
        fields: dict[str, Any] = {
            "nid": 0,
            "sample_num": members,
            "share_num": members,
            "threshold": 2,
            "clipping_range": 4.0,
            "target_range": 2**BITS,
            "mod_range": 2**32,
            "max_weight": 1000.0,
            "sk1": private_bytes(own[0][0]),
            "pk1": public[0][0],
            "sk2": private_bytes(own[1][0]),
            "pk2": public[0][1],
            "rd_seed_share_dict": {},
            "sk1_share_dict": {},
            "ss2_dict": {},
            "public_keys_dict": public,
        }
        state = self.state = SecAggPlusState(**fields)
        state.rd_seed = os.urandom(32)
        sizes = [len(create_shares(secret, 2, 2)[0]) for secret in (state.rd_seed, state.sk1)]
        sources, ciphertexts = [], []
        for index in range(1, members):
            shared = generate_shared_key(bytes_to_private_key(state.sk2), bytes_to_public_key(public[index][1]))
            state.ss2_dict[index] = shared
            plain = share_keys_plaintext_concat(index, 0, os.urandom(sizes[0]), os.urandom(sizes[1]))
            sources.append(index)
            ciphertexts.append(encrypt(shared, plain))
        self.configs: Any = {Key.SOURCE_LIST: sources, Key.CIPHERTEXT_LIST: ciphertexts}
        # two public keys, shares to all others, and a share of the seed of each member at the end
        self.uplink = sum(map(len, public[0])) + sum(map(len, ciphertexts)) + members * sizes[0]

    def step(self, parameters: Any) -> list[bytes]:
        """What is measured."""
        masked: Any = _collect_masked_vectors(self.state, dict(self.configs), 100, parameters)
        vectors: list[bytes] = masked[Key.MASKED_PARAMETERS]
        return vectors


def client_step(members: int, values: int, repeats: int) -> dict[str, float]:
    """Stage 2 of one member."""
    update = np.random.default_rng(0).standard_normal(values).astype(np.float32)
    parameters = ndarrays_to_parameters([update])
    theirs = FlowerMember(members)
    with tempfile.TemporaryDirectory() as folder:
        ours = OurMember(members, values, Path(folder))
        flower_bytes, own_bytes = sum(map(len, theirs.step(parameters))), len(ours.step(update))
        flower_time, own_time = in_turns(
            repeats, lambda: theirs.step(parameters), lambda: ours.step(update), before=ours.forget
        )
    return {
        "members": members,
        "values": values,
        "flower_ms": 1e3 * flower_time,
        "ms": 1e3 * own_time,
        "speedup": flower_time / own_time,
        "flower_uplink": theirs.uplink + flower_bytes,
        "uplink": ours.uplink + own_bytes,
        "bytes_ratio": (ours.uplink + own_bytes) / (theirs.uplink + flower_bytes),
    }


def unmask(members: int, values: int, repeats: int) -> dict[str, float]:
    """The server's last step when nobody dropped out."""
    needed, width = threshold(members, ServerModel.MALICIOUS), sum_width(BITS, members)
    context, everybody = bytes(32), frozenset(range(members))
    secrets = {owner: AttemptSecrets(os.urandom(32), context) for owner in everybody}
    advertised = {
        owner: public_key(own.channel_private) + public_key(own.mask_private) + own.commitment(owner)
        for owner, own in secrets.items()
    }
    points = [point(holder) for holder in sorted(everybody)]
    pairs = {owner: own.shares(points, needed) for owner, own in secrets.items()}
    bodies = {
        holder: encode_table({owner: pairs[owner][holder][SHARE_BYTES:] for owner in everybody}) for holder in everybody
    }

    def ours() -> None:
        shares = {holder: decode_table(body, SHARE_BYTES) for holder, body in bodies.items()}
        for row in shares.values():
            for share in row.values():
                shamir.read_share(share)
        rebuilt = rebuild_secrets(shares, needed, advertised, everybody, context)
        vector.remove(leftover_masks(rebuilt, advertised, everybody, context, width))

    vector = VectorSum(values, width)
    seed = os.urandom(32)
    flower_shares = create_shares(seed, needed, members)
    sample = 3
    total = [np.zeros(values, np.int64)]

    def theirs() -> None:
        for _ in range(sample):
            combined = combine_shares(flower_shares)
            parameters_subtraction(total, pseudo_rand_gen(combined, 2**32, [(values,)]))

    flower_time, own_time = in_turns(repeats, theirs, ours)
    flower_time *= members / sample
    return {"members": members, "flower_ms": 1e3 * flower_time, "ms": 1e3 * own_time, "speedup": flower_time / own_time}


def measure(quick: bool) -> dict[str, Any]:
    repeats, largest = 15, 10**6
    sizes = [(4, largest)] if quick else [(n, values) for n in (4, 16, 100) for values in (10**5, largest)]
    widths = [12] if quick else [10, 12, 15]
    masks = [mask(values, width, repeats) for width in widths for values in (10**5, 10**6)]
    steps = [client_step(members, values, repeats) for members, values in sizes]
    last = unmask(100, 10**5, 1 if quick else 3)
    return {
        "mask_speedup": min(row["speedup"] for row in masks if row["values"] == largest),
        "client_step_speedup": min(row["speedup"] for row in steps if row["values"] == largest),
        "uplink_bytes_ratio": max(row["bytes_ratio"] for row in steps),
        "unmask_speedup_n100": last["speedup"],
        "masks": masks,
        "masks_wider_than_16_bits": [] if quick else [mask(10**6, 20, repeats)],
        "client_steps": steps,
        "unmask": last,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="secure aggregation beside Flower's SecAgg+")
    parser.add_argument("--json", action="store_true", help="print figures for programs")
    parser.add_argument("--quick", action="store_true", help="fewer sizes")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    figures = measure(arguments.quick)
    if arguments.json:
        print(json.dumps(figures))
        return
    for name in ("masks", "masks_wider_than_16_bits", "client_steps"):
        for row in figures[name]:
            print(name, "  ".join(f"{key} {value:.4g}" for key, value in row.items()))
    print("unmask", "  ".join(f"{key} {value:.4g}" for key, value in figures["unmask"].items()))
    for name in ("mask_speedup", "client_step_speedup", "uplink_bytes_ratio", "unmask_speedup_n100"):
        print(f"{name:24}{figures[name]:10.3f}")


if __name__ == "__main__":
    main()
