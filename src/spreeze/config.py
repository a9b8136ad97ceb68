"""The config: one tree of frozen dataclasses. Each knob is stated once, with its help under it.

The command line, the Python call, config.json and the checks are all made from this tree. A knob
set to "auto" is filled by `tuner.resolve` before the run, which keeps the reason beside the value.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from spreeze.algos import ALGORITHMS
from spreeze.algos.base import AlgoConfig, Auto
from spreeze.spec import UsageError


@dataclass(frozen=True, kw_only=True)
class SamplerConfig:
    """Experience sampling."""

    processes: int | Auto = "auto"
    """Sampler processes. Auto: the cores that learner and evaluator leave."""
    envs_per_process: int | Auto = "auto"
    """Environments stepped together in one process, with one forward pass for all."""
    random_steps: int = 1000
    """Env steps with uniform random actions, all samplers together, before the policy acts."""


@dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """Stored transitions."""

    capacity: int | Auto = "auto"
    """Transitions kept. Auto: a million, or what fits in a quarter of the memory."""


@dataclass(frozen=True, kw_only=True)
class LearnerConfig:
    """Network updates."""

    batch_size: int | Auto = "auto"
    """Transitions per update."""
    warmup_rows: int | Auto = "auto"
    """Transitions in the replay before the first update."""
    updates_per_step: float | Auto = "auto"
    """Updates per env step. Auto: nobody waits inside `ratio_bounds`. A number: both sides are held to it."""
    ratio_bounds: tuple[float, float] | Auto = "auto"
    """Smallest and largest updates per env step with `updates_per_step auto`; samplers wait below, the learner above."""
    updates_per_publish: int | Auto = "auto"
    """Updates between two publications of the policy."""
    threads: int | Auto = "auto"
    """CPU threads of the learner."""


@dataclass(frozen=True, kw_only=True)
class EvaluatorConfig:
    """Evaluation without noise."""

    episodes: int = 10
    """Whole episodes per evaluation."""
    every_s: float | Auto = "auto"
    """Seconds between the starts of two evaluations. Auto: as often as a small share of one core allows."""


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """What is kept on disk."""

    every_s: float = 60.0
    """Seconds between two checkpoints of the whole training state."""
    keep: int = 3
    """How many of them stay; `last` and `best` always do."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """Train a policy until the target, the time or the number of steps is reached, or until Ctrl-C."""

    env: tyro.conf.Positional[str] = ""
    """Gymnasium id, module:Id, or package.module:EnvClass."""
    algo: str = "sac"
    """Algorithm; `spreeze algos` lists them."""
    time: str | None = None
    """Stop after this long: 90s, 5m, 2h."""
    steps: str | None = None
    """Stop after this many env steps: 500k, 1e6."""
    target: float | None = None
    """Stop when the mean return of one evaluation is at least this."""
    seed: int = 0
    """Seed of everything random. Bit-equal results need --serial."""
    name: str | None = None
    """Name of the run. Default: env, algorithm, seed and time."""
    runs: str = "runs"
    """Folder for runs."""
    serial: bool = False
    """All roles in one process: breakpoints work, and a seed repeats bit by bit."""
    device: str = "auto"
    """Where the networks learn: auto, cpu, cuda, cuda:0."""
    preset: str | None = None
    """Named settings to start from, or none. Default: the environment's own where there is one."""
    resume: str | None = None
    """Go on from the last checkpoint of this run (its replay starts empty)."""
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    evaluator: EvaluatorConfig = field(default_factory=EvaluatorConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    hyper: Annotated[AlgoConfig, tyro.conf.arg(name="algo")] = field(
        default_factory=lambda: ALGORITHMS["sac"].config()
    )

    @property
    def time_s(self) -> float | None:
        """The time limit in seconds."""
        return None if self.time is None else parse_duration(self.time)

    @property
    def max_steps(self) -> int | None:
        """The limit of env steps."""
        return None if self.steps is None else parse_count(self.steps)

    def to_json(self) -> dict[str, Any]:
        """As plain data; `config_from_json` is the inverse."""
        return dataclasses.asdict(self)


SECTIONS = ("sampler", "replay", "learner", "evaluator", "checkpoint", "hyper")

# Presets are values: knobs by their command-line name. Named after the environment, so that
# `spreeze train Pendulum-v1` finds its own.
PRESETS: dict[str, dict[str, Any]] = {}


def parse_duration(text: str) -> float:
    """Seconds in '90s', '5m', '2h' or a plain number."""
    match = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([smh]?)\s*", str(text).lower())
    try:
        value = float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]] if match else -1.0
    except ValueError:
        value = -1.0
    if value <= 0:
        raise ValueError(f"--time {text}: not a duration. Write it as 90s, 5m or 2h.")
    return value


def parse_count(text: str) -> int:
    """Steps in '500k', '1e6', '2M' or a plain number."""
    match = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([km]?)\s*", str(text).lower())
    try:
        value = float(match[1]) * {"": 1, "k": 1e3, "m": 1e6}[match[2]] if match else -1.0
    except ValueError:
        value = -1.0
    if value < 1:
        raise ValueError(f"--steps {text}: not a number of steps. Write it as 500k or 1e6.")
    return round(value)


def config_with(config: Config, knobs: dict[str, Any]) -> Config:
    """The config with knobs changed, by their command-line names: `seed`, `learner.batch_size`."""
    known = knob_names(config)
    problems = []
    top: dict[str, Any] = {}
    nested: dict[str, dict[str, Any]] = {}
    for name, value in knobs.items():
        section, _, knob = name.rpartition(".")
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            problems.append(f"there is no knob {name!r}." + (f" Did you mean {near[0]}?" if near else ""))
        elif section:
            nested.setdefault("hyper" if section == "algo" else section, {})[knob] = value
        else:
            top[name] = str(value) if name in ("time", "steps") and value is not None else value
    if problems:
        raise UsageError(problems)
    for section, values in nested.items():
        top[section] = dataclasses.replace(getattr(config, section), **values)
    return dataclasses.replace(config, **top)


def knob_names(config: Config) -> list[str]:
    """All knobs by their command-line names."""
    names = [f.name for f in dataclasses.fields(config) if f.name not in SECTIONS]
    for section in SECTIONS:
        prefix = "algo" if section == "hyper" else section
        names += [f"{prefix}.{f.name}" for f in dataclasses.fields(getattr(config, section))]
    return names


def default_config(algo: str = "sac", env: str = "", preset: str | None = None) -> Config:
    """The defaults of an algorithm, with the preset asked for or the environment's own."""
    if algo not in ALGORITHMS:
        near = difflib.get_close_matches(algo.lower(), ALGORITHMS, 1, 0.3)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise UsageError([f"--algo {algo}: there is no such algorithm; there are {', '.join(ALGORITHMS)}.{hint}"])
    config = Config(env=env, algo=algo, preset=preset, hyper=ALGORITHMS[algo].config())
    if preset not in (None, "none") and preset not in PRESETS:
        raise UsageError([f"--preset {preset}: there is no such preset; there are {', '.join(['none', *PRESETS])}."])
    chosen = preset if preset is not None else env
    return config_with(config, PRESETS.get(chosen, {}))


def config_from_json(data: dict[str, Any]) -> Config:
    """A config from its `to_json` form; unknown names are refused, nothing in it can name code."""
    algo = str(data.get("algo", "sac"))
    config = default_config(algo, preset="none")
    knobs: dict[str, Any] = {}
    for name, value in data.items():
        if name in SECTIONS:
            prefix = "algo" if name == "hyper" else name
            knobs |= {f"{prefix}.{k}": tuple(v) if isinstance(v, list) else v for k, v in value.items()}
        else:
            knobs[name] = value
    return config_with(config, knobs)


def check_config(config: Config) -> list[str]:
    """Everything that is wrong with a config, all at once; empty if nothing is."""
    problems: list[str] = []

    def bound(name: str, value: Any, low: float, high: float, whole: bool = True) -> None:
        if value in ("auto", None):
            return
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or not low <= value <= high or (whole and value != int(value)):
            kind = "a whole number" if whole else "a number"
            problems.append(f"--{name} {value}: must be {kind} from {low:g} to {high:g}.")

    for parse, text in ((parse_duration, config.time), (parse_count, config.steps)):
        try:
            if text is not None:
                parse(text)
        except ValueError as error:
            problems.append(str(error))
    if config.target is not None and not math.isfinite(config.target):
        problems.append(f"--target {config.target}: must be a finite return.")
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", config.device):
        problems.append(f"--device {config.device}: must be auto, cpu, cuda or cuda:0.")
    if config.name is not None and not re.fullmatch(r"[\w.+=-][\w.+= -]*", config.name):
        problems.append(f"--name {config.name!r}: letters, digits and . _ + = - only; it names a folder.")
    bound("seed", config.seed, 0, 2**32 - 1)
    bound("sampler.processes", config.sampler.processes, 1, 1024)
    bound("sampler.envs-per-process", config.sampler.envs_per_process, 1, 4096)
    bound("sampler.random-steps", config.sampler.random_steps, 0, 1e9)
    bound("replay.capacity", config.replay.capacity, 100, 1e9)
    bound("learner.batch-size", config.learner.batch_size, 1, 1 << 20)
    bound("learner.warmup-rows", config.learner.warmup_rows, 1, 1e9)
    bound("learner.updates-per-step", config.learner.updates_per_step, 1e-6, 1000, whole=False)
    bound("learner.updates-per-publish", config.learner.updates_per_publish, 1, 100_000)
    bound("learner.threads", config.learner.threads, 1, 1024)
    if config.learner.ratio_bounds != "auto":
        low, high = config.learner.ratio_bounds
        if not 0 <= low < high:
            problems.append(f"--learner.ratio-bounds {low} {high}: the first must be smaller than the second, and not negative.")
    bound("evaluator.episodes", config.evaluator.episodes, 1, 10_000)
    bound("evaluator.every-s", config.evaluator.every_s, 0, 1e6, whole=False)
    bound("checkpoint.every-s", config.checkpoint.every_s, 0.1, 1e6, whole=False)
    bound("checkpoint.keep", config.checkpoint.keep, 1, 100_000)
    hyper = config.hyper
    bound("algo.gamma", hyper.gamma, 0, 1, whole=False)
    bound("algo.n-step", hyper.n_step, 1, 100)
    bound("algo.lr", hyper.lr, 1e-8, 1, whole=False)
    bound("algo.tau", hyper.tau, 1e-8, 1, whole=False)
    if not hyper.hidden:
        problems.append("--algo.hidden: at least one hidden layer is needed.")
    for width in hyper.hidden:
        bound("algo.hidden", width, 1, 65_536)
    capacity, batch, warmup = config.replay.capacity, config.learner.batch_size, config.learner.warmup_rows
    if isinstance(capacity, int) and isinstance(batch, int) and batch > capacity:
        problems.append(f"--learner.batch-size {batch} is larger than --replay.capacity {capacity}: such a batch can never be drawn.")
    if isinstance(capacity, int) and isinstance(warmup, int) and warmup > capacity:
        problems.append(f"--learner.warmup-rows {warmup} is larger than --replay.capacity {capacity}: learning would never start.")
    if config.resume is None and not config.env:
        problems.append("which environment? For instance: spreeze train Pendulum-v1")
    return problems


def check_folder(folder: Path) -> list[str]:
    """Whether a run can be written there; creates nothing."""
    import os

    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir():
        return [f"--runs {folder}: {existing} is a file, not a folder."]
    if not os.access(existing, os.W_OK | os.X_OK):
        return [f"--runs {folder}: {existing} cannot be written to. Name another folder with --runs."]
    return []
