from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from distro_fed.clients import optimizers
from distro_fed.clients.optimizers import Muon, make_optimizers, semi_orthogonal
from distro_fed.settings import TrainingSettings
from tests.tiny import tiny_llama


def matrix(out: int, inside: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(out, inside, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(8, 40), (40, 8), (30, 30), (1, 5)])
def test_singular_values_come_near_one_and_singular_vectors_stay(shape: tuple[int, int]) -> None:
    u, _, v = torch.linalg.svd(matrix(*shape), full_matrices=False)
    given = u @ torch.diag(torch.linspace(0.05, 3.0, min(shape))) @ v
    inside = u.T @ semi_orthogonal(given) @ v.T
    assert bool(((inside.diag() > 0.67) & (inside.diag() < 1.22)).all())
    torch.testing.assert_close(inside, torch.diag(inside.diag()), rtol=0, atol=1e-4)


def test_nothing_stays_nothing() -> None:
    assert not semi_orthogonal(torch.zeros(4, 6)).any()


@pytest.mark.parametrize("momentum", [0.0, 0.95])
@pytest.mark.parametrize("shape", [(12, 20), (20, 12)])
def test_muon_step_by_step_in_plain_arithmetic(momentum: float, shape: tuple[int, int]) -> None:
    """The published recursion, with the singular value decomposition in place of polynomials of the matrix."""
    parameter = nn.Parameter(matrix(*shape))
    plain, average = parameter.detach().clone().double(), torch.zeros(shape, dtype=torch.float64)
    muon = Muon([parameter], momentum=momentum, weight_decay=0.1)
    muon.param_groups[0]["lr"] = 0.02
    for step in range(4):
        gradient = matrix(*shape, seed=step + 1)
        parameter.grad = gradient.clone()
        muon.step()
        average = momentum * average + (1 - momentum) * gradient.double()
        u, s, v = torch.linalg.svd((1 - momentum) * gradient.double() + momentum * average, full_matrices=False)
        s = s / s.norm()
        for _ in range(5):
            s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
        plain = plain * (1 - 0.02 * 0.1) - 0.02 * 0.2 * math.sqrt(20) * (u @ torch.diag(s) @ v)
        torch.testing.assert_close(parameter.detach().double(), plain, rtol=0, atol=2e-6)
    assert bool(muon.state) == (momentum > 0)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch before 2.9 has none")
def test_muon_is_that_of_torch_but_for_its_rounding() -> None:
    mine, theirs = nn.Parameter(matrix(24, 40)), nn.Parameter(matrix(24, 40))
    one = Muon([mine], lr=0.1, momentum=0.9, weight_decay=0.1)
    other = torch.optim.Muon([theirs], lr=0.1, momentum=0.9, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for step in range(5):
        mine.grad, theirs.grad = matrix(24, 40, step), matrix(24, 40, step)
        one.step()
        other.step()
    moved = (theirs.detach() - matrix(24, 40)).norm()
    assert float((mine - theirs).detach().norm() / moved) < 0.03  # torch iterates in bfloat16


def test_muon_moves_a_matrix_as_far_as_adamw_does() -> None:
    for shape in ((48, 96), (96, 48)):
        muon, adamw = nn.Parameter(torch.zeros(shape)), nn.Parameter(torch.zeros(shape))
        muon.grad, adamw.grad = matrix(*shape), matrix(*shape)
        Muon([muon], lr=1e-3).step()
        torch.optim.AdamW([adamw], lr=1e-3).step()
        # Liu et al. measure 0.2 to 0.4 in training; the first step of AdamW is a sign, 1
        assert 0.1 < float(muon.detach().norm() / adamw.detach().norm()) < 0.3


@pytest.mark.parametrize("tied", [True, False])
def test_muon_takes_hidden_matrices_and_adamw_the_rest(tied: bool) -> None:
    model = tiny_llama(tied=tied)
    muon, adamw = make_optimizers(model, list(model.parameters()), TrainingSettings(optim="muon", momentum=0.95))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    hidden = {names[id(parameter)] for parameter in muon.param_groups[0]["params"]}
    rest = {names[id(parameter)] for parameter in adamw.param_groups[0]["params"]}
    assert hidden | rest == set(names.values())
    assert hidden == {name for name in names.values() if name.endswith("_proj.weight")}
    assert not hidden & rest


def test_muon_of_matrices_that_are_no_part_of_the_model() -> None:
    outside = [nn.Parameter(torch.zeros(6, 2))]
    (only,) = make_optimizers(tiny_llama(), outside, TrainingSettings(optim="muon"))
    assert isinstance(only, Muon)


def test_sgd_with_momentum() -> None:
    parameter = nn.Parameter(torch.tensor([1.0]))
    (sgd,) = make_optimizers(nn.Linear(1, 1), [parameter], TrainingSettings(optim="sgd", momentum=0.5))
    sgd.param_groups[0]["lr"] = 0.1
    for expected in (0.9, 0.75, 0.575):
        parameter.grad = torch.tensor([1.0])
        sgd.step()
        assert float(parameter.detach()) == pytest.approx(expected)


def test_where_the_fused_adamw_is_refused_the_plain_one_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = [nn.Parameter(torch.zeros(3))]
    (fused,) = make_optimizers(nn.Linear(1, 1), parameters, TrainingSettings())
    assert fused.defaults["fused"] is True

    real = torch.optim.AdamW

    class Refusing(real):  # type: ignore[misc, valid-type]
        def step(self, *args: object) -> None:
            if self.defaults["fused"]:
                raise RuntimeError("FusedAdam is not implemented for this device")
            super().step(*args)

    optimizers._fused_adamw_runs.cache_clear()
    monkeypatch.setattr(torch.optim, "AdamW", Refusing)
    try:
        (plain,) = make_optimizers(nn.Linear(1, 1), parameters, TrainingSettings(learning_rate=0.1))
        plain.param_groups[0]["lr"] = 0.1
        parameters[0].grad = torch.ones(3)
        plain.step()
    finally:
        optimizers._fused_adamw_runs.cache_clear()
    assert parameters[0].detach().tolist() == pytest.approx([-0.1] * 3)
