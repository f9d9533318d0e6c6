from __future__ import annotations

from pathlib import Path

import pytest

from distro_fed.errors import PolicyError, Refused
from distro_fed.secure_aggregation.policy import Policy, check_policy, create_policy, read_policy, show_policy
from distro_fed.secure_aggregation.rules import ServerModel
from distro_fed.secure_aggregation.weighting import Weighting
from tests.secure_aggregation.members import roster

OTHER = Policy(
    required=False,
    server=ServerModel.HONEST_BUT_CURIOUS,
    min_cohort=7,
    min_survivors=5,
    fixed_cohort=False,
    max_attempts=9,
    bits=(4, 12),
    weights=(Weighting.ROSTER, Weighting.UNIFORM),
    max_values=1000,
)


@pytest.mark.parametrize("policy", [Policy(), OTHER])
def test_created_and_read_back(tmp_path: Path, policy: Policy) -> None:
    assert create_policy(tmp_path / "policy.toml", policy) == policy
    assert read_policy(tmp_path / "policy.toml") == policy
    assert show_policy(policy) in (tmp_path / "policy.toml").read_text()
    with pytest.raises(PolicyError, match="exists already"):
        create_policy(tmp_path / "policy.toml")


def test_an_empty_file_is_the_default(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text("")
    assert read_policy(tmp_path / "policy.toml") == Policy()
    assert Policy().required
    assert Policy().fixed_cohort
    assert Policy().min_cohort >= 4
    assert Policy().server is ServerModel.MALICIOUS


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ('mode = "plain"', "mode = 'plain' is not one of required, allowed"),
        ('server = "evil"', "server = 'evil' is not one of"),
        ("min-cohort = 2", "min-cohort = 2 is not in 3..255"),
        ("min-cohort = 256", "min-cohort = 256"),
        ("min-cohort = 4.0", "must be an integer"),
        ("min-survivors = 1", "min-survivors = 1 is not in 2..255"),
        ("min-survivors = true", "must be an integer"),
        ('fixed-cohort = "no"', "fixed-cohort = 'no' must be true or false"),
        ("max-attempts = 0", "max-attempts = 0"),
        ("bits = 8", "bits = 8 must be a list"),
        ("bits = [8]", "bits = [8]"),
        ("bits = [0, 8]", "bits = [0, 8]"),
        ("bits = [9, 8]", "bits = [9, 8]"),
        ("bits = [1, 25]", "1 to 24"),
        ("bits = [1, true]", "bits = [1, True]"),
        ('weights = ["none"]', "'none' is not one of uniform, roster"),
        ("weights = []", "no round at all"),
        ("weights = [1]", "1 is not one of"),
        ("max-values = 0", "max-values = 0"),
        ("min-cohrt = 5", "unknown key 'min-cohrt'; did you mean 'min-cohort'"),
        ("required = false", "unknown key 'required'"),
    ],
)
def test_errors_name_file_and_line(tmp_path: Path, line: str, text: str) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(f"# comment\n\n{line}\n")
    with pytest.raises(PolicyError) as caught:
        read_policy(path)
    assert f"{path}, line 3: " in str(caught.value)
    assert text in str(caught.value)


def test_no_downgrade_to_plain() -> None:
    with pytest.raises(Refused) as caught:
        Policy().refuse_plain()
    assert caught.value.reason == "plain-refused"
    Policy(required=False).refuse_plain()


def test_what_does_not_go_with_a_roster() -> None:
    assert check_policy(Policy(), roster(4)) == []
    [problem] = check_policy(Policy(), roster(3))
    assert "3 members, but min-cohort is 4" in problem
    assert "min-survivors is 9" in check_policy(Policy(min_survivors=9), roster(4))[0]
