"""The sections of the config, one per part of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from spreeze.algos.off_policy import OffPolicyConfig
from spreeze.knobs import Auto, knob
from spreeze.rows import Placement
from spreeze.spec import Engine


@dataclass(frozen=True, kw_only=True)
class SimulationConfig:
    """How environments are simulated."""

    max_episode_steps: int | None = knob(
        None,
        "End every episode after this many steps, in place of the limit that the environment was registered with.",
        low=1,
        high=1_000_000_000,
    )
    kwargs: str | None = knob(
        None, "Arguments of the environment, as a JSON object: '{\"goal\": 2}'."
    )
    stack: int | Auto = knob(
        "auto",
        "The newest frames that the policy sees, where observations have images. Auto: 4; 1 if each has several already.",
        low=1,
        high=32,
    )
    engine: Engine = knob(
        "gymnasium",
        "What steps the environments. envpool: EnvPool's C++ versions, for the ids it has (extra `envpool`).",
    )


@dataclass(frozen=True, kw_only=True)
class SamplerConfig:
    """Sampling of experience."""

    processes: int | Auto = knob(
        "auto",
        "Sampler processes. Auto: one per core that the learner leaves; evaluations borrow some.",
        low=1,
        high=1024,
    )
    envs_per_process: int | Auto = knob(
        "auto",
        "Environments per sampler; one forward pass serves them all. Auto: more for faster environments.",
        low=1,
        high=4096,
    )
    acting: Literal["samplers", "inference"] | Auto = knob(
        "auto",
        "Who runs the policy: samplers, each in numpy; or inference, one process for all, on the learner's device. "
        "Auto: inference for images on a GPU.",
    )
    random_steps: int = knob(
        1000,
        "Env steps with uniform random actions, over all samplers, before the policy acts (ppo: none).",
        low=0,
        high=1_000_000_000,
    )


@dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """Stored experience."""

    capacity: int | Auto = knob(
        "auto",
        "Rows kept: transitions, or segments for ppo. Auto: a million, or what fits beside the networks.",
        low=100,
        high=1_000_000_000,
    )
    placement: Placement | Auto = knob(
        "auto",
        "gpu; pinned: host memory that the GPU reads; host: the CPU draws the batches. Auto: the first with room.",
    )


@dataclass(frozen=True, kw_only=True)
class LearnerConfig:
    """Network updates."""

    batch_size: int | Auto = knob(
        "auto", "Rows per update: transitions, or segments for ppo.", low=1, high=1 << 20
    )
    warmup_rows: int | Auto = knob(
        "auto", "Rows in the replay before the first update.", low=1, high=1_000_000_000
    )
    updates_per_step: float | Auto = knob(
        "auto",
        "Updates per env step; samplers and learner keep to a number. Auto: free within `ratio_bounds`.",
        low=1e-6,
        high=1000,
    )
    ratio_bounds: tuple[float, float] | Auto = knob(
        "auto",
        "Smallest and largest updates per env step. Samplers wait below them, the learner waits above.",
        low=0,
        high=1_000_000,
    )
    updates_per_publish: int | Auto = knob(
        "auto", "Updates between two publications of the policy.", low=1, high=100_000
    )
    threads: int | Auto = knob("auto", "CPU threads of the learner, per device.", low=1, high=1024)
    compile: bool = knob(
        True, "Compile the update in the background and switch to it when it is ready."
    )
    same_device: bool = knob(
        False,
        "Let --device name one GPU twice: critic and actor share it, or the two that share each batch.",
    )
    precision: Literal["float32", "tf32", "bf16"] | Auto = knob(
        "auto",
        "Precision of matrix products; parameters and optimiser stay float32. Auto: bf16 where it is faster.",
    )


@dataclass(frozen=True, kw_only=True)
class EvaluatorConfig:
    """Evaluation without exploration noise."""

    env: tuple[str, ...] = knob(
        (),
        "Evaluate on this environment, and not on the one that is trained on. Several: the mean over them counts.",
    )
    kwargs: tuple[str, ...] = knob(
        (),
        "Arguments of the environments of evaluations, as JSON objects: one for all, or one for each. Replaces --env.kwargs there.",
    )
    episodes: int = knob(10, "Episodes per evaluation.", low=1, high=10_000)
    processes: int | Auto = knob(
        "auto",
        "Processes that play the episodes in parallel. Auto: more for slow environments on many cores.",
        low=1,
        high=1024,
    )
    every_s: float | Auto = knob(
        "auto",
        "Minimum seconds between the starts of two evaluations. Auto: 0.5; with every-steps or every-updates 0.",
        low=0,
        high=1_000_000,
    )
    every_steps: int | None = knob(
        None,
        "Evaluate each time that so many more env steps are made, or as soon as the evaluation before has ended.",
        low=1,
        high=10**12,
    )
    every_updates: int | None = knob(
        None, "The same for updates. With both, an evaluation waits for both.", low=1, high=10**12
    )
    share: float | Auto = knob(
        "auto",
        "Share of time spent evaluating; more early in a run and with --target. Auto: limits the cores that this takes; "
        "1 with every-steps or -updates.",
        low=0.001,
        high=1,
    )
    average: float = knob(
        0.1,
        "Evaluate and keep the policy averaged over this share of all updates; less early in a run. 0: the newest.",
        low=0,
        high=1,
    )


@dataclass(frozen=True, kw_only=True)
class VisualizerConfig:
    """Rendering of the policy while it learns."""

    draw: Literal["on", "off"] | Auto = knob(
        "auto", "Render the newest policy in a separate process. Auto: on if there is a live page."
    )
    frames_hz: float | Auto = knob(
        "auto", "Maximum frames per second. Auto: fewer on few cores.", low=0.05, high=60
    )
    video_s: float = knob(
        10.0,
        "Maximum length in seconds of milestone videos: the first policy, clearly better ones, the last. 0: no videos.",
        low=0,
        high=600,
    )


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """What is kept on disk."""

    every_s: float = knob(
        60.0, "Seconds between checkpoints of the whole training state.", low=0.1, high=1_000_000
    )
    keep: int = knob(3, "Checkpoints to keep; `last` and `best` always stay.", low=1, high=100_000)
    replay_mb: int = knob(
        512,
        "Most megabytes of the replay kept on disk for --resume, newest rows first. 0: none.",
        low=0,
        high=1_000_000,
    )


@dataclass(frozen=True, kw_only=True)
class LimitsConfig:
    """When something counts as broken, and when the run gives up."""

    construct_s: float | Auto = knob(
        "auto",
        "Seconds to make an environment. Auto: 20 times what it usually takes, at least 120.",
        low=0.1,
        high=1_000_000,
    )
    reset_s: float | Auto = knob(
        "auto",
        "Seconds for one reset before the process is replaced. Auto: 50 times the usual, at least 60.",
        low=0.1,
        high=1_000_000,
    )
    step_s: float | Auto = knob(
        "auto",
        "Seconds for one step of a process before it is replaced. Auto: 1,000 times the usual, at least 30.",
        low=0.1,
        high=1_000_000,
    )
    memory_mb: float | Auto = knob(
        "auto",
        "Memory of a sampler in MB; above it, and twice what it used at first, it is replaced. "
        "Auto: its share of half the memory, at least 1,000.",
        low=1,
        high=1e9,
    )
    env_errors: float = knob(
        0.01,
        "Exceptions and bad numbers per env step of one process; above it, the process is given up.",
        low=0,
        high=1,
    )
    largest_number: float = knob(
        1e8,
        "Observations and rewards beyond plus or minus this are refused like NaN.",
        low=1,
        high=1e30,
    )
    restarts_per_minute: int = knob(
        20, "Restarts of one process per minute; above it, it is given up.", low=0, high=10_000
    )
    lost_samplers: float = knob(
        0.5, "Share of the samplers that may be given up before the run fails.", low=0, high=1
    )
    rollbacks_per_minute: int = knob(
        5,
        "Returns of the networks to their last good state per minute; above it, the run fails.",
        low=0,
        high=1000,
    )


@dataclass(frozen=True, kw_only=True)
class TunerConfig:
    """Automatic settings, before the run and during it."""

    off: bool = knob(
        False,
        "Measure nothing and change nothing during the run: rules of thumb replace every auto.",
    )


@dataclass(frozen=True, kw_only=True)
class UndecidedConfig(OffPolicyConfig):
    """Knobs that most algorithms share. All knobs of one: spreeze train --algo NAME --help."""

    asked: Annotated[tuple[str, ...], tyro.conf.Suppress] = ()
    """Knobs you gave: they win over the defaults of the algorithm, once it is chosen."""
