from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from distro_fed.data.batches import batch_at, collate, indices_at
from distro_fed.data.tokenize import Example

EXAMPLES = [Example([i + 1] * (i + 1), [-100] * i + [i + 1]) for i in range(7)]


@settings(deadline=None, max_examples=50)
@given(count=st.integers(1, 40), seed=st.integers(0, 2**63 - 1), batch_size=st.integers(1, 17))
def test_every_epoch_visits_each_example_once(count: int, seed: int, batch_size: int) -> None:
    steps = -(-3 * count // batch_size)
    walk = [index for step in range(steps) for index in indices_at(count, seed, step, batch_size)]
    for epoch in range(3):
        assert sorted(walk[epoch * count : (epoch + 1) * count]) == list(range(count))


def test_a_batch_depends_on_seed_and_step_alone() -> None:
    later = batch_at(EXAMPLES, 5, 40, 4)
    for step in range(40):
        batch_at(EXAMPLES, 5, step, 4)
        batch_at(EXAMPLES, 6, step, 3)
    again = batch_at(EXAMPLES, 5, 40, 4)
    assert all(torch.equal(later[name], again[name]) for name in later)


def test_seeds_and_epochs_have_orders_of_their_own() -> None:
    orders = {tuple(indices_at(20, seed, epoch, 20)) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


@pytest.mark.parametrize("pad_id", (0, 3))
def test_padding_is_masked_and_an_id_that_equals_the_pad_is_not(pad_id: int) -> None:
    batch = collate([Example([3, 3], [-100, 3]), Example([1, 2, 3], [-100, 2, 3])], pad_id=pad_id)
    assert batch["input_ids"].tolist() == [[3, 3, pad_id], [1, 2, 3]]
    assert batch["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert batch["labels"].tolist() == [[-100, 3, -100], [-100, 2, 3]]
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}


def test_a_batch_is_as_long_as_its_longest_example() -> None:
    batch = batch_at(EXAMPLES, 0, 0, 2)
    lengths = [index + 1 for index in indices_at(7, 0, 0, 2)]
    assert batch["input_ids"].shape == (2, max(lengths))
    assert batch["attention_mask"].sum(dim=1).tolist() == lengths
