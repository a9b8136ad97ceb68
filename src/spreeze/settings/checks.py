"""The checks: everything that is wrong with a config, all at once, each with the way out."""

from __future__ import annotations

import math
import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from spreeze.algos.dqn import DQNConfig
from spreeze.algos.fastsac import FastSACConfig
from spreeze.algos.fasttd3 import FastTD3Config
from spreeze.algos.tqc import TQCConfig
from spreeze.policy import NOISE_BLOCK
from spreeze.rows import PLACEMENTS
from spreeze.settings.config import Config, knob, knob_names, parse_count, parse_duration
from spreeze.spec import ENGINES, LARGEST_RETURN

BOUNDS: dict[str, tuple[float, float]] = {
    "seed": (0, 2**32 - 1),
    "sampler.processes": (1, 1024),
    "sampler.envs_per_process": (1, 4096),
    "sampler.random_steps": (0, 1e9),
    "replay.capacity": (100, 1e9),
    "learner.batch_size": (1, 1 << 20),
    "learner.warmup_rows": (1, 1e9),
    "learner.updates_per_step": (1e-6, 1000),
    "learner.updates_per_publish": (1, 100_000),
    "learner.threads": (1, 1024),
    "evaluator.episodes": (1, 10_000),
    "evaluator.processes": (1, 1024),
    "evaluator.every_s": (0, 1e6),
    "evaluator.share": (0.001, 1),
    "evaluator.average": (0, 1),
    "visualizer.frames_hz": (0.05, 60),
    "visualizer.video_s": (0, 600),
    "checkpoint.every_s": (0.1, 1e6),
    "checkpoint.keep": (1, 100_000),
    "algo.gamma": (0, 1),
    "algo.n_step": (1, 100),
    "algo.policy_delay": (1, 64),
    "algo.priority": (0, 4),
    "algo.priority_correction": (0, 1),
    "algo.beta2": (0, 0.999999),
    "algo.max_grad_norm": (1e-6, 1e9),
    "algo.reward_scale": (1e-9, 1e9),
    "algo.termination_cost": (0, 1e9),
    "algo.statistics_rows": (1000, 1e9),
    "algo.target_noise": (0, 10),
    "algo.target_noise_clip": (0, 10),
    "algo.epsilon": (0, 1),
    "algo.num_atoms": (2, 10_001),
    "algo.num_critics": (1, 64),
    "algo.num_quantiles": (1, 1000),
    "algo.drop_per_critic": (0, 999),
    "algo.hold": (1, NOISE_BLOCK),
    "algo.segment": (2, 1024),
    "algo.max_reuse": (0.01, 1000),
    "algo.gae_lambda": (0, 1),
    "algo.clip": (1e-3, 100),
    "algo.entropy": (0, 100),
    "algo.lr": (1e-8, 1),
    "algo.tau": (1e-8, 1),
    "algo.init_alpha": (1e-8, 1000),
    "algo.target_entropy_per_action": (-100, 100),
}
PAIRS: dict[str, tuple[float, float]] = {"algo.noise": (0, 10), "algo.spread": (0, 10)}
"""Knobs that are two numbers, the smaller first, and what they lie between."""
FRACTIONS = {
    *("learner.updates_per_step", "evaluator.every_s", "evaluator.share", "evaluator.average"),
    "checkpoint.every_s",
    *("visualizer.frames_hz", "visualizer.video_s"),
    *("algo.gamma", "algo.lr", "algo.tau"),
    *("algo.init_alpha", "algo.target_entropy_per_action"),
    *("algo.beta2", "algo.max_grad_norm", "algo.reward_scale", "algo.epsilon"),
    "algo.termination_cost",
    *("algo.target_noise", "algo.target_noise_clip", "algo.max_reuse", "algo.gae_lambda"),
    *("algo.clip", "algo.entropy", "algo.priority", "algo.priority_correction"),
}
CHOICES = {
    "cores": ("auto", "separate", "shared"),
    "env.engine": ENGINES,
    "replay.placement": ("auto", *PLACEMENTS),
    "visualizer.draw": ("auto", "on", "off"),
    "track": (None, "wandb", "trackio"),
}


def check_config(config: Config) -> list[str]:
    """Everything that is wrong with a config, all at once; empty if nothing is."""
    problems: list[str] = []
    if config.resume is None and not config.env:
        problems.append("which environment? For instance: spreeze train Pendulum-v1")
    for parse, text in ((parse_duration, config.time), (parse_count, config.steps)):
        try:
            if text is not None:
                parse(text)
        except ValueError as error:
            problems.append(str(error))
    if config.target is not None and not _is_number(config.target):
        problems.append(f"--target {config.target}: must be a finite return.")
    problems += check_devices(config.device, config.learner.same_device)
    problems += [
        f"--{name} {knob(config, name)}: must be one of {', '.join(filter(None, allowed))}."
        for name, allowed in CHOICES.items()
        if knob(config, name) not in allowed
    ]
    if config.name is not None and not re.fullmatch(r"[\w+=][\w.+= -]{,99}", config.name):
        problems.append(
            f"--name {config.name!r}: it names a folder: up to 100 letters, digits, . _ + = -"
        )
    for name in set(BOUNDS) & set(knob_names(config)):
        value, (low, high) = knob(config, name), BOUNDS[name]
        whole = name not in FRACTIONS
        if value not in ("auto", None) and not (_is_number(value, whole) and low <= value <= high):
            flag, kind = name.replace("_", "-"), "a whole number" if whole else "a number"
            problems.append(
                f"--{flag} {value}: must be {kind} from {_round(low)} to {_round(high)}."
            )
    if config.track in ("wandb", "trackio") and find_spec(config.track) is None:
        problems.append(
            f'--track {config.track} needs a package that is missing: pip install "spreeze[{config.track}]"'
        )
    return problems + _check_lists(config) + _check_sizes(config) + _check_learning(config)


def _check_lists(config: Config) -> list[str]:
    """Knobs that are several numbers."""
    problems = []
    hidden = config.hyper.hidden
    if hidden != "auto" and not (
        isinstance(hidden, tuple | list)
        and hidden
        and all(_is_number(width, whole=True) and 1 <= width <= 65_536 for width in hidden)
    ):
        problems.append(
            f"--algo.hidden {_words(hidden)}: one or more widths from 1 to 65536, such as 256 256."
        )
    for name in set(PAIRS) & set(knob_names(config)):
        value, (low, high) = knob(config, name), PAIRS[name]
        numbers = isinstance(value, tuple | list) and all(_is_number(x) for x in value)
        if not (numbers and len(value) == 2 and low <= value[0] <= value[1] <= high):
            problems.append(
                f"--{name} {_words(value)}: must be two numbers from {low:g} to {high:g}, the smaller first."
            )
    return problems


def _round(bound: float) -> str:
    """A bound as people write it."""
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"


def _words(value: Any) -> str:
    """Several numbers as they are given on the command line."""
    return " ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def check_devices(device: str, same_allowed: bool, flag: str = "--device") -> list[str]:
    """Whether the value of `flag` names devices that go together."""
    names = device.split(",")
    if device != "auto" and not all(re.fullmatch(r"cpu|cuda(:\d+)?", name) for name in names):
        return [
            f"{flag} {device}: must be auto, cpu, cuda or cuda:0, or two of them with a comma: cuda:0,cuda:1."
        ]
    if len(names) > 2:
        return [
            f"{flag} {device}: two devices at most, the critic's and the actor's: {names[0]},{names[1]}."
        ]
    gpus = ["cuda:0" if name == "cuda" else name for name in names if name != "cpu"]
    if len(gpus) > len(set(gpus)) and not same_allowed:
        return [
            f"{flag} {device}: that is one GPU twice. Name it once, or add --learner.same-device "
            "if critic and actor are to share it."
        ]
    return []


def _check_sizes(config: Config) -> list[str]:
    """Knobs that are right by themselves and wrong together."""
    problems = []
    capacity = config.replay.capacity
    for name, why in (
        ("learner.batch_size", "such a batch can never be drawn"),
        ("learner.warmup_rows", "learning would never start"),
    ):
        value = knob(config, name)
        if "auto" not in (value, capacity) and value > capacity:
            flag = name.replace("_", "-")
            problems.append(f"--{flag} {value} is larger than --replay.capacity {capacity}: {why}.")
    for asked, flag in (
        (config.visualizer.draw == "on", "--visualizer.draw on"),
        (config.track is not None, f"--track {config.track}"),
    ):
        if config.serial and asked:
            problems.append(f"{flag} needs a process of its own: not with --serial.")
    if config.devices[0] == "cpu" and config.replay.placement in ("gpu", "pinned"):
        problems.append(
            f"--replay.placement {config.replay.placement} is for a GPU, and --device is cpu: use host."
        )
    if (
        config.hyper.priorities()[0] > 0
        and config.device.startswith("cuda")
        and config.replay.placement == "host"
    ):
        problems.append(
            "--algo.priority needs a replay that the GPU can read: --replay.placement gpu or pinned."
        )
    bounds = config.learner.ratio_bounds
    if bounds != "auto" and not (0 <= bounds[0] <= bounds[1] <= 1e6 and bounds[1] > 0):
        problems.append(
            f"--learner.ratio-bounds {bounds[0]} {bounds[1]}: the smaller ratio first, none negative, the larger above 0."
        )
    return problems


def _check_learning(config: Config) -> list[str]:
    """Knobs with which an algorithm would learn nothing, or that it would not heed."""
    problems, hyper, learner = [], config.hyper, config.learner
    if isinstance(hyper, TQCConfig) and not hyper.drop_per_critic < hyper.num_quantiles:
        problems.append(
            f"--algo.drop-per-critic {hyper.drop_per_critic}: must be less than "
            f"--algo.num-quantiles {hyper.num_quantiles}, or nothing is left."
        )
    if isinstance(hyper, FastSACConfig | FastTD3Config):
        why = f"{config.algo}'s critics know returns from -{LARGEST_RETURN:g} to {LARGEST_RETURN:g} alone"
        if not hyper.normalise_reward:
            problems.append(f"--algo.no-normalise-reward: {why}.")
        if hyper.reward_scale > 1:
            problems.append(f"--algo.reward-scale {hyper.reward_scale:g}: at most 1, as {why}.")
    if isinstance(hyper, DQNConfig) and hyper.policy_delay != 1:
        problems.append(
            f"--algo.policy-delay {hyper.policy_delay}: {config.algo} has no actor that could wait."
        )
    reuse, bounds = hyper.reuse(), learner.ratio_bounds
    most = learner.updates_per_step if bounds == "auto" else bounds[1]
    if reuse is not None and learner.batch_size != "auto" and most != "auto":
        times = most * learner.batch_size * hyper.row_format().segment
        if times > 1.001 * reuse:
            problems.append(
                f"--learner.updates-per-step or --learner.ratio-bounds: with up to {most:g} updates per env step "
                f"each step is learned from {times:g} times, and --algo.max-reuse is {reuse:g}."
            )
    return problems


def _is_number(value: Any, whole: bool = False) -> bool:
    kinds = int if whole else int | float
    return isinstance(value, kinds) and not isinstance(value, bool) and math.isfinite(value)


def check_folder(folder: Path) -> list[str]:
    """Whether a run can be written there; creates nothing."""
    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir():
        return [f"--runs {folder}: {existing} is a file, not a folder."]
    if not os.access(existing, os.W_OK | os.X_OK):
        return [
            f"--runs {folder}: {existing} cannot be written to. Name another folder with --runs."
        ]
    return []
