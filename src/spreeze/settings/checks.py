"""The checks: everything that is wrong with a config, all at once, each with what to do."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from spreeze.knobs import flag, knobs_of
from spreeze.settings.cluster import check_cluster
from spreeze.settings.config import RANKS, SECTIONS, Config
from spreeze.settings.parse import (
    MAX_TRACE_S,
    parse_arguments,
    parse_count,
    parse_duration,
    parse_seeds,
)
from spreeze.text import suggest

TARGET_METRICS = (
    "eval/mean_reward",
    "eval/min_reward",
    "eval/mean_ep_length",
    "eval/success_rate",
    "rollout/success_rate",
    "rollout/is_success",
)
SAID_BY_ENVIRONMENTS = ("eval", "rollout")
"""What --target may be compared with: these metrics, and what environments say in these episodes."""


def check_config(config: Config) -> list[str]:
    """Everything that is wrong with a config, all at once; empty if nothing is."""
    if wrong := list(check_knobs(config)):
        return [
            *_check_run(config),
            *wrong,
        ]  # knobs are compared with each other only if each is valid by itself
    return [
        *_check_run(config),
        *_check_sizes(config),
        *_check_replay(config),
        *config.hyper.problems(),
        *_check_reuse(config),
        *_check_schedules(config),
    ]


def check_knobs(config: Config) -> Iterator[str]:
    """Each knob by itself: its type, its bounds, its words."""
    sections = [(f"{prefix}.", getattr(config, name)) for name, prefix in SECTIONS.items()]
    for prefix, section in [("", config), *sections]:
        for name, knob in knobs_of(type(section)).items():
            if problem := knob.problem(flag(prefix + name), getattr(section, name)):
                yield problem


def _check_run(config: Config) -> Iterator[str]:
    """What a run is about: environment, limits, devices, name, tracker."""
    if config.resume is None and not config.env:
        yield "which environment? For instance: spreeze train Pendulum-v1"
    parsers: list[tuple[Callable[[str], Any], str | None]] = [
        (parse_duration, config.time),
        (partial(parse_duration, option="--trace", most_s=MAX_TRACE_S), config.trace),
        (parse_count, config.steps),
        (partial(parse_seeds, first=config.seed if type(config.seed) is int else 0), config.seeds),
        (parse_arguments, config.simulation.kwargs),
    ]
    for parse, text in parsers:
        try:
            if text is not None:
                parse(text)
        except ValueError as error:
            yield str(error)
    if config.seeds is not None and config.resume is not None:
        yield f"--seeds {config.seeds} starts new runs, and --resume continues one: give one of them."
    yield from _check_target(config)
    yield from _check_evaluation(config)
    yield from check_devices(config.device, config.learner.same_device)
    if config.simulation.engine == "envpool":
        if config.simulation.max_episode_steps:
            yield "--env.max-episode-steps works with --env.engine gymnasium only: EnvPool has its own limits."
        if config.simulation.kwargs:
            yield "--env.kwargs works with --env.engine gymnasium only."
    if config.name is not None and not re.fullmatch(r"[\w+=][\w.+= -]{,99}", config.name):
        yield f"--name {config.name!r}: it names a folder: up to 100 letters, digits, . _ + = -"
    if config.track in ("wandb", "trackio") and find_spec(config.track) is None:
        yield f'--track {config.track} needs a missing package: pip install "spreeze[{config.track}]"'
    yield from _check_modes(config)
    yield from check_cluster(config, os.environ)


def _check_evaluation(config: Config) -> Iterator[str]:
    """Whether each environment of evaluations has its arguments, and is named once."""
    names, texts = config.evaluator.env, config.evaluator.kwargs
    if not all(isinstance(text, str) for text in texts):
        return  # `check_knobs` says so
    if len(names) > 1 and len(texts) > 1 and len(names) != len(texts):
        yield (
            f"--evaluator.kwargs: {len(texts)} sets of arguments for {len(names)} environments; "
            "give one for all, or one for each."
        )
        return
    try:
        found = [f"{name} {json.dumps(kwargs)}" for name, kwargs in config.evaluations]
    except ValueError as error:
        yield str(error)
        return
    if twice := next((text for text in found if found.count(text) > 1), None):
        yield f"--evaluator.env and --evaluator.kwargs: {twice} is given twice; name it once."


def _check_modes(config: Config) -> Iterator[str]:
    """What contradicts --serial or --reproducible."""
    if config.reproducible and config.retune:
        yield "--retune measures this machine, and with --reproducible nothing is measured: give one of them."
    for given, name in (
        (config.visualizer.draw == "on", "--visualizer.draw on"),
        (config.track is not None, f"--track {config.track}"),
    ):
        if config.serial and given:
            yield f"{name} needs a separate process, so it does not work with --serial."


def _check_target(config: Config) -> Iterator[str]:
    """Whether evaluations can have the metric that ends the run."""
    metric = config.target_metric
    if not (metric in TARGET_METRICS or re.fullmatch(r"(eval|rollout)/info/.+", metric)):
        names = [*TARGET_METRICS, *(f"{prefix}/info/NAME" for prefix in SAID_BY_ENVIRONMENTS)]
        yield f"--target-metric {metric}: must be one of {', '.join(names)}.{suggest(metric, names)}"
    elif metric != Config.target_metric and config.target is None:
        yield f"--target-metric {metric} needs the value to be reached: --target NUMBER."


def check_devices(device: str, same_allowed: bool, option: str = "--device") -> list[str]:
    """Whether the value of `option` names devices that go together."""
    names, shared = re.split(r"[,+]", device), "+" in device
    if device != "auto" and not all(re.fullmatch(r"cpu|cuda(:\d+)?", name) for name in names):
        return [
            f"{option} {device}: must be auto, cpu, cuda or cuda:0; cuda:0,cuda:1 for critic and actor on "
            "two; cuda:0+cuda:1 for several that share each batch."
        ]
    if shared and "," in device:
        return [
            f"{option} {device}: either a comma, for critic and actor on two devices, or + between devices "
            f"that share each batch: {'+'.join(names)}."
        ]
    if shared and len(names) not in RANKS:
        return [
            f"{option} {device}: these are {len(names)} devices, and batches are divided among "
            f"2, 4 or 8: {'+'.join(names[: max((n for n in RANKS if n < len(names)), default=1)])}."
        ]
    if shared and len({name.partition(":")[0] for name in names}) > 1:
        return [
            f"{option} {device}: devices that share each batch wait for each other, so they must be of one kind."
        ]
    if len(names) > 2 and not shared:
        return [
            f"{option} {device}: two devices at most, the critic's and the actor's: {names[0]},{names[1]}. "
            f"Or all of them share each batch: {'+'.join(names)}."
        ]
    gpus = ["cuda:0" if name == "cuda" else name for name in names if name != "cpu"]
    if len(gpus) > len(set(gpus)) and not same_allowed:
        return [
            f"{option} {device}: that is one GPU twice. Name it once, or add --learner.same-device "
            "to share it."
        ]
    return []


def _check_sizes(config: Config) -> Iterator[str]:
    """Sizes that contradict each other."""
    capacity, bounds = config.replay.capacity, config.learner.ratio_bounds
    for name, value, why in (
        ("learner.batch_size", config.learner.batch_size, "such a batch can never be drawn"),
        ("learner.warmup_rows", config.learner.warmup_rows, "learning would never start"),
    ):
        if value != "auto" and capacity != "auto" and value > capacity:
            yield f"{flag(name)} {value} is larger than --replay.capacity {capacity}: {why}."
    batch, ranks = config.learner.batch_size, config.num_ranks
    if batch != "auto" and batch % ranks:
        yield (
            f"--learner.batch-size {batch} cannot be divided among the {ranks} devices of --device "
            f"{config.device}: {max(batch - batch % ranks, ranks)} can."
        )
    if bounds != "auto" and bounds[1] == 0:
        yield (
            f"--learner.ratio-bounds {bounds[0]} {bounds[1]}: the larger one must be above 0, "
            "or there is no update."
        )


def _check_replay(config: Config) -> Iterator[str]:
    """Whether the device can read the replay."""
    placement = config.replay.placement
    if config.devices[0] == "cpu" and placement in ("gpu", "pinned"):
        yield f"--replay.placement {placement} is for a GPU, and --device is cpu: use host."
    prioritised = config.hyper.prioritised
    if prioritised and config.device.startswith("cuda") and placement == "host":
        yield "--algo.priority needs a replay that the GPU can read: --replay.placement gpu or pinned."


def _check_reuse(config: Config) -> Iterator[str]:
    """Whether updates keep to the limit that an algorithm sets to learning from the same step."""
    learner, reuse = config.learner, config.hyper.reuse()
    most = learner.updates_per_step if learner.ratio_bounds == "auto" else learner.ratio_bounds[1]
    if reuse is None or learner.batch_size == "auto" or most == "auto":
        return
    times = most * learner.batch_size * config.hyper.row_format().segment
    if times > 1.001 * reuse:
        yield (
            f"--learner.updates-per-step or --learner.ratio-bounds: with up to {most:g} updates per env "
            f"step, each step is learned from {times:g} times, and --algo.max-reuse is {reuse:g}."
        )


def _check_schedules(config: Config) -> Iterator[str]:
    """Whether schedules have something to run over."""
    for name in config.hyper.schedules():
        given = f"--algo.{name}_schedule".replace("_", "-")
        if config.serial and config.steps is None:
            yield f"{given} with --serial: over what? Add --steps, because steps stand for time there."
        elif config.steps is None and config.time is None:
            yield f"{given}: over what? Add --steps 1e6 or --time 5m."


def check_folder(folder: Path) -> list[str]:
    """Whether runs can be written to a folder; creates nothing."""
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
