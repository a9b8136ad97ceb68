"""The config: from flags, from Python, from config.json."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import pytest

from spreeze.algos import ALGORITHMS
from spreeze.cli.commands.train import parse
from spreeze.errors import UsageError
from spreeze.settings.build import build_config
from spreeze.settings.config import Config, all_knobs, get_knob, knob_names, resolved
from spreeze.settings.defaults import (
    config_from_json,
    config_with,
    default_config,
    with_algorithm,
)
from spreeze.settings.other_names import OURS, WITHOUT


def test_a_knob_that_few_algorithms_have_selects_one_of_them() -> None:
    assert parse(["Mine-v0", "--algo.init-alpha", "0.5"]).algo == "sac"
    assert parse(["Mine-v0", "--algo.epsilon=0.5"]).algo == "dqn"
    assert parse(["Mine-v0", "--algo.gamma", "0.5"]).algo == "auto"
    with pytest.raises(UsageError, match="no such flag for this algorithm; it is one of sac,"):
        parse(["Mine-v0", "--algo", "td3", "--algo.init-alpha", "0.5"])


@pytest.mark.parametrize(
    ("flag", "name", "value"),
    [
        (["--algo.n-step", "1"], "n_step", 1),
        (["--algo.no-normalise-reward"], "normalise_reward", False),
        (["--algo.beta2=0.999"], "beta2", 0.999),
    ],
)
def test_a_given_value_wins_even_if_it_is_the_usual_default(
    flag: list[str], name: str, value: Any
) -> None:
    config = parse(["Mine-v0", *flag])
    assert getattr(with_algorithm(config, "dqn").hyper, name) == value
    again = config_from_json(json.loads(json.dumps(config.to_json())))
    assert getattr(with_algorithm(again, "dqn").hyper, name) == value, "a run that is resumed"


def test_an_open_algorithm_keeps_given_knobs_when_it_is_chosen() -> None:
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


@pytest.mark.fault("S13")
def test_a_stored_config_cannot_name_code() -> None:
    data = default_config("sac").to_json() | {"algo": "os:system"}
    with pytest.raises(UsageError, match="your own code"):
        config_from_json(data)


@pytest.mark.fault("S14")
def test_an_unknown_knob_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"Did you mean learner\.batch_size"):
        config_with(default_config(), {"learner.batchsize": 3})


def test_an_unknown_algorithm_or_preset_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"there are auto, sac.*Did you mean sac"):
        default_config("sax")
    with pytest.raises(UsageError, match="--preset fast"):
        default_config(preset="fast")


def test_a_config_survives_json() -> None:
    config = config_with(
        default_config(env="Pendulum-v1"),
        {"algo.hidden": (8, 8), "learner.ratio_bounds": (0.1, 2.0), "env.engine": "envpool"},
    )
    assert config_from_json(json.loads(json.dumps(config.to_json()))) == config


def test_an_older_stored_config_gets_defaults_for_new_knobs() -> None:
    data = default_config(env="Pendulum-v1").to_json()
    del data["simulation"]
    assert config_from_json(data).simulation.engine == "gymnasium"


@pytest.mark.fault("S13")
@pytest.mark.fault("S14")
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


def test_help_lists_every_knob(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"])
    text = capsys.readouterr().out
    flags = set(re.findall(r"--([\w.-]+)", text))
    missing = [name for name in knob_names(Config()) if name.replace("_", "-") not in flags]
    assert missing == ["env"], "only the environment is positional"
    first = text.index("spreeze train HalfCheetah-v5 --target 5000")
    places = [
        text.index(f"\n{title}  ") for title in ("Run", "Environment", "Learner", "Algorithm")
    ]
    assert [first, *places] == sorted([first, *places]), "examples come first"


def test_help_shows_the_knobs_of_the_algorithm(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--algo", "ppo", "--help"])
    text = capsys.readouterr().out
    assert "Algorithm ppo" in text
    assert "--algo.gae-lambda X" in text
    assert "[0.95]" in text


def test_auto_must_be_resolved_before_it_is_used() -> None:
    assert resolved(3) == 3
    with pytest.raises(ValueError, match="auto"):
        resolved("auto")


def test_configs_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        default_config().seed = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("total_timesteps", "steps"),
        ("learning_rate", "algo.lr"),
        ("gamma", "algo.gamma"),
        ("gama", "algo.gamma"),
        ("batchsize", "learner.batch_size"),
        ("tim", "time"),
        ("algo.hiden", "algo.hidden"),
    ],
)
def test_a_knob_of_another_library_is_refused_with_our_name(name: str, meant: str) -> None:
    with pytest.raises(UsageError, match=rf"no knob '{name}'. Did you mean {meant}\?"):
        config_with(default_config("sac", "Mine-v0"), {name: 1})


def test_each_name_of_another_library_leads_to_knobs_that_exist() -> None:
    known = {name for algo in ALGORITHMS for name in knob_names(default_config(algo, "Mine-v0"))}
    assert {name for names in OURS.values() for name in names} <= known
    assert not (known - {"env"}) & (OURS.keys() | WITHOUT.keys()), "these exist"
    assert not OURS.keys() & WITHOUT.keys()


OTHERS = {
    "Stable-Baselines3": """n_envs total_timesteps learning_starts buffer_size batch_size tau gamma train_freq
        gradient_steps policy_kwargs net_arch ent_coef n_steps n_epochs clip_range gae_lambda tensorboard_log policy
        learning_rate target_update_interval use_sde vf_coef""",
    "CleanRL": """env-id total-timesteps num-envs learning-rate capture-video exp-name policy-noise noise-clip
        target-network-frequency learning-starts policy-frequency alpha autotune save-model cuda wandb-entity""",
    "RLlib": """run stop env num_workers num_env_runners train_batch_size rollout_fragment_length num_gpus
        framework lambda entropy_coeff""",
}


@pytest.mark.parametrize("library", OTHERS)
def test_every_name_of_another_library_is_answered(library: str) -> None:
    """By our names or by a reason, in Python and on the command line alike; never by what merely looks alike."""
    for theirs in OTHERS[library].split():
        with pytest.raises(UsageError) as typed:
            parse(["Pendulum-v1", f"--{theirs}", "0.5"])
        answer = str(typed.value)
        assert answer.startswith(f"--{theirs.replace('_', '-')}: there is no such flag")
        assert ", because " in answer or ". Did you mean --" in answer, answer
        if theirs == "env":
            continue
        with pytest.raises(UsageError) as called:
            build_config("Pendulum-v1", {theirs.replace("-", "_"): 0.5})
        in_python = str(called.value).partition("'")[2].partition("'")[2]
        end = answer.removeprefix(f"--{theirs.replace('_', '-')}: there is no such flag")
        assert end.replace("-", "_") == re.sub(r"(mean | or )", r"\1--", in_python).replace(
            "-", "_"
        )


@pytest.mark.parametrize(
    ("flags", "answer"),
    [
        ("--total-timesteps 1e6", r"--total-timesteps: .* Did you mean --steps\?"),
        ("--learning_rate=3e-4", r"--learning-rate: .* Did you mean --algo.lr\?"),
        ("--num-workers 4 --seed 1", r"--num-workers: .* Did you mean --sampler.processes\?"),
        ("--learner.batch-sise 3", r"--learner.batch-sise: .* Did you mean --learner.batch-size\?"),
        ("--foo 3", r"^--foo: there is no such flag\.$"),
        ("--autotune --foo 3", "because SAC and TQC always learn(.|\n)*--foo"),
        ("--env Hopper-v5", "--env: .* because the environment is named first"),
        ("--track", "--track: a value is missing; it must be one of wandb, trackio"),
        ("--verbose 1", "--verbose takes no value; write --verbose or --no-verbose"),
        ("--algo.no-layer-norm=True", "takes no value; write --algo.layer-norm or --algo.no-layer"),
    ],
)
def test_a_wrong_flag_is_answered_in_words(flags: str, answer: str) -> None:
    with pytest.raises(UsageError, match=answer):
        parse(["Pendulum-v1", *flags.split()])


def test_arguments_of_the_environment_are_a_dictionary_or_its_json() -> None:
    given = build_config("Mine-v0", {"env.kwargs": {"goal": 2, "name": "left"}})
    assert given.env_kwargs == {"goal": 2, "name": "left"}
    typed = parse(["Mine-v0", "--env.kwargs", '{"goal": 2, "name": "left"}'])
    assert typed == given
    assert build_config("Mine-v0", {}).env_kwargs == {}
    with pytest.raises(UsageError, match=r"functools.partial"):
        build_config("Mine-v0", {"env.kwargs": {"goal": object()}})


def test_python_and_the_command_line_build_the_same_config() -> None:
    for env, knobs in (
        ("Ant-v5", {"seed": 3, "learner.batch_size": 512}),
        ("Mine-v0", {"algo.epsilon": 0.1, "serial": True}),
        ("Mine-v0", {"algo.n_step": 2, "time": "5m"}),
        ("HalfCheetah-v5", {"device": "cpu", "algo.hidden": (8, 8)}),
        ("Pendulum-v1", {"algo": "td3", "preset": "none"}),
    ):
        words = [env]
        for name, value in knobs.items():
            words += [f"--{name.replace('_', '-')}"]
            values = value if isinstance(value, tuple) else (value,)
            words += [] if value is True else map(str, values)
        assert parse(words) == build_config(env, knobs)


def test_a_config_that_an_earlier_version_stored_still_loads() -> None:
    """Names of sections and knobs in config.json are part of the run directory."""
    stored = {
        "env": "Pendulum-v1",
        "algo": "auto",
        "steps": "1500",
        "preset": "none",
        "simulation": {"engine": "gymnasium"},
        "sampler": {"processes": "auto", "envs_per_process": 4, "random_steps": 1000},
        "learner": {"batch_size": 64, "ratio_bounds": [0.1, 2.0], "compile": True},
        "hyper": {"gamma": 0.9, "hidden": [8, 8], "lr": "auto", "n_step": 1, "asked": ["n_step"]},
    }
    config = config_from_json(stored)
    assert config.learner.ratio_bounds == (0.1, 2.0)
    chosen = with_algorithm(config, "dqn").hyper
    assert (chosen.gamma, chosen.hidden) == (0.9, (8, 8))
    assert vars(chosen)["n_step"] == 1, "it was given, so it wins over DQN's default"


def test_the_names_of_knobs_are_those_of_their_descriptions() -> None:
    for algo in ALGORITHMS:
        config = default_config(algo, env="x")
        assert knob_names(config) == list(all_knobs(config))
