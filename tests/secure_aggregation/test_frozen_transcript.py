"""One whole round with fixed secrets, byte for byte. It changes only together with the protocol version.

``python -m tests.secure_aggregation.test_frozen_transcript`` writes it anew.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from distro_fed.secure_aggregation import client_session
from distro_fed.secure_aggregation.encoding import DOMAIN, encode
from distro_fed.secure_aggregation.masks import Masks, word_type
from distro_fed.secure_aggregation.messages import VERSION
from distro_fed.secure_aggregation.packing import pack_block, packed_size
from tests.secure_aggregation.members import Federation, random_codes, stage_messages

FILE = Path(__file__).with_name("frozen_transcript.json")


def first_mask_values(width: int) -> list[int]:
    words = np.zeros(32, word_type(width))
    Masks([bytes(range(32))], [], width).apply(words)
    return words.tolist()


def packed_counting(width: int) -> str:
    values = (np.arange(21) * 37 % 2**width).astype(word_type(width))
    out = np.empty(packed_size(21, width), np.uint8)
    pack_block(values, width, out)
    return out.tobytes().hex()


def transcript() -> dict[str, Any]:
    federation, codes = Federation(3), random_codes(3, 8, 20, seed=3)
    server = federation.server(federation.proposal(round_=2, attempt=1, bits=8, count=20))
    seeds = (hashlib.sha256(f"seed {number}".encode()).digest() for number in range(3))
    stages = []
    with mock.patch.object(client_session, "new_seed", lambda: next(seeds)):
        for stage in range(5):
            messages = stage_messages(server, stage)
            replies = {member: federation.respond(member, data, codes[member]) for member, data in messages.items()}
            for reply in replies.values():
                server.accept(reply)
            stages.append(
                {
                    "sent": [messages[member].hex() for member in range(3)],
                    "answered": [replies[member].hex() for member in range(3)],
                    "transcript": server._transcript.hex(),
                }
            )
    return {
        "version": VERSION,
        "domain": DOMAIN.decode(),
        "encoding": encode("name", b"bytes", 7, "text").hex(),
        "mask of 12 bits": first_mask_values(12),
        "mask of 20 bits": first_mask_values(20),
        "packed 10 bits": packed_counting(10),
        "packed 19 bits": packed_counting(19),
        "codes": [codes[member].tolist() for member in range(3)],
        "stages": stages,
        "sums": server.result().sums.tolist(),
    }


def test_nothing_has_changed() -> None:
    frozen, now = json.loads(FILE.read_text()), transcript()
    assert frozen["version"] == VERSION
    for key, value in frozen.items():
        assert now[key] == value, key
    assert now.keys() == frozen.keys()
    assert np.sum(frozen["codes"], axis=0).tolist() == frozen["sums"]


if __name__ == "__main__":
    FILE.write_text(json.dumps(transcript(), indent=1) + "\n")
