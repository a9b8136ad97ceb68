"""Reproducible runs: equal flags give equal settings, whatever the machine and however fast it is."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium as gym
import pytest

import fakes
from spreeze.algos import ALGORITHMS
from spreeze.cli.commands.train import parse
from spreeze.envs import inspect
from spreeze.envs.inspect import inspect_env
from spreeze.errors import UsageError
from spreeze.machine.facts import Gpu, Machine
from spreeze.run.controller import movable_settings
from spreeze.settings.auto import Resolved, resolve
from spreeze.settings.build import build_config
from spreeze.settings.checks import check_config
from spreeze.settings.config import get_knob
from spreeze.settings.probe import ProbeRequest, ProbeResult
from spreeze.spec import EnvSpec

GIB = 2**30
SMALL = Machine(cores=2, memory_bytes=4 * GIB, gpus=())
LARGE = Machine(
    cores=32, memory_bytes=256 * GIB, gpus=(Gpu("A", 20 * GIB), Gpu("B", 9 * GIB)), bfloat16=True
)
SLOW = {"step_us": 3000.0, "construct_s": 20.0, "reset_s": 5.0}
FAST = {"step_us": 5.0, "construct_s": 0.01, "reset_s": 1e-4}


def task(name: str, obs: int, actions: int, discrete: bool = False) -> EnvSpec:
    box = {} if discrete else {"action_low": (-1.0,) * actions, "action_high": (1.0,) * actions}
    shape = () if discrete else (actions,)
    return EnvSpec(
        id=name,
        obs_shape=(obs,),
        action_shape=shape,
        action_low=box.get("action_low", ()),
        action_high=box.get("action_high", ()),
        num_actions=actions if discrete else None,
        max_episode_steps=1000,
        random_episode=30.0,
    )


PENDULUM, CHEETAH = task("Pendulum-v1", 3, 1), task("HalfCheetah-v5", 17, 6)
HUMANOID, CART_POLE = task("Humanoid-v5", 348, 17), task("CartPole-v1", 4, 2, discrete=True)
OWN = task("Mine-v0", 40, 8)
CASES = [
    *((spec, "auto") for spec in (PENDULUM, CHEETAH, HUMANOID, CART_POLE, OWN)),
    *((OWN, name) for name, entry in ALGORITHMS.items() if entry.takes(OWN)),
    *((CART_POLE, name) for name in ("dqn", "ppo")),
]


def refuse(_: ProbeRequest) -> ProbeResult:
    raise AssertionError("measured")


def planned(
    spec: EnvSpec, machine: Machine, times: dict[str, float], knobs: dict[str, Any]
) -> Resolved:
    """What becomes of flags on a machine, with an environment that is that fast there."""
    config = build_config(spec.id, {"reproducible": True, **knobs})
    return resolve(config, dataclasses.replace(spec, **times), machine, refuse)


@pytest.mark.parametrize(("spec", "algo"), CASES, ids=lambda x: x if isinstance(x, str) else x.id)
@pytest.mark.parametrize("serial", [False, True])
def test_two_machines_have_the_same_settings(spec: EnvSpec, algo: str, serial: bool) -> None:
    knobs = {"algo": algo, "serial": serial}
    small, large = planned(spec, SMALL, SLOW, knobs), planned(spec, LARGE, FAST, knobs)
    assert small.config == large.config
    assert small.reasons == large.reasons
    assert small.config.device == "cpu"
    bounds = small.config.learner.ratio_bounds
    assert serial or bounds[0] == bounds[1], "neither side may be ahead because it is faster"
    assert check_config(small.config) == []
    assert movable_settings(small.config, small.reasons) == []


def test_two_machines_with_a_gpu_have_the_same_settings_too() -> None:
    one = dataclasses.replace(SMALL, gpus=(Gpu("C", 100 * GIB),))
    for spec in (CHEETAH, HUMANOID):
        knobs = {"device": "cuda"}
        made, other = planned(spec, one, SLOW, knobs), planned(spec, LARGE, FAST, knobs)
        assert made.config == other.config
        assert made.reasons == other.reasons
        assert made.config.algo == "fastsac"
    with pytest.raises(UsageError, match="no such GPU, only 1 here"):
        planned(CHEETAH, one, SLOW, {"device": "cuda:1"})


@pytest.mark.parametrize(
    "given",
    [
        {"learner.batch_size": 64},
        {"sampler.processes": 7},
        {"learner.updates_per_step": 0.5},
        {"learner.ratio_bounds": (0.1, 2.0)},
        {"cores": "separate"},
        {"limits.step_s": 7.0},
        {"replay.capacity": 5000},
        {"serial": True, "learner.ratio_bounds": (0.1, 2.0)},
    ],
)
def test_what_you_give_wins(given: dict[str, Any]) -> None:
    made = planned(CHEETAH, LARGE, FAST, given).config
    assert {name: get_knob(made, name) for name in given} == given


def test_the_command_line_asks_as_python_does() -> None:
    asked = parse(["--reproducible", "HalfCheetah-v5"])
    assert asked == build_config("HalfCheetah-v5", {"reproducible": True})
    assert asked.reproducible


def test_measuring_again_is_refused() -> None:
    config = build_config("Pendulum-v1", {"reproducible": True, "retune": True})
    (problem,) = check_config(config)
    assert "--retune" in problem


@pytest.mark.parametrize("hurry", [True, False])
def test_a_slow_machine_learns_as_much_about_the_task(
    hurry: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The algorithm may follow from when random actions end episodes."""
    monkeypatch.setattr(inspect, "RANDOM_S", 0.0)

    def falls_late() -> gym.Env[Any, Any]:
        return fakes.CountEnv(50, True)

    found = inspect_env(falls_late, "late", hurry).random_episode
    assert found == (None if hurry else 50.0)
