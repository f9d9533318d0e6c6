"""Every figure of the DisTrO report, from its own inputs."""

from __future__ import annotations

import pytest

from distro_fed.planner.model_shapes import decoder_layout
from distro_fed.planner.presets import DISTRO_REPORT_CONFIG, plan_distro_report


def test_the_model() -> None:
    report = plan_distro_report()
    assert report.parameters == 1_204_813_824
    assert report.parameters + report.norm_parameters == decoder_layout(DISTRO_REPORT_CONFIG).numel
    assert report.norm_parameters == 33 * 2048


def test_what_the_report_prints() -> None:
    printed = plan_distro_report().printed
    assert printed.all_reduce_bytes_per_step == 74_400_000_000
    assert printed.distro_bytes_per_step == 86_800_000
    assert round(printed.ratio_naive) == 857
    assert printed.upload_bytes_server == 2_800_000
    assert round(printed.seconds_down, 2) == 6.94
    assert round(printed.seconds_up, 2) == 2.24
    # not in the report: the same traffic against a ring, and the upload without a server
    assert round(printed.ratio_ring, 1) == 53.6
    assert round(printed.seconds_up_peer_to_peer, 1) == 69.4


def test_the_same_without_rounding() -> None:
    exact = plan_distro_report().exact
    assert exact.gradient_bytes == 2_409_627_648
    assert exact.message_bytes == 2_941_440
    assert exact.message_bytes / 2**20 == pytest.approx(2.805, abs=1e-3)
    assert exact.ratio_naive == 4096 * 2 / 10
    assert exact.ratio_ring == exact.ratio_naive / 16
