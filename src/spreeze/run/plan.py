"""The plan: what a run will be, worked out and checked before anything of it exists."""

from __future__ import annotations

import datetime
import platform
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import cast

from spreeze.envs.inspect import inspect_env
from spreeze.envs.targets import EnvTarget, picklable_target
from spreeze.errors import RunFailed, UsageError
from spreeze.machine.facts import Machine, cpu_name
from spreeze.rows import row_layout
from spreeze.run.processes.pool import CallFailed, Processes, call
from spreeze.run.resume import check_resumed
from spreeze.settings.auto import resolve
from spreeze.settings.auto.devices import gpu_index
from spreeze.settings.auto.memory import learning_bytes, second_bytes
from spreeze.settings.checks import check_config
from spreeze.settings.config import Config, resolved
from spreeze.settings.probe import (
    ProbeRequest,
    ProbeResult,
    load_cached,
    measure,
    probe_allowed,
    save_cached,
)
from spreeze.spec import EnvSpec
from spreeze.store.files import write_atomic
from spreeze.store.rundir import RunDir
from spreeze.wires.arena import Block, arena_bytes
from spreeze.wires.control import control_blocks
from spreeze.wires.experience import experience_blocks
from spreeze.wires.weights import weights_blocks

LANE_ROWS, LANE_BYTES = 65_536, 256 << 20
SAMPLER_BYTES, LEARNER_BYTES = 100 << 20, 700 << 20


@dataclass(frozen=True)
class Plan:
    """A run before it starts: nothing is "auto" any more, and it is known to fit."""

    config: Config
    reasons: dict[str, str]
    spec: EnvSpec
    blocks: list[Block]
    machine: Machine
    measured: ProbeResult | None = None
    """What the probe found, if there was one."""


def describe_env(
    env: EnvTarget, config: Config, processes: Processes | None, problems: list[str]
) -> EnvSpec:
    """Try the environment out, in a throw-away process: its prints and crashes stay there.

    `problems` are those found so far; the user gets to see all of them at once.
    """
    name = config.env
    try:
        if processes is None:
            spec = inspect_env(env, name)
        else:
            spec = call(processes, inspect_env, picklable_target(env), name)
    except UsageError as error:
        raise UsageError([*problems, *error.problems]) from None
    except CallFailed as error:
        if problems:  # first things first
            raise UsageError(problems) from None
        log = _claim(config) / "logs" / "probe.log"
        log.parent.mkdir()
        log.write_text(f"{error}\n")
        raise RunFailed(
            f"{error}\n{name} failed when it was tried out, before the run. Kept in {log}"
        ) from None
    if problems:
        raise UsageError(problems)
    return spec


def make_plan(
    config: Config,
    spec: EnvSpec,
    machine: Machine,
    processes: Processes | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Plan:
    """Fill every "auto" and compute what the run will take; UsageError if the machine has it not.

    With `processes` the machine is measured first, unless that was done before.
    """

    measured = None

    def ask(question: ProbeRequest) -> ProbeResult | None:
        nonlocal measured
        if processes is not None and probe_allowed():
            measured = _measured(question, config.retune, processes, say)
        return measured

    config, reasons = resolve(config, spec, machine, ask)
    if problems := [*check_config(config), *check_resumed(config, spec)]:
        raise UsageError(problems)
    layout = row_layout(spec, config.hyper.row_format())
    lanes, block = resolved(config.sampler.processes), resolved(config.sampler.envs_per_process)
    players = min(resolved(config.evaluator.processes), config.evaluator.episodes)
    capacity = resolved(config.replay.capacity)
    lane_rows = min(LANE_BYTES // layout.row_bytes // lanes, LANE_ROWS)
    blocks = [
        *control_blocks(lanes),
        *weights_blocks(config.hyper.policy_form(spec).size(spec)),
        *experience_blocks(layout, lanes, max(lane_rows, 8 * block), block),
    ]
    needed = {
        "lanes and weights": arena_bytes(blocks),
        f"{lanes} samplers": lanes * SAMPLER_BYTES,
        f"{players} evaluators": players * SAMPLER_BYTES,
        "learner": LEARNER_BYTES,
    }
    learning = learning_bytes(config, spec)
    replay = {f"replay of {capacity:,} transitions": capacity * layout.row_bytes}
    index, second = gpu_index(config.devices[0]), config.devices[1:]
    if index is None:
        needed |= replay | learning
    else:
        if config.replay.placement == "gpu":
            learning = replay | learning
        else:
            needed |= replay
        if config.replay.placement == "host":
            rows = resolved(config.learner.updates_per_publish) * resolved(
                config.learner.batch_size
            )
            learning["batches"] = needed["batches"] = rows * layout.row_bytes
        _check_fits(learning, machine.gpus[index].memory_bytes, "GPU memory")
    for device in second:
        index = gpu_index(device)
        actors = second_bytes(config, spec)
        if index is None:
            needed |= actors
        else:
            _check_fits(actors, machine.gpus[index].memory_bytes, "the actor's GPU memory")
    _check_fits(needed, machine.memory_bytes, "memory")
    return Plan(config, reasons, spec, blocks, machine, measured)


def _measured(
    question: ProbeRequest, retune: bool, processes: Processes, say: Callable[[str], None]
) -> ProbeResult | None:
    """What this machine can do, from memory or by a probe in a throw-away process."""
    known = None if retune else load_cached(question)
    if known is not None:
        return known
    say("measuring what this machine can do here; once, some seconds ...")
    try:
        measured = call(processes, measure, question, with_torch=True)
    except CallFailed as error:
        why = str(error).strip().rpartition("\n")[2]
        say(f"that failed ({why}); rules of thumb decide instead")
        return None
    save_cached(question, measured)
    return cast(ProbeResult, measured)


def _check_fits(needed: dict[str, int], free: int, what: str) -> None:
    total = sum(needed.values())
    if total > free:
        table = ", ".join(f"{name} {size / 2**30:.2f}" for name, size in needed.items())
        raise UsageError(
            [
                f"this run needs {total / 2**30:.1f} GiB of {what} ({table} GiB) and "
                f"{free / 2**30:.1f} GiB are free. Lower --replay.capacity, --learner.batch-size "
                "or --sampler.processes."
            ]
        )


def create_run(asked: Config, plan: Plan) -> RunDir:
    """Make the run directory and write what is known before the start."""
    config, machine = plan.config, plan.machine
    path = _claim(config)
    for folder in ("metrics", "checkpoints", "logs"):
        (path / folder).mkdir()
    stored = {"config": config.to_json(), "reasons": plan.reasons, "asked": asked.to_json()}
    write_atomic(path / "config.json", {**stored, "env_spec": plan.spec.to_json()})
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


def _claim(config: Config) -> Path:
    """A folder that is this run's alone; making it is the claim."""
    # Absolute, since an environment may change the working directory.
    folder = Path(config.runs).absolute()
    if config.name is None:
        stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        short = re.sub(r"[^\w.]+", "-", config.env).strip("-")[:80]
        algo = config.algo.rpartition(":")[2].lower()
        default = f"{short}-{algo}-{config.seed}-{stamp}"
        names = [default, *(f"{default}-{i}" for i in range(2, 100))]
    else:
        names = [config.name]
    for name in names:
        try:
            (folder / name).mkdir(parents=True)
        except FileExistsError:
            continue
        return folder / name
    hint = f"Give another --name, or go on from it with --resume {names[0]}."
    raise UsageError([f"run {folder / names[0]} exists already. {hint}"])
