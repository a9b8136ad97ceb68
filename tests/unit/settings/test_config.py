"""The config: every knob once, wrong ones refused all at once and with the way out."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from spreeze.algos import ALGORITHMS
from spreeze.cli.commands.train import parse
from spreeze.errors import UsageError
from spreeze.machine.facts import Gpu
from spreeze.settings.checks import check_config, check_folder
from spreeze.settings.config import Config, get_knob, knob_names, resolved
from spreeze.settings.defaults import config_from_json, config_with, default_config, with_algorithm
from spreeze.settings.parse import parse_count, parse_duration
from spreeze.settings.presets import PRESETS, preset_for
from spreeze.settings.sections import UndecidedConfig


def problems_of(**knobs: Any) -> list[str]:
    return check_config(config_with(default_config(env="Pendulum-v1"), knobs))


def test_the_defaults_have_no_problem() -> None:
    assert problems_of() == []


@pytest.mark.parametrize(("name", "algo"), [(n, a) for n, p in PRESETS.items() for a in p.algos])
def test_every_preset_is_valid_for_each_of_its_algorithms(name: str, algo: str) -> None:
    config = default_config(algo, env="Pendulum-v1", preset=name)
    assert check_config(config) == []
    assert config.algo == algo
    for knob_name, value in PRESETS[name].algos[algo].items():
        assert get_knob(config, knob_name) == value


def test_an_environment_brings_its_preset_and_its_algorithm() -> None:
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


def test_a_preset_may_take_another_algorithm_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_every_environment_with_a_preset_has_one_only() -> None:
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


def test_a_knob_that_only_some_have_names_the_algorithm() -> None:
    assert parse(["Mine-v0", "--algo.init-alpha", "0.5"]).algo == "sac"
    assert parse(["Mine-v0", "--algo.epsilon=0.5"]).algo == "dqn"
    assert parse(["Mine-v0", "--algo.gamma", "0.5"]).algo == "auto"
    with pytest.raises(SystemExit):
        parse(["Mine-v0", "--algo", "td3", "--algo.init-alpha", "0.5"])


@pytest.mark.parametrize(
    ("flag", "name", "value"),
    [
        (["--algo.n-step", "1"], "n_step", 1),
        (["--algo.no-normalise-reward"], "normalise_reward", False),
        (["--algo.beta2=0.999"], "beta2", 0.999),
    ],
)
def test_what_is_given_stays_even_if_it_is_what_most_algorithms_have(
    flag: list[str], name: str, value: Any
) -> None:
    config = parse(["Mine-v0", *flag])
    assert getattr(with_algorithm(config, "dqn").hyper, name) == value
    again = config_from_json(json.loads(json.dumps(config.to_json())))
    assert getattr(with_algorithm(again, "dqn").hyper, name) == value, "a run that is resumed"


@pytest.mark.parametrize(
    ("algo", "knobs", "said"),
    [
        ("fastsac", {"algo.spread": (float("nan"), 1.0)}, "--algo.spread nan 1.0: must be two"),
        ("fastsac", {"algo.spread": (0.5, 1.0, 2)}, "--algo.spread 0.5 1.0 2: must be two"),
        ("td3", {"algo.noise": (0.5, 0.05)}, "the smaller first"),
        ("td3", {"algo.noise": 0.5}, "--algo.noise 0.5: must be two numbers from 0 to 10"),
        ("sac", {"algo.hidden": 64}, "--algo.hidden 64: must be one or more whole numbers"),
        ("sac", {"algo.hidden": (64.5,)}, "--algo.hidden 64.5: must be one or more whole numbers"),
        ("fastsac", {"algo.normalise_reward": False}, "only represent returns from -5 to 5"),
        ("fasttd3", {"algo.reward_scale": 30.0}, "--algo.reward-scale 30: at most 1"),
        ("dqn", {"algo.policy_delay": 2}, "DQN has no actor"),
        ("ppo", {"learner.batch_size": 64, "learner.updates_per_step": 1.0}, "1024 times"),
        ("ppo", {"learner.batch_size": 64, "learner.ratio_bounds": (0, 0.1)}, "max-reuse is 8"),
        ("sac", {"learner.batch_size": 0}, "must be a whole number from 1 to 1,048,576"),
    ],
)
def test_knobs_that_would_do_nothing_or_harm_are_refused(
    algo: str, knobs: dict[str, Any], said: str
) -> None:
    assert check_config(default_config(algo, "Mine-v0")) == []
    (problem,) = check_config(config_with(default_config(algo, "Mine-v0"), knobs))
    assert said in problem


def test_the_environment_may_be_named_behind_flags() -> None:
    first = parse(["Ant-v5", "--seed", "1", "--algo", "fastsac"])
    assert first.preset == "ant"
    assert parse(["--seed", "1", "Ant-v5", "--algo", "fastsac"]) == first
    assert parse(["--algo", "fastsac", "--seed", "1", "Ant-v5"]) == first


def test_auto_is_settled_by_the_actions_and_keeps_what_was_asked_for() -> None:
    config = config_with(default_config(env="Mine-v0"), {"algo.gamma": 0.9})
    for algo in ("sac", "dqn"):
        chosen = with_algorithm(config, algo)
        assert isinstance(chosen.hyper, ALGORITHMS[algo].config)
        assert chosen.hyper.gamma == 0.9
        default = ALGORITHMS[algo].config()
        assert get_knob(chosen, "algo.n_step") == get_knob(
            with_algorithm(default_config(env="x"), algo), "algo.n_step"
        )
        assert chosen.hyper == dataclasses.replace(default, gamma=0.9)


def test_a_stored_config_cannot_name_code() -> None:
    data = default_config("sac").to_json() | {"algo": "os:system"}
    with pytest.raises(UsageError, match="your own code"):
        config_from_json(data)


@pytest.mark.parametrize(
    ("knobs", "parts"),
    [
        ({"learner.batch_size": -1}, ["--learner.batch-size -1", "from 1 to"]),
        ({"learner.batch_size": 10**9}, ["--learner.batch-size"]),
        ({"replay.capacity": 1000, "learner.batch_size": 2000}, ["2000", "1000", "never be drawn"]),
        ({"replay.capacity": 1000, "learner.warmup_rows": 2000}, ["never start"]),
        ({"replay.placement": "cpu"}, ["--replay.placement cpu", "pinned"]),
        (
            {"replay.placement": "pinned", "device": "cpu"},
            ["--replay.placement pinned", "use host"],
        ),
        (
            {"algo.priority": 0.6, "device": "cuda", "replay.placement": "host"},
            ["--algo.priority", "gpu or pinned"],
        ),
        ({"algo.gamma": 1.5}, ["--algo.gamma 1.5"]),
        ({"algo.gamma": float("nan")}, ["--algo.gamma nan"]),
        ({"algo.termination_cost": -1.0}, ["--algo.termination-cost -1.0"]),
        ({"algo.hidden": ()}, ["--algo.hidden"]),
        ({"algo.hidden": (256, 0)}, ["--algo.hidden"]),
        ({"sampler.processes": 0}, ["--sampler.processes 0"]),
        ({"learner.ratio_bounds": (2.0, 1.0)}, ["--learner.ratio-bounds"]),
        ({"time": "soon"}, ["--time soon", "90s"]),
        ({"time": "-5s"}, ["--time -5s"]),
        ({"steps": "many"}, ["--steps many", "500k"]),
        ({"device": "tpu"}, ["--device tpu", "cpu"]),
        ({"name": "../up"}, ["--name"]),
        ({"target": float("inf")}, ["--target"]),
        ({"env": ""}, ["which environment"]),
        ({"env.engine": "warp"}, ["--env.engine warp", "gymnasium, envpool"]),
    ],
)
def test_a_wrong_knob_is_named_with_what_is_allowed(
    knobs: dict[str, Any], parts: list[str]
) -> None:
    (problem,) = problems_of(**knobs)
    assert all(part in problem for part in parts)


def test_all_problems_come_at_once() -> None:
    assert len(problems_of(**{"algo.lr": -1.0, "time": "x", "replay.capacity": 1})) == 3


def test_an_unknown_knob_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"Did you mean learner\.batch_size"):
        config_with(default_config(), {"learner.batchsize": 3})


def test_an_unknown_algorithm_or_preset_is_refused_with_what_there_is() -> None:
    with pytest.raises(UsageError, match=r"there are auto, sac.*Did you mean sac"):
        default_config("sax")
    with pytest.raises(UsageError, match="--preset fast"):
        default_config(preset="fast")


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("5m", 300), ("2h", 7200), ("1.5m", 90), (" 60 ", 60)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "count"), [("500k", 500_000), ("1e6", 10**6), ("2M", 2 * 10**6), ("7", 7)]
)
def test_counts(text: str, count: int) -> None:
    assert parse_count(text) == count


def test_json_and_back_is_the_same_config() -> None:
    config = config_with(
        default_config(env="Pendulum-v1"),
        {"algo.hidden": (8, 8), "learner.ratio_bounds": (0.1, 2.0), "env.engine": "envpool"},
    )
    assert config_from_json(json.loads(json.dumps(config.to_json()))) == config


def test_a_stored_config_from_before_a_knob_has_its_default() -> None:
    data = default_config(env="Pendulum-v1").to_json()
    del data["simulation"]
    assert config_from_json(data).simulation.engine == "gymnasium"


def test_a_stored_config_with_an_unknown_name_is_refused() -> None:
    data = default_config().to_json() | {"_target_": "os.system"}
    with pytest.raises(UsageError, match="_target_"):
        config_from_json(data)


def test_the_command_line_reaches_every_knob() -> None:
    config = parse(
        [
            "Pendulum-v1",
            "--algo",
            "sac",
            "--algo.lr",
            "0.01",
            "--algo.hidden",
            "32",
            "16",
            "--learner.batch_size",
            "512",
            "--sampler.processes",
            "3",
            "--time",
            "5m",
            "--target",
            "-200",
            "--seed",
            "4",
            "--serial",
            "--env.engine",
            "envpool",
        ]
    )
    assert (config.env, config.algo, config.seed, config.serial) == ("Pendulum-v1", "sac", 4, True)
    assert config.hyper.lr == 0.01
    assert config.hyper.hidden == (32, 16)
    assert config.learner.batch_size == 512
    assert config.sampler.processes == 3
    assert config.time_s == 300
    assert config.target == -200
    assert config.simulation.engine == "envpool"
    assert isinstance(config.hyper, ALGORITHMS["sac"].config)


def test_every_knob_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"])
    text = capsys.readouterr().out
    flags = set(re.findall(r"--([\w.-]+)", text))
    missing = [name for name in knob_names(Config()) if name.replace("_", "-") not in flags]
    assert missing == ["env"], "only the environment is positional"


def test_auto_must_be_filled_before_it_is_used() -> None:
    assert resolved(3) == 3
    with pytest.raises(ValueError, match="auto"):
        resolved("auto")


def test_folders_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    assert check_folder(tmp_path / "a" / "b") == []
    file = tmp_path / "file"
    file.touch()
    assert "is a file" in check_folder(file / "runs")[0]
    if os.getuid() != 0:  # root may write anywhere
        tmp_path.chmod(0o500)
        assert "cannot be written" in check_folder(tmp_path / "runs")[0]
        tmp_path.chmod(0o700)


def test_configs_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        default_config().seed = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("total_timesteps", "steps"),
        ("learning_rate", "algo.lr"),
        ("gamma", "algo.gamma"),
        ("algo.hiden", "algo.hidden"),
    ],
)
def test_a_knob_by_another_name_is_refused_with_ours(name: str, meant: str) -> None:
    with pytest.raises(UsageError, match=rf"no knob '{name}'. Did you mean {meant}\?"):
        config_with(default_config("sac", "Mine-v0"), {name: 1})


def test_a_flag_without_its_value_is_refused_and_the_last_of_two_counts() -> None:
    assert parse(["Mine-v0", "--algo", "sac", "--algo", "td3"]).algo == "td3"
    for arguments in (["Mine-v0", "--algo"], ["Mine-v0", "--algo", "--serial"]):
        with pytest.raises(UsageError, match="--algo: which one"):
            parse(arguments)
