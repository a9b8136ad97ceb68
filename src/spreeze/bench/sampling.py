"""How fast samplers are, against the bare simulator in the same processes, turn by turn.

All samplers take their turns at the same time, so both sides compete for the cores alike.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import cloudpickle
import numpy as np

from spreeze.bench.sampling_worker import Side, StartLine
from spreeze.envs.targets import EnvTarget
from spreeze.errors import RunFailed
from spreeze.roles.context import Job
from spreeze.roles.pacing import NO_LIMIT
from spreeze.run.plan import Plan
from spreeze.run.processes.pool import Child, Processes
from spreeze.settings.config import resolved
from spreeze.wires.arena import Arena
from spreeze.wires.control import Control
from spreeze.wires.weights import Weights

NUM_ROUNDS = 4
"""Turns of each side."""
SETUP_LIMIT_S = 60.0
SHOWN_CHARS = 5000
"""How much of the end of a failed sampler's output is shown."""


def measure(plan: Plan, env: EnvTarget, processes: Processes, seconds: float) -> dict[str, Any]:
    """Env steps per second of all samplers of a plan together, and of the bare simulators."""
    num = resolved(plan.config.sampler.processes)
    with TemporaryDirectory() as folder:
        arena = Arena.create([*plan.blocks, *StartLine.blocks(num)])
        try:
            _prepare_wires(arena, num)
            (Path(folder) / "metrics").mkdir()
            turn_s = seconds / (len(Side) * NUM_ROUNDS + 2)
            children = []
            for index in range(num):
                job = Job(
                    "sampler", index, plan.config, plan.spec, env, Path(folder), time.monotonic(),
                    form=plan.form,
                )  # fmt: skip
                payload = cloudpickle.dumps((job, arena.blocks, NUM_ROUNDS, turn_s))
                with (Path(folder) / f"{job.name}.log").open("ab") as log:  # environments may print
                    function, fds = "spreeze.bench.sampling_worker:main", (arena.fd,)
                    children.append(processes.start(job.name, function, payload, log.fileno(), fds))
            results = _collect(processes, children, StartLine(arena), seconds, Path(folder))
        finally:
            arena.close()
    return {
        "env": plan.spec.id,
        "processes": num,
        "envs_per_process": resolved(plan.config.sampler.envs_per_process),
        **_totals(results),
    }


def _prepare_wires(arena: Arena, num_samplers: int) -> None:
    """What supervisor and learner would write: all samplers act, without a limit, with a policy."""
    control, weights = Control(arena), Weights(arena)
    control.supervisor["active_samplers"] = num_samplers
    control.learner["allowed_steps"] = NO_LIMIT
    # Small weights give actions like those of an untrained policy, with its exploration noise.
    rng = np.random.default_rng(0)
    weights.publish(rng.normal(0, 0.05, weights.size).astype(np.float32), 0, 0)


def _collect(
    processes: Processes, children: list[Child], start: StartLine, seconds: float, logs: Path
) -> list[dict[str, Any]]:
    """Let all samplers begin at the same time, and return what each measured."""

    def failure(child: Child) -> RunFailed:
        printed = (logs / f"{child.name}.log").read_text(errors="replace")[-SHOWN_CHARS:]
        ended = "took too long" if child.exit_code is None else f"ended by {child.how_it_ended}"
        problem = f"{child.name} {ended}: the environment could not be measured."
        return RunFailed(f"{printed}\n{problem}".strip())

    deadline = time.monotonic() + SETUP_LIMIT_S
    while not start.ready.all():
        processes.poll(0.05)
        if failed := [child for child in children if child.exit_code is not None]:
            raise failure(failed[0])
        if time.monotonic() > deadline:
            raise failure(children[int(np.argmin(start.ready))])
    start.go[0] = 1
    processes.wait(children, 3 * seconds + SETUP_LIMIT_S)
    if failed := [child for child in children if child.exit_code != 0]:
        raise failure(failed[0])
    return [cloudpickle.loads(child.report) for child in children]


def _totals(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Rates are summed over the processes, then the median over the turns is taken."""
    hz = {side: np.array([result["hz"][side] for result in results]).sum(0) for side in Side}
    parts = {
        name: median(result["parts"][name] for result in results) for name in results[0]["parts"]
    }
    return {
        "sample_hz": float(np.median(hz[Side.SAMPLER])),
        "raw_hz": float(np.median(hz[Side.SAME_ACTIONS])),
        "ratio": float(np.median(hz[Side.SAMPLER] / hz[Side.SAME_ACTIONS])),
        "raw_random_hz": float(np.median(hz[Side.RANDOM_ACTIONS])),
        "us_per_step": {name: round(value, 2) for name, value in parts.items()},
        "sampler_pss_mb": round(max(result["pss_mb"] for result in results), 1),
    }
