"""The plan: what a run will be, worked out and checked before anything of it exists."""

from __future__ import annotations

import datetime
import platform
import re
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from spreeze.backends.local import Processes, call
from spreeze.checkpoint import write_atomic
from spreeze.config import Config, check_config, settled
from spreeze.envs.targets import EnvTarget, inspect_env, portable
from spreeze.placement import Machine, cpu_name
from spreeze.policy import policy_size
from spreeze.rundir import RunDir
from spreeze.spec import EnvSpec, UsageError, transition_layout
from spreeze.tuner import resolve
from spreeze.wires.arena import Block, arena_bytes
from spreeze.wires.control import control_blocks
from spreeze.wires.experience import experience_blocks
from spreeze.wires.weights import weights_blocks

LANE_ROWS, LANE_BYTES = 65_536, 256 << 20
SAMPLER_BYTES, LEARNER_BYTES = 100 << 20, 700 << 20


class RunFailed(RuntimeError):
    """The run ended by an error; the message holds its cause and where to read more."""


@dataclass(frozen=True)
class Plan:
    """A run before it starts: nothing is "auto" any more, and it is known to fit."""

    config: Config
    reasons: dict[str, str]
    spec: EnvSpec
    blocks: list[Block]
    machine: Machine


def describe_env(
    env: EnvTarget, name: str, processes: Processes | None, problems: list[str]
) -> EnvSpec:
    """Try the environment out, in a throw-away process: its prints and crashes stay there.

    `problems` are those found so far; the user gets to see all of them at once.
    """
    try:
        if processes is None:
            spec = inspect_env(env, name)
        else:
            spec, _ = call(processes, inspect_env, portable(env), name)
    except UsageError as error:
        raise UsageError([*problems, *error.problems]) from None
    except Exception as error:
        trace = "".join(getattr(error, "__notes__", [])) or f"{type(error).__name__}: {error}"
        raise RunFailed(
            f"{trace}\n{name} raised this when it was tried out, before the run began."
        ) from error
    if problems:
        raise UsageError(problems)
    return spec


def make_plan(config: Config, spec: EnvSpec, machine: Machine) -> Plan:
    """Fill every "auto" and compute what the run will take; UsageError if the machine has it not."""
    config, reasons = resolve(config, spec, machine)
    problems = check_config(config)
    if problems:
        raise UsageError(problems)
    layout = transition_layout(spec)
    lanes, block = settled(config.sampler.processes), settled(config.sampler.envs_per_process)
    capacity = settled(config.replay.capacity)
    lane_rows = min(LANE_BYTES // layout.row_bytes // lanes, LANE_ROWS)
    blocks = [
        *control_blocks(lanes),
        *weights_blocks(policy_size(spec, settled(config.hyper.hidden))),
        *experience_blocks(layout, lanes, max(lane_rows, 8 * block), block),
    ]
    replay = 0 if config.device.startswith("cuda") else capacity * layout.row_bytes
    needed = {
        "lanes and weights": arena_bytes(blocks),
        f"replay of {capacity:,} transitions": replay,
        f"{lanes} samplers": lanes * SAMPLER_BYTES,
        "learner": LEARNER_BYTES,
    }
    if sum(needed.values()) > machine.memory_bytes:
        table = ", ".join(f"{what} {size / 2**30:.2f}" for what, size in needed.items())
        raise UsageError(
            [
                f"this run needs {sum(needed.values()) / 2**30:.1f} GiB of memory ({table} GiB) and "
                f"{machine.memory_bytes / 2**30:.1f} GiB are free. Lower --replay.capacity or --sampler.processes."
            ]
        )
    return Plan(config, reasons, spec, blocks, machine)


def create_run(plan: Plan) -> RunDir:
    """Make the run directory and write what is known before the start."""
    config, machine = plan.config, plan.machine
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    short = re.sub(r"[^\w.-]+", "-", config.env)
    name = config.name or f"{short}-{config.algo}-{config.seed}-{stamp}"
    path = Path(config.runs) / name
    if (path / "config.json").exists():
        hint = f"Give another --name, or go on from it with --resume {name}."
        raise UsageError([f"run {path} exists already. {hint}"])
    for folder in ("metrics", "checkpoints", "logs"):
        (path / folder).mkdir(parents=True, exist_ok=True)
    resolved = {"config": config.to_json(), "reasons": plan.reasons}
    write_atomic(path / "config.json", {**resolved, "env_spec": plan.spec.to_json()})
    write_atomic(
        path / "system.json",
        {
            "command": sys.argv,
            "cpu": cpu_name(),
            "cores": machine.cores,
            "memory_gib": round(machine.memory_bytes / 2**30, 1),
            "gpus": [gpu.name for gpu in machine.gpus],
            "python": platform.python_version(),
            "platform": platform.platform(),
            "versions": {
                name: version(name) for name in ("spreeze", "torch", "numpy", "gymnasium")
            },
        },
    )
    return RunDir(path)
