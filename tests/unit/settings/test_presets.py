"""Presets: which one an environment gets, and which algorithm it selects."""

from __future__ import annotations

from fnmatch import fnmatch

import pytest

from spreeze.errors import UsageError
from spreeze.settings.checks import check_config
from spreeze.settings.config import get_knob
from spreeze.settings.defaults import default_config
from spreeze.settings.presets import PRESETS, preset_for
from spreeze.settings.sections import UndecidedConfig


@pytest.mark.parametrize(("name", "algo"), [(n, a) for n, p in PRESETS.items() for a in p.algos])
def test_every_preset_is_valid_for_each_of_its_algorithms(name: str, algo: str) -> None:
    config = default_config(algo, env="Pendulum-v1", preset=name)
    assert check_config(config) == []
    assert config.algo == algo
    for knob_name, value in PRESETS[name].algos[algo].items():
        assert get_knob(config, knob_name) == value


def test_an_environment_selects_its_preset_and_algorithm() -> None:
    config = default_config(env="BipedalWalker-v3")
    assert (config.preset, config.algo) == ("bipedal-walker", "sac")
    assert default_config("fastsac", "Ant-v5").preset == "ant"
    off = default_config(env="BipedalWalker-v3", preset="none")
    assert (off.preset, off.algo, off.hyper) == ("none", "auto", UndecidedConfig())
    other = default_config("tqc", "BipedalWalker-v3")
    assert (other.preset, other.algo) == (None, "tqc"), "it has no values for this one"
    with pytest.raises(UsageError, match="values for sac, not for td3"):
        default_config("td3", preset="sb3")
    with pytest.raises(UsageError, match="Did you mean swimmer"):
        default_config(preset="swimer")


def test_a_knob_that_the_presets_algorithm_lacks_selects_another() -> None:
    assert default_config(env="Ant-v5", asked=["init_alpha"]).algo == "fastsac"
    assert default_config(env="BipedalWalker-v3", asked=["num_atoms"]).algo == "fastsac"


def test_no_environment_has_two_presets() -> None:
    names = [
        *("Hopper", "Ant", "HumanoidStandup", "Swimmer", "Reacher", "Pusher"),
    ]
    envs = [
        *(f"{name}-v5" for name in names),
        "Acrobot-v1",
        "BipedalWalker-v3",
        *(f"dm_control/{name}-v0" for name in ("walker-walk", "cheetah-run", "hopper-hop")),
        "dm_control/humanoid-walk-v0",
    ]
    for env in envs:
        fitting = [n for n, p in PRESETS.items() if any(fnmatch(env, x) for x in p.envs)]
        assert fitting == [preset_for(env, "auto")], env
    assert preset_for("MyEnv-v0", "auto") is None
    assert preset_for("Ant", "auto") == preset_for("Ant-v5", "auto") == "ant"
