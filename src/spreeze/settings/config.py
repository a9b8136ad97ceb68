"""The config: one tree of frozen dataclasses. Each knob is stated once, with its help under it.

The command line, the Python call, config.json and the checks are all made from this tree. A knob
set to "auto" is filled by `tuner.resolve` before the run, which keeps the reason beside the value.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tyro

from spreeze.algos import ALGORITHMS, find_algorithm
from spreeze.algos.base import AlgoConfig, Auto, OffPolicyConfig
from spreeze.errors import UsageError
from spreeze.machine.facts import learns_on_gpu, visible_gpus
from spreeze.settings.presets import PRESETS, Preset, preset_for


@dataclass(frozen=True, kw_only=True)
class SimulationConfig:
    """How environments are simulated."""

    engine: Literal["gymnasium", "envpool"] = "gymnasium"
    """What steps the environments of a sampler. envpool: the ids that EnvPool has, in C++ (extra `envpool`)."""


@dataclass(frozen=True, kw_only=True)
class SamplerConfig:
    """Experience sampling."""

    processes: int | Auto = "auto"
    """Sampler processes. Auto: the cores that the learner leaves; evaluations borrow some now and then."""
    envs_per_process: int | Auto = "auto"
    """Environments stepped together in one process, with one forward pass for all."""
    random_steps: int = 1000
    """Env steps with uniform random actions, all samplers together, before the policy acts (ppo: none)."""


@dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """Stored transitions."""

    capacity: int | Auto = "auto"
    """Transitions kept. Auto: a million, or what fits beside the networks."""
    placement: Literal["gpu", "pinned", "host"] | Auto = "auto"
    """Where: gpu; pinned, host memory that the GPU reads over the bus; host, drawn by the CPU. Auto: the first that has room."""


@dataclass(frozen=True, kw_only=True)
class LearnerConfig:
    """Network updates."""

    batch_size: int | Auto = "auto"
    """Rows per update: transitions, or segments of them."""
    warmup_rows: int | Auto = "auto"
    """Transitions in the replay before the first update."""
    updates_per_step: float | Auto = "auto"
    """Updates per env step. Auto: nobody waits inside `ratio_bounds`. A number: both sides are held to it."""
    ratio_bounds: tuple[float, float] | Auto = "auto"
    """Smallest and largest updates per env step with `updates_per_step auto`; samplers wait below, the learner above."""
    updates_per_publish: int | Auto = "auto"
    """Updates between two publications of the policy."""
    threads: int | Auto = "auto"
    """CPU threads of the learner, on each of its devices."""
    compile: bool = True
    """Compile the update in the background and swap it in when it is ready."""
    same_device: bool = False
    """Let --device name one GPU twice: critic and actor then share it, each with a stream of its own."""
    precision: Literal["float32", "tf32", "bf16"] | Auto = "auto"
    """Matrix products; parameters and optimiser are always float32. Auto: bf16 where the device has it."""


@dataclass(frozen=True, kw_only=True)
class EvaluatorConfig:
    """Evaluation without noise."""

    episodes: int = 10
    """Whole episodes per evaluation."""
    processes: int | Auto = "auto"
    """Processes that play them side by side. Auto: up to one for each where environments are slow and cores many."""
    every_s: float = 0.5
    """Least seconds between the starts of two evaluations."""
    share: float | Auto = "auto"
    """Largest share of its time that the evaluator plays. Auto: by how many cores that takes on average."""
    average: float = 0.1
    """What is judged and kept is the average of the policy over this share of all updates, over less in the first 100,000 (ppo: 2,000). 0: the newest."""


@dataclass(frozen=True, kw_only=True)
class VisualizerConfig:
    """Pictures of the policy while it learns."""

    draw: Literal["on", "off"] | Auto = "auto"
    """Draw the newest policy, in a process of its own. Auto: where there is a live page to show it."""
    frames_hz: float | Auto = "auto"
    """Pictures per second, at most. Auto: few where cores are few."""
    video_s: float = 10.0
    """Longest video of a milestone (the first policy, a clearly better one, the end) in seconds; 0 for none."""


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """What is kept on disk."""

    every_s: float = 60.0
    """Seconds between two checkpoints of the whole training state."""
    keep: int = 3
    """How many of them stay; `last` and `best` always do."""


@dataclass(frozen=True, kw_only=True)
class TunerConfig:
    """Settings found on this machine, before the run and during it."""

    off: bool = False
    """Measure nothing and move nothing: rules of thumb fill what is "auto", and it stays."""


@dataclass(frozen=True, kw_only=True)
class UndecidedConfig(OffPolicyConfig):
    """Knobs that most algorithms have. All of one: spreeze train --algo NAME --help."""

    asked: Annotated[tuple[str, ...], tyro.conf.Suppress] = ()
    """Those that were given: they stay, whatever the algorithm's own defaults are."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """Train a policy until the target, the time or the number of steps is reached, or until Ctrl-C."""

    env: tyro.conf.Positional[str] = ""
    """Gymnasium id, module:Id, or package.module:EnvClass."""
    algo: str = "auto"
    """Algorithm; `spreeze algos` lists them. One of your own: file.py:ENTRY. Auto: the preset's, else by the action space."""
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
    """Where the networks learn: auto, cpu, cuda, cuda:0. Two with a comma: the critic on the first, the actor on the second."""
    cores: Literal["separate", "shared"] | Auto = "auto"
    """CPU cores. separate: the learner has its own, all else keeps to the others. Auto: from five cores on."""
    retune: bool = False
    """Forget what was measured on this machine for this task, and measure it anew."""
    preset: str | None = None
    """Named settings to start from, or none. Default: the environment's own where there is one."""
    resume: str | None = None
    """Go on from the last checkpoint of this run (its replay starts empty)."""
    dashboard: bool = True
    """Show the run on a live page at a local address, printed on the screen."""
    track: Literal["wandb", "trackio"] | None = None
    """Send the metrics to Weights & Biases or trackio too (extras `wandb`, `trackio`)."""
    simulation: Annotated[SimulationConfig, tyro.conf.arg(name="env")] = field(
        default_factory=SimulationConfig
    )
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    evaluator: EvaluatorConfig = field(default_factory=EvaluatorConfig)
    visualizer: VisualizerConfig = field(default_factory=VisualizerConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    tuner: TunerConfig = field(default_factory=TunerConfig)
    hyper: Annotated[AlgoConfig, tyro.conf.arg(name="algo")] = field(
        default_factory=OffPolicyConfig
    )

    @property
    def time_s(self) -> float | None:
        """The time limit in seconds."""
        return None if self.time is None else parse_duration(self.time)

    @property
    def max_steps(self) -> int | None:
        """The limit of env steps."""
        return None if self.steps is None else parse_count(self.steps)

    @property
    def devices(self) -> tuple[str, ...]:
        """Where the networks learn: one device for both, or the critic's and the actor's."""
        return tuple(self.device.split(","))

    @property
    def learner_cores(self) -> int:
        """CPU threads of the learner, on all its devices together."""
        return resolved(self.learner.threads) * len(self.devices)

    def to_json(self) -> dict[str, Any]:
        """As plain data; `config_from_json` is the inverse."""
        return dataclasses.asdict(self)


SECTIONS = {
    "simulation": "env",
    "sampler": "sampler",
    "replay": "replay",
    "learner": "learner",
    "evaluator": "evaluator",
    "visualizer": "visualizer",
    "checkpoint": "checkpoint",
    "tuner": "tuner",
    "hyper": "algo",
}
"""Fields that are sections, and what their knobs begin with on the command line."""
FIELDS = {prefix: name for name, prefix in SECTIONS.items()}


def parse_duration(text: str) -> float:
    """Seconds in '90s', '5m', '2h' or a plain number."""
    match = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([smh]?)\s*", str(text).lower())
    try:
        value = float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]] if match else -1.0
    except ValueError:
        value = -1.0
    if not 0 < value <= 1e9:
        raise ValueError(f"--time {text}: not a duration. Write it as 90s, 5m or 2h.")
    return value


def parse_count(text: str) -> int:
    """Steps in '500k', '1e6', '2M' or a plain number."""
    match = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([km]?)\s*", str(text).lower())
    try:
        value = float(match[1]) * {"": 1, "k": 1e3, "m": 1e6}[match[2]] if match else -1.0
    except ValueError:
        value = -1.0
    if not 1 <= value <= 1e15:
        raise ValueError(f"--steps {text}: not a number of steps. Write it as 500k or 1e6.")
    return round(value)


T = TypeVar("T")


def resolved(value: T | Auto) -> T:
    """A knob after `tuner.resolve`, when no "auto" is left."""
    if value == "auto":
        raise ValueError('a knob is still "auto"; tuner.resolve fills them')
    return value


def knob(config: Config, name: str) -> Any:
    """The value of a knob by its command-line name."""
    section, _, last = name.rpartition(".")
    if not section:
        return getattr(config, last)
    return getattr(getattr(config, FIELDS[section]), last)


ELSEWHERE = {
    "total_timesteps": "steps",
    "learning_rate": "algo.lr",
    "algo.learning_rate": "algo.lr",
    "buffer_size": "replay.capacity",
    "learning_starts": "learner.warmup_rows",
    "net_arch": "algo.hidden",
    "n_envs": "sampler.envs_per_process",
    "num_envs": "sampler.envs_per_process",
}
"""What other libraries call some knobs."""


def config_with(config: Config, knobs: dict[str, Any]) -> Config:
    """The config with knobs changed, by their command-line names: `seed`, `learner.batch_size`."""
    known = knob_names(config)
    problems = []
    top: dict[str, Any] = {}
    nested: dict[str, dict[str, Any]] = {}
    for name, value in knobs.items():
        section, _, knob = name.rpartition(".")
        if name not in known:
            ends = [x for x in known if x.endswith(f".{name}")]
            near = [ELSEWHERE[name]] if name in ELSEWHERE else ends
            near = near or difflib.get_close_matches(name, known, 1)
            problems.append(
                f"there is no knob {name!r}." + (f" Did you mean {near[0]}?" if near else "")
            )
        elif section:
            nested.setdefault(FIELDS[section], {})[knob] = value
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
    for section, prefix in SECTIONS.items():
        names += [f"{prefix}.{f.name}" for f in dataclasses.fields(getattr(config, section))]
    return names


def default_config(
    algo: str = "auto",
    env: str = "",
    preset: str | None = None,
    asked: Collection[str] = (),
    device: str = "auto",
) -> Config:
    """The defaults of an algorithm, with the preset asked for or the environment's own.

    With "auto" the preset names the algorithm, by the `device` that will learn; the knobs `asked`
    for do if only others have them. Else it is left to `tuner.resolve`, which knows the action space.
    """
    if preset not in (None, "none") and preset not in PRESETS:
        known = ", ".join(["none", *PRESETS])
        near = difflib.get_close_matches(str(preset), PRESETS, 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise UsageError([f"--preset {preset}: there is no such preset; there are {known}.{hint}"])
    if algo == "auto":
        usual = preset if preset is not None else preset_for(env, algo)
        algo = _algorithm(PRESETS.get(usual or ""), asked, device)
    name = preset if preset is not None else preset_for(env, algo)
    values: dict[str, Any] = {}
    if name in PRESETS:
        if algo not in PRESETS[name].algos:
            fitting = ", ".join(PRESETS[name].algos)
            raise UsageError([f"--preset {name}: it has values for {fitting}, not for {algo}."])
        values = PRESETS[name].algos[algo]
    undecided = UndecidedConfig(asked=tuple(asked))
    hyper = undecided if algo == "auto" else find_algorithm(algo).config()
    if ".py:" in algo:  # other processes may be somewhere else
        algo = str(Path(algo).absolute())
    config = Config(env=env, algo=algo, preset=name, hyper=hyper)
    return config_with(config, values)


def _algorithm(preset: Preset | None, asked: Collection[str], device: str) -> str:
    """What "auto" means: what the preset takes if it has the knobs asked for, else the first that has."""
    special = set(asked) - knobs_of(OffPolicyConfig)
    able = [name for name, entry in ALGORITHMS.items() if special <= knobs_of(entry.config)]
    if preset is not None:
        gpus = visible_gpus() if preset.on_gpu and device == "auto" else ()
        usual = preset.algorithm(gpu=learns_on_gpu(device, gpus))
        if usual in able or not able:
            return usual
    return able[0] if special and able else "auto"


def knobs_of(kind: type[AlgoConfig]) -> set[str]:
    """The names of an algorithm's knobs."""
    return {field.name for field in dataclasses.fields(kind)}


def with_algorithm(config: Config, algo: str) -> Config:
    """The config for this algorithm, with those of its knobs that were set already."""
    undecided = config.hyper
    assert isinstance(undecided, UndecidedConfig), "it has been decided"
    given = {
        name: value
        for name, value in vars(undecided).items()
        if name in undecided.asked or value != getattr(UndecidedConfig(), name)
    }
    given.pop("asked", None)
    hyper = find_algorithm(algo).config(**given)
    return dataclasses.replace(config, algo=algo, hyper=hyper)


def config_from_json(data: dict[str, Any], trusted: str | None = None) -> Config:
    """A config from its `to_json` form; unknown names are refused, nothing in it can name code.

    But for an algorithm of the user's own: he names it himself, as `trusted`, wherever it is now.
    """
    algo = str(data.get("algo", "sac"))
    if ":" in algo and (trusted is None or ":" not in trusted):
        raise UsageError(
            [f"it was trained with --algo {algo}, which is code of yours: name it again."]
        )
    if ":" in algo:
        algo = str(trusted)
        data = {**data, "algo": algo}
    config = default_config(algo, preset="none")
    knobs: dict[str, Any] = {}
    for name, value in data.items():
        if name in SECTIONS:
            knobs |= {
                f"{SECTIONS[name]}.{k}": tuple(v) if isinstance(v, list) else v
                for k, v in value.items()
            }
        else:
            knobs[name] = value
    return config_with(config, knobs)
