import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distro_fed.cli.run_config import FlowerApp, parse_run_config, to_toml
from distro_fed.errors import SettingsError

TOY = Path(__file__).parent / "toy_app"


@pytest.fixture
def app() -> FlowerApp:
    return FlowerApp.load(TOY)


def test_an_app_is_read(app: FlowerApp) -> None:
    assert (app.name, app.folder) == ("toyapp", TOY.resolve())
    assert app.config == {"num-server-rounds": 2, "run-dir": "", "run-name": "", "fail": "", "nested.key": 1.5}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("num-server-rounds=3 nested.key=1e-3", {"num-server-rounds": 3, "nested.key": 1e-3}),
        ("fail=full", {"fail": "full"}),
        ("fail=true", {"fail": True}),
        ("  fail=\"two words\"  run-dir='/a b/c' ", {"fail": "two words", "run-dir": "/a b/c"}),
        ("fail=packaged:smollm2-135m run-dir=/tmp/x", {"fail": "packaged:smollm2-135m", "run-dir": "/tmp/x"}),
        ("fail= run-dir=a=b", {"fail": "", "run-dir": "a=b"}),
        ("fail=[1]", {"fail": "[1]"}),
        ("", {}),
    ],
)
def test_pairs(app: FlowerApp, text: str, values: dict[str, object]) -> None:
    assert parse_run_config([text], app) == values


def test_later_texts_win(app: FlowerApp) -> None:
    assert parse_run_config(["fail=a nested.key=1", "fail=b"], app) == {"fail": "b", "nested.key": 1}


@pytest.mark.parametrize("text", ["fail", "fail=a b", "=a", 'fail="a"b'])
def test_what_is_no_pair_is_shown(app: FlowerApp, text: str) -> None:
    with pytest.raises(SettingsError, match="key=value"):
        parse_run_config([text], app)


def test_an_unknown_key_gets_the_nearest_one(app: FlowerApp) -> None:
    with pytest.raises(SettingsError, match="'num-server-round'; did you mean 'num-server-rounds'"):
        parse_run_config(["num-server-round=3"], app)
    with pytest.raises(SettingsError, match="it has: fail, nested"):
        parse_run_config(["zzz=3"], app)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["a", "b-c"]), st.booleans() | st.integers(-(2**63), 2**63 - 1)
       | st.floats(allow_nan=False) | st.text(st.characters(exclude_categories=["Cs"]))))  # fmt: skip
def test_toml_round_trip(values: dict[str, object]) -> None:
    assert tomllib.loads(to_toml(values)) == values  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no pyproject.toml"),
        ("[project]\nname = 'x'\n", "lacks .tool."),
        ("[tool.flwr.app]\n", "lacks .project."),
        ("x = ", "is not TOML"),
    ],
)
def test_a_folder_that_is_no_app_is_refused(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "pyproject.toml").write_text(content)
    with pytest.raises(SettingsError, match=message):
        FlowerApp.load(tmp_path)
