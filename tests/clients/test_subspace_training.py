from __future__ import annotations

import pytest
import torch

from distro_fed.agreement import Agreement
from distro_fed.clients.subspace_training import SubspaceTraining
from distro_fed.compression import make_compressor
from distro_fed.compression.base import RoundKey
from distro_fed.model.trainable import trainable_full
from tests.tiny import tiny_llama

KEY = RoundKey(seed=3, round=5)


@pytest.mark.parametrize(
    ("name", "version"),
    [("subspace", 0), ("tracking", 0), ("tracking", 1), ("tracking", 2), ("tracking-topk", 0), ("tracking-topk", 2)],
)
def test_training_coefficients_is_training_weights_inside_the_subspace(name: str, version: int) -> None:
    """Model with coefficients attached, and model with what they stand for in its weights, compute the same."""
    trainable = trainable_full(tiny_llama())
    coder = make_compressor(name, rank=2)
    agreed = Agreement(trainable.layout, coder, coder, seed=3)
    key = KEY
    for number in range(version):
        update = torch.randn(agreed.space(key).numel, generator=torch.Generator().manual_seed(number))
        key = RoundKey(3, 5, number + 1, coder.remember(update, agreed.layout, key))
    subspace = SubspaceTraining(trainable, agreed, key)
    ids = torch.arange(12).view(2, 6)
    plain = trainable.model(input_ids=ids).logits
    with subspace.attached(), torch.no_grad():
        assert torch.allclose(trainable.model(input_ids=ids).logits, plain)
        for index, parameter in enumerate(subspace.parameters.values()):
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(index)))
        attached = trainable.model(input_ids=ids).logits
    start = trainable.read()
    merged = start.clone()
    coder.synthesise(subspace.coefficients(), merged, agreed.layout, key)
    trainable.write(merged)
    with torch.no_grad():
        written = trainable.model(input_ids=ids).logits
    torch.testing.assert_close(written, attached, rtol=1e-4, atol=1e-5)
    assert (written - plain).abs().max() > 1e-2
    change = trainable.delta(start)
    again = torch.zeros_like(change)
    coder.synthesise(coder.analyse(change, agreed.layout, key), again, agreed.layout, key)
    # bases of tracking are rounded to 12 bits
    torch.testing.assert_close(again, change, rtol=0, atol=1e-5 if name == "subspace" else 1e-3)


def test_weights_are_frozen_only_meanwhile() -> None:
    trainable = trainable_full(tiny_llama())
    coder = make_compressor("subspace", rank=1)
    subspace = SubspaceTraining(trainable, Agreement(trainable.layout, coder, coder), KEY)
    with subspace.attached():
        assert not any(parameter.requires_grad for parameter in trainable.parameters.values())
        trainable.model(input_ids=torch.arange(6).view(1, 6)).logits.sum().backward()
    assert all(parameter.requires_grad for parameter in trainable.parameters.values())
    assert all(parameter.grad is None for parameter in trainable.parameters.values())
    assert all(parameter.grad is not None for parameter in subspace.parameters.values())
