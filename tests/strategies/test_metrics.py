from __future__ import annotations

from distro_fed.strategies.metrics import metrics_content, weighted_mean


def test_mean_is_weighted_over_those_that_report() -> None:
    contents = [
        metrics_content({"loss": 1.0, "num-examples": 1}),
        metrics_content({"loss": 4.0, "num-examples": 3, "extra": 2.0}),
    ]
    assert dict(weighted_mean(contents, "num-examples")) == {"loss": 3.25, "num-examples": 4.0, "extra": 2.0}


def test_without_weight_all_count_the_same() -> None:
    contents = [metrics_content({"loss": 1.0, "n": 5}), metrics_content({"loss": 4.0, "n": 1})]
    assert weighted_mean(contents, "")["loss"] == 2.5


def test_a_weight_of_zero_everywhere_gives_no_mean_and_no_error() -> None:
    assert dict(weighted_mean([metrics_content({"loss": 1.0, "n": 0})], "n")) == {"n": 0.0}
