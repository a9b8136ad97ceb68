"""The config: one tree of frozen dataclasses, in which each knob is stated once.

Command line, Python call, config.json, checks and documents are all made from this tree. `resolve`
in `settings.auto` replaces every "auto" before the run and keeps the reason.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal, TypeVar

import tyro

from spreeze.algos.base import AlgoConfig
from spreeze.algos.off_policy import OffPolicyConfig
from spreeze.knobs import Auto, Knob, knob, knobs_of
from spreeze.settings.parse import (
    MAX_TRACE_S,
    parse_arguments,
    parse_count,
    parse_duration,
)
from spreeze.settings.ray_section import RayConfig
from spreeze.settings.sections import (
    CheckpointConfig,
    EvaluatorConfig,
    LearnerConfig,
    LimitsConfig,
    ReplayConfig,
    SamplerConfig,
    SimulationConfig,
    TunerConfig,
    VisualizerConfig,
)

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Config:
    """Train a policy until a target, a time or a number of steps is reached, or until Ctrl-C."""

    env: tyro.conf.Positional[str] = knob(
        "", "Gymnasium id, module:Id, package.module:EnvClass, or path/file.py:EnvClass."
    )
    algo: str = knob(
        "auto",
        "Algorithm; `spreeze algos` lists them. Your own: file.py:ENTRY. Auto: the preset's, else by the task.",
    )
    time: str | None = knob(
        None, "Train for this long: 90s, 5m, 2h. It counts from when all processes are started."
    )
    steps: str | None = knob(None, "Stop after this many env steps: 500k, 1e6.")
    target: float | None = knob(None, "Stop when the mean return of an evaluation reaches this.")
    target_metric: str = knob(
        "eval/mean_reward",
        "What --target is compared with after each evaluation: eval/success_rate, eval/info/NAME, rollout/info/NAME.",
    )
    seed: int = knob(
        0, "Random seed. Only --serial repeats a run bit for bit.", low=0, high=2**32 - 1
    )
    seeds: str | None = knob(
        None,
        "Train once for each of these seeds: 1,2,3. A number alone is how many, from --seed on.",
    )
    name: str | None = knob(
        None,
        "Name of the run. Default: environment, algorithm, seed and time. With --seeds, the seed follows it.",
    )
    runs: str = knob("runs", "Folder for runs.")
    serial: bool = knob(
        False,
        "Run everything in one process: breakpoints work, and a seed repeats bit for bit.",
    )
    reproducible: bool = knob(
        False,
        "Equal flags give equal settings on every machine: nothing is measured or adjusted, and auto means rules for a small one.",
    )
    device: str = knob(
        "auto",
        "Where networks train: auto, cpu, cuda:0. cuda:0,cuda:1: critic and actor apart. cuda:0+cuda:1: both share each batch.",
    )
    cores: Literal["separate", "shared"] | Auto = knob(
        "auto",
        "separate: the learner has its own CPU cores. shared: all processes share them. Auto: separate from five cores on.",
    )
    retune: bool = knob(
        False, "Forget what was measured on this machine for this task and measure again."
    )
    preset: str | None = knob(
        None,
        "Named settings to start from, or none. Default: the environment's preset, if it has one.",
    )
    resume: str | None = knob(
        None, "Continue from the last checkpoint of this run, with its replay."
    )
    start_from: Annotated[str | None, tyro.conf.arg(aliases=["--from"])] = knob(
        None,
        "Begin a new run with the networks and statistics of this run or checkpoint. Also --from.",
    )
    verbose: bool = knob(
        False,
        "List every setting that was chosen and why. Without it: only in the first run of a task.",
    )
    trace: str | None = knob(
        None,
        "Record what each process does for this long, once learning has begun: 5s. Writes trace.json.gz for ui.perfetto.dev.",
    )
    backend: Literal["local", "ray"] = knob(
        "local",
        "ray: samplers run on the other machines of a Ray cluster, too (extra `ray`). Without --ray.address, on this one.",
    )
    dashboard: bool = knob(True, "Show the run on a live page; its local address is printed.")
    track: Literal["wandb", "trackio"] | None = knob(
        None, "Also send metrics to Weights & Biases or trackio (extras `wandb`, `trackio`)."
    )
    callback: tuple[str, ...] = knob(
        (), "Your own code, called while the run goes on: file.py:MyCallback, or several."
    )
    simulation: Annotated[SimulationConfig, tyro.conf.arg(name="env")] = field(
        default_factory=SimulationConfig
    )
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    evaluator: EvaluatorConfig = field(default_factory=EvaluatorConfig)
    visualizer: VisualizerConfig = field(default_factory=VisualizerConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    tuner: TunerConfig = field(default_factory=TunerConfig)
    ray: RayConfig = field(default_factory=RayConfig)
    hyper: Annotated[AlgoConfig, tyro.conf.arg(name="algo")] = field(
        default_factory=OffPolicyConfig
    )

    @property
    def time_s(self) -> float | None:
        """The time limit in seconds."""
        return None if self.time is None else parse_duration(self.time)

    @property
    def trace_s(self) -> float | None:
        """How long a trace is recorded."""
        return None if self.trace is None else parse_duration(self.trace, "--trace", MAX_TRACE_S)

    @property
    def max_steps(self) -> int | None:
        """The limit of env steps."""
        return None if self.steps is None else parse_count(self.steps)

    @property
    def env_kwargs(self) -> dict[str, Any]:
        """The arguments of the environment."""
        text = self.simulation.kwargs
        return {} if text is None else parse_arguments(text)

    @property
    def evaluations(self) -> list[tuple[str, dict[str, Any]]]:
        """Name and arguments of each environment of evaluations; empty if it is the one that is trained on."""
        names, texts = self.evaluator.env or (self.env,), self.evaluator.kwargs
        if not (self.evaluator.env or texts):
            return []
        if not texts:
            return [(name, self.env_kwargs if name == self.env else {}) for name in names]
        num = max(len(names), len(texts))
        kwargs = [parse_arguments(text, "--evaluator.kwargs") for text in texts]
        return list(zip(_for_each(names, num), _for_each(kwargs, num), strict=True))

    @property
    def devices(self) -> tuple[str, ...]:
        """Where networks train: one device, the critic's and the actor's, or those that share each batch."""
        return tuple(re.split(r"[,+]", self.device))

    @property
    def is_split(self) -> bool:
        """Whether critic and actor train on two devices."""
        return "," in self.device

    @property
    def acts_beside_updates(self) -> bool:
        """Whether a process acts on the GPU that another one trains on."""
        on_gpu = self.devices[0] != "cpu" and not self.serial
        return on_gpu and self.sampler.acting == "inference"

    @property
    def num_ranks(self) -> int:
        """How many devices share each batch."""
        return 1 if self.is_split else len(self.devices)

    @property
    def learner_cores(self) -> int:
        """CPU threads of the learner, over all its devices."""
        return resolved(self.learner.threads) * len(self.devices)

    def to_json(self) -> dict[str, Any]:
        """As plain data; `config_from_json` is the inverse."""
        return dataclasses.asdict(self)


RANKS = (2, 4, 8)
"""How many devices may share each batch: numbers that divide powers of two."""
SECTIONS = {
    "simulation": "env",
    "sampler": "sampler",
    "replay": "replay",
    "learner": "learner",
    "evaluator": "evaluator",
    "visualizer": "visualizer",
    "checkpoint": "checkpoint",
    "limits": "limits",
    "tuner": "tuner",
    "ray": "ray",
    "hyper": "algo",
}
"""Fields that are sections of knobs, and what these knobs start with on the command line."""
FIELDS = {prefix: name for name, prefix in SECTIONS.items()}


def _for_each(values: Sequence[T], num: int) -> list[T]:
    """As many values as there are environments: one stands for all."""
    return [*values] * num if len(values) == 1 else [*values]


def resolved(value: T | Auto) -> T:
    """A knob after `resolve`, when no "auto" is left."""
    if value == "auto":
        raise ValueError('a knob is still "auto"; settings.auto.resolve replaces it')
    return value


def get_knob(config: Config, name: str) -> Any:
    """The value of a knob by its name: `seed`, `learner.batch_size`."""
    section, _, last = name.rpartition(".")
    return getattr(getattr(config, FIELDS[section]) if section else config, last)


def all_knobs(config: Config) -> dict[str, Knob]:
    """All knobs by name: `seed`, `learner.batch_size`."""
    found = dict(knobs_of(type(config)))
    for section, prefix in SECTIONS.items():
        knobs = knobs_of(type(getattr(config, section)))
        found |= {f"{prefix}.{name}": knob for name, knob in knobs.items()}
    return found


def knob_names(config: Config) -> list[str]:
    """The names of all knobs. It needs no types, which a user's class has lost on another machine of a cluster."""
    found = [known.name for known in fields(config) if known.name not in SECTIONS]
    for section, prefix in SECTIONS.items():
        found += [f"{prefix}.{known.name}" for known in fields(getattr(config, section))]
    return found
