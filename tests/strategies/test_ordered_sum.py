from __future__ import annotations

import itertools

import pytest
import torch

from distro_fed.agreement import Agreement
from distro_fed.compression import make_compressor
from distro_fed.errors import FederationError
from distro_fed.layout import Layout, TensorSpec
from distro_fed.strategies.ordered_sum import OrderedSum
from distro_fed.update import Kind, Update

LAYOUT = Layout([TensorSpec("a", (50,))])
AGREEMENT = Agreement(LAYOUT, make_compressor("dense"), make_compressor("dense"))
NAMES = {1: "delta", 2: "alpha", 3: "charlie", 4: "bravo"}


def update(node_id: int) -> Update:
    values = torch.randn(50, generator=torch.Generator().manual_seed(node_id)) * 10.0**node_id
    return AGREEMENT.frame(Kind.CLIENT, 1, 0, b"0" * 16, AGREEMENT.uplink.encode(values, LAYOUT, 0))


def total(order: tuple[int, ...], *, known: bool, limit: int, missing: int | None = None) -> torch.Tensor:
    accumulator = torch.zeros(50)
    names: dict[int, str | None] = dict(NAMES) if known else dict.fromkeys(NAMES)
    summed = OrderedSum(AGREEMENT, accumulator, names, waiting_limit=limit)
    for node_id in order:
        if node_id != missing:
            made = update(node_id)
            summed.settle(node_id, NAMES[node_id], made, AGREEMENT.uplink.decode(made.body, LAYOUT), float(node_id))
    weight = summed.close()
    assert weight == sum(node_id for node_id in NAMES if node_id != missing)
    return accumulator


@pytest.mark.parametrize("missing", [None, 2, 3])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("limit", [0, 300, 10**6])
def test_every_order_of_arrival_gives_the_same_bits(missing: int | None, known: bool, limit: int) -> None:
    expected = torch.zeros(50)
    for node_id in sorted(NAMES, key=NAMES.__getitem__):
        if node_id != missing:
            AGREEMENT.uplink.decode(update(node_id).body, LAYOUT).add_to(expected, float(node_id))
    for order in itertools.permutations(NAMES):
        assert torch.equal(total(order, known=known, limit=limit, missing=missing), expected)


def test_summing_in_order_of_arrival_would_not() -> None:
    """The test above can fail: float32 sums of these updates do depend on the order."""
    sums = set()
    for order in itertools.permutations(NAMES):
        accumulator = torch.zeros(50)
        for node_id in order:
            AGREEMENT.uplink.decode(update(node_id).body, LAYOUT).add_to(accumulator, float(node_id))
        sums.add(accumulator.numpy().tobytes())
    assert len(sums) > 1


def test_with_known_names_the_first_in_order_is_added_at_once() -> None:
    accumulator = torch.zeros(50)
    summed = OrderedSum(AGREEMENT, accumulator, dict(NAMES))
    made = update(2)
    summed.settle(2, "alpha", made, AGREEMENT.uplink.decode(made.body, LAYOUT), 1.0)
    assert accumulator.any()


# --- the mean over contributors ---------------------------------------------------------------------

SPARSE_AGREEMENT = Agreement(LAYOUT, make_compressor("topk", density=0.2), make_compressor("topk", density=0.2))


def contributor_mean(order: tuple[int, ...], limit: int = 10**6) -> torch.Tensor:
    accumulator = torch.zeros(50)
    summed = OrderedSum(SPARSE_AGREEMENT, accumulator, dict(NAMES), waiting_limit=limit, aggregation="contributors")
    for node_id in order:
        made = sparse_update(node_id)
        summed.settle(node_id, NAMES[node_id], made, SPARSE_AGREEMENT.decode(made), weight_of(node_id))
    summed.close()
    return summed.mean()


def sparse_update(node_id: int) -> Update:
    values = torch.randn(50, generator=torch.Generator().manual_seed(node_id)) * 3.0**node_id
    return SPARSE_AGREEMENT.frame(Kind.CLIENT, 1, 0, b"0" * 16, SPARSE_AGREEMENT.uplink.encode(values, LAYOUT, 0))


def weight_of(node_id: int) -> float:
    return 0.1 * node_id


def test_every_coefficient_is_the_mean_over_those_that_sent_it() -> None:
    sent = {}
    for node_id in NAMES:
        values = torch.zeros(50)
        SPARSE_AGREEMENT.decode(sparse_update(node_id)).add_to(values)
        sent[node_id] = values.tolist()
    mean = contributor_mean((1, 2, 3, 4)).tolist()
    contributors = set()
    for place in range(50):
        senders = [node_id for node_id in NAMES if sent[node_id][place] != 0]
        contributors.add(len(senders))
        expected = sum(weight_of(i) * sent[i][place] for i in senders) / sum(map(weight_of, senders)) if senders else 0
        assert mean[place] == pytest.approx(expected, rel=1e-6)
    assert contributors >= {0, 1, 2}  # some of each, or the test would show nothing


@pytest.mark.parametrize("limit", [0, 10**6])
def test_the_mean_over_contributors_has_the_same_bits_in_every_order(limit: int) -> None:
    expected = contributor_mean((1, 2, 3, 4))
    for order in itertools.permutations(NAMES):
        assert torch.equal(contributor_mean(order, limit), expected)


def test_the_plain_mean_divides_by_all_weights() -> None:
    accumulator = torch.zeros(50)
    summed = OrderedSum(AGREEMENT, accumulator, dict(NAMES))
    for node_id in NAMES:
        made = update(node_id)
        summed.settle(node_id, NAMES[node_id], made, AGREEMENT.decode(made), 2.0)
    summed.close()
    expected = torch.zeros(50)
    for node_id in NAMES:
        AGREEMENT.decode(update(node_id)).add_to(expected, 1 / 4)
    torch.testing.assert_close(summed.mean(), expected)


def test_contributors_of_updates_that_hold_everything_are_refused() -> None:
    summed = OrderedSum(AGREEMENT, torch.zeros(50), dict(NAMES), aggregation="contributors")
    made = update(2)
    with pytest.raises(FederationError, match="that selects: topk, dct-topk, tracking-topk"):
        summed.settle(2, "alpha", made, AGREEMENT.decode(made), 1.0)
