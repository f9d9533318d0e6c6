"""A model of 110 weights, and a step of training."""

import torch
from torch import nn


def load_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(10, 10)


def train(model: nn.Module) -> tuple[int, float]:
    inputs = torch.ones(8, 10)
    loss = model(inputs).square().mean()
    loss.backward()
    # by hand: making an optimizer of torch.optim imports its compiler, which takes longer than all the rest
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.data -= 0.01 * parameter.grad
            parameter.grad = None
    return len(inputs), float(loss.detach())
