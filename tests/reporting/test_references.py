import pytest

from distro_fed.errors import SettingsError
from distro_fed.reporting.references import Traffic, allreduce_bf16, distro_report, fedavg_full_bf16, ratio

REPORT = {"parameters": 1_200_000_000, "clients": 32, "rounds": 1, "local_steps": 1}


def test_known_answers_of_the_distro_report() -> None:
    # 1.2e9 parameters, 32 nodes: 74.4 GB a step by the report, 4.65 GB in a ring, 857 x against 86.8 MB
    assert distro_report(**REPORT) == Traffic(sent=0, received=74_400_000_000)
    assert allreduce_bf16(**REPORT).received == 4_650_000_000
    assert ratio(distro_report(**REPORT).received, 86.8e6) == pytest.approx(857, abs=0.5)
    assert ratio(allreduce_bf16(**REPORT).received, 86.8e6) == pytest.approx(53.6, abs=0.05)


def test_fedavg_sends_and_receives_the_model_once_a_round_whatever_the_steps() -> None:
    few = fedavg_full_bf16(parameters=134_515_008, clients=4, rounds=10, local_steps=1)
    many = fedavg_full_bf16(parameters=134_515_008, clients=40, rounds=10, local_steps=500)
    assert few == many == Traffic(sent=2_690_300_160, received=2_690_300_160)
    assert few.total == 4 * 134_515_008 * 10


def test_gradient_methods_grow_with_steps() -> None:
    run = {"parameters": 1000, "clients": 5, "rounds": 3, "local_steps": 7}
    assert allreduce_bf16(**run) == Traffic(sent=67_200, received=67_200)
    assert distro_report(**run).total == 4 * 2000 * 21


def test_one_client_needs_no_gradient_exchange() -> None:
    run = {"parameters": 1000, "clients": 1, "rounds": 3, "local_steps": 7}
    assert allreduce_bf16(**run).total == distro_report(**run).total == 0


def test_ratio() -> None:
    assert ratio(1000, 10) == 100
    assert ratio(0, 10) == 0
    assert ratio(1000, 0) is None
    with pytest.raises(SettingsError, match="-1"):
        ratio(1000, -1)


@pytest.mark.parametrize("key", ["parameters", "clients", "rounds", "local_steps"])
@pytest.mark.parametrize("reference", [fedavg_full_bf16, allreduce_bf16, distro_report])
def test_out_of_range_is_refused_by_name(reference, key) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(SettingsError, match=f"{key} is -1"):
        reference(**{**REPORT, key: -1})
