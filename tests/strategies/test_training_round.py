"""What a round makes of its replies, in federations of a few members."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from distro_fed.clients import RoundInfo
from distro_fed.compression.base import Compressor
from distro_fed.compression.dct_topk import DctTopK
from distro_fed.compression.topk import TopK
from tests.federation import make_model, run, shift_train

CODERS = [TopK(0.2), TopK(0.2, "chunk", 2), DctTopK(0.2, value_bits=2)]


def config(coder: Compressor) -> dict[str, Any]:
    return {"selection": getattr(coder, "selection", "global"), "value-bits": getattr(coder, "value_bits", 1)}


@pytest.mark.parametrize("aggregation", ["mean", "contributors"])
@pytest.mark.parametrize("coder", CODERS, ids=lambda coder: coder.describe())
def test_against_plain_arithmetic(coder: Compressor, aggregation: str) -> None:
    """One round of three members; nothing between but the coder, and sums coefficient by coefficient."""
    server, _ = run(
        rounds=1, nodes=3, compressor=coder, run_config=config(coder), strategy={"aggregation": aggregation}
    )
    assert not server.progress.history()[0].left_out
    agreement, key = server.replica.agreement, server.replica.key(1)
    start = make_model().read()
    sent = []
    for index in range(3):
        trainable = make_model()
        shift_train(trainable.model, RoundInfo(1, 1, "", Any, {"partition-id": index}))  # type: ignore[arg-type]
        coefficients = agreement.analyse(trainable.delta(start), key)
        values = torch.zeros_like(coefficients)
        coder.decode(coder.encode(coefficients, agreement.layout, 0), agreement.layout).add_to(values)
        sent.append(values.tolist())
    mean, shared = torch.zeros(agreement.layout.numel), set()
    for place in range(mean.numel()):
        weights = [index + 1 for index in range(3) if aggregation == "mean" or sent[index][place] != 0]
        total = sum((index + 1) * sent[index][place] for index in range(3))
        mean[place] = total / sum(weights) if weights else 0.0
        shared.add(sum(values[place] != 0 for values in sent))
    assert shared >= {0, 1, 2}
    down = torch.zeros_like(mean)
    coder.decode(coder.encode(mean, agreement.layout, 0), agreement.layout).add_to(down)
    expected = start.clone()
    agreement.synthesise(down, expected, key)
    torch.testing.assert_close(server.replica.values, expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("coder", CODERS, ids=lambda coder: coder.describe())
def test_contributors_give_the_same_bits_in_every_order_of_arrival(coder: Compressor) -> None:
    orders: list[Callable[[list[int]], list[int]]] = [list, lambda ids: ids[::-1], lambda ids: ids[2:] + ids[:2]]
    servers = [
        run(compressor=coder, run_config=config(coder), strategy={"aggregation": "contributors"}, order=order)[0]
        for order in orders
    ]
    results = [server.replica for server in servers]
    assert results[0].version == 3
    assert all(torch.equal(results[0].values, other.values) for other in results)
    assert len({result.chain for result in results}) == 1
    # and the members hold what the server holds
    expected = float(results[0].values.square().sum())
    assert list(servers[0].progress.held_out[3].values()) == pytest.approx([expected] * 4, rel=1e-5)
