"""The first look at flags: what decides the defaults is found wherever it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from spreeze.cli.commands.train import parse
from spreeze.cli.flags import scan_flags
from spreeze.errors import UsageError


@pytest.mark.parametrize(
    ("line", "env", "flags"),
    [
        ("Ant-v5", "Ant-v5", {}),
        ("", "", {}),
        ("-h", "", {}),
        ("Ant-v5 --algo sac", "Ant-v5", {"algo": "sac"}),
        ("Ant-v5 --algo=sac", "Ant-v5", {"algo": "sac"}),
        ("Ant-v5 --algo sac --algo td3", "Ant-v5", {"algo": "td3"}),
        ("--algo sac Ant-v5", "Ant-v5", {"algo": "sac"}),
        ("--serial Ant-v5", "Ant-v5", {"serial": ""}),
        ("--no-dashboard Ant-v5", "Ant-v5", {"dashboard": ""}),
        ("--algo.no-layer-norm Ant-v5", "Ant-v5", {"algo.layer_norm": ""}),
        ("--algo.hidden 64 64 Ant-v5", "Ant-v5", {"algo.hidden": "64"}),
        ("--learner.ratio-bounds 0.1 2 Ant-v5", "Ant-v5", {"learner.ratio_bounds": "0.1"}),
        ("--algo.hidden auto Ant-v5", "Ant-v5", {"algo.hidden": "auto"}),
        ("--target -200 Ant-v5", "Ant-v5", {"target": "-200"}),
        ("--learner.batch_size 3 Ant-v5", "Ant-v5", {"learner.batch_size": "3"}),
        ("Ant-v5 --steps --serial", "Ant-v5", {"steps": "", "serial": ""}),
    ],
)
def test_flags_and_the_environment_are_found(line: str, env: str, flags: dict[str, str]) -> None:
    assert scan_flags(line.split()) == (env, flags)


@pytest.mark.parametrize("flag", ["--algo", "--preset", "--resume", "--runs", "--from"])
@pytest.mark.parametrize("rest", [[], ["--serial"]])
def test_a_flag_that_decides_defaults_needs_a_value(flag: str, rest: list[str]) -> None:
    with pytest.raises(UsageError, match=f"{flag}: which one"):
        scan_flags(["Ant-v5", flag, *rest])


def test_the_order_of_flags_does_not_matter() -> None:
    first = parse(["Ant-v5", "--seed", "1", "--algo", "fastsac"])
    assert first.preset == "ant"
    assert parse(["--seed", "1", "Ant-v5", "--algo", "fastsac"]) == first
    assert parse(["--algo", "fastsac", "--seed", "1", "Ant-v5"]) == first
    assert parse(["--algo=fastsac", "--no-serial", "Ant-v5", "--seed=1"]) == first


SWITCH = """
from dataclasses import dataclass
from spreeze.algos import Entry, sac

@dataclass(frozen=True, kw_only=True)
class Config(sac.SACConfig):
    mine: bool = False

ENTRY = Entry(Config, sac.build, "mine")
"""


def test_an_environment_taken_for_the_value_of_your_own_switch_is_asked_for(tmp_path: Path) -> None:
    """A switch that only your algorithm has is not known before its file is read."""
    (tmp_path / "switch_algorithm.py").write_text(SWITCH)
    algo = f"{tmp_path}/switch_algorithm.py:ENTRY"
    assert vars(parse(["Ant-v5", "--algo", algo, "--algo.mine"]).hyper)["mine"]
    with pytest.raises(UsageError, match="name the environment first: spreeze train Ant-v5"):
        parse(["--algo", algo, "--algo.mine", "Ant-v5"])
