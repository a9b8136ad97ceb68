"""Presets: which one an environment gets, and which algorithm it selects."""

from __future__ import annotations

from fnmatch import fnmatch

import pytest

from spreeze.cli.commands.train import parse
from spreeze.errors import UsageError
from spreeze.machine.facts import Gpu
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
    config = default_config(env="CartPole-v1")
    assert (config.preset, config.algo) == ("cart-pole", "ppo")
    assert default_config("dqn", "CartPole-v1").preset == "cart-pole"
    off = default_config(env="CartPole-v1", preset="none")
    assert (off.preset, off.algo, off.hyper) == ("none", "auto", UndecidedConfig())
    other = default_config("tqc", "HalfCheetah-v5")
    assert (other.preset, other.algo) == (None, "tqc"), "it has no values for this one"
    with pytest.raises(UsageError, match="values for sac, not for td3"):
        default_config("td3", preset="sb3")
    with pytest.raises(UsageError, match="Did you mean half-cheetah"):
        default_config(preset="halfcheetah")


def test_a_preset_may_select_another_algorithm_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(device: str = "auto") -> str:
        return default_config(env="HalfCheetah-v5", device=device).algo

    assert (chosen("cpu"), chosen("cuda:1")) == ("sac", "fastsac")
    for gpus, algo in (((), "sac"), ((Gpu("One", 1),), "fastsac")):
        monkeypatch.setattr("spreeze.settings.defaults.visible_gpus", lambda gpus=gpus: gpus)
        assert chosen() == algo
    assert default_config("sac", "HalfCheetah-v5", device="cuda").algo == "sac"
    assert parse(["HalfCheetah-v5", "--device", "cpu"]).algo == "sac", "whatever is there"
    assert (
        default_config(env="HalfCheetah-v5", asked=["init_alpha"], device="cuda").algo == "fastsac"
    )
    assert default_config(env="HalfCheetah-v5", asked=["num_atoms"], device="cpu").algo == "fastsac"


def test_no_environment_has_two_presets() -> None:
    names = [
        *("HalfCheetah", "Walker2d", "Hopper", "Ant", "Humanoid", "Swimmer", "Reacher", "Pusher"),
        *("InvertedPendulum", "InvertedDoublePendulum"),
    ]
    envs = [
        *(f"{name}-v5" for name in names),
        *("Pendulum-v1", "CartPole-v1", "Acrobot-v1"),
        *("LunarLander-v3", "LunarLanderContinuous-v3", "BipedalWalker-v3"),
        *(f"dm_control/{name}-v0" for name in ("walker-walk", "cheetah-run", "hopper-hop")),
        "dm_control/humanoid-walk-v0",
    ]
    for env in envs:
        fitting = [n for n, p in PRESETS.items() if any(fnmatch(env, x) for x in p.envs)]
        assert fitting == [preset_for(env, "auto")], env
    assert preset_for("MyEnv-v0", "auto") is None
    assert preset_for("Pendulum", "auto") == preset_for("Pendulum-v1", "auto") == "pendulum"
