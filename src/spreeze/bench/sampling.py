"""How fast samplers are: against the bare simulator in the same processes, turn by turn.

The reference steps the same environments from the same seeds with the very actions that the sampler
took, and does nothing else. So both sides simulate the same, and the rest is ours.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import cloudpickle
import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from spreeze.envs.group import make_group
from spreeze.envs.targets import EnvTarget, make_env
from spreeze.errors import RunFailed
from spreeze.policy import Policy
from spreeze.roles.context import Context, Job, join, start
from spreeze.roles.pacing import NO_LIMIT
from spreeze.run.plan import Plan
from spreeze.run.processes.pool import Child, Processes
from spreeze.settings.config import resolved
from spreeze.wires.arena import Arena
from spreeze.wires.control import Control
from spreeze.wires.weights import Weights

TURNS = 4
KINDS = ("full", "raw", "random")
"""The sampler; the bare simulator with the same actions; the same with uniform ones."""
SETUP_LIMIT_S = 60.0
MOST_SHOWN = 5000
"""Letters of what a sampler printed before it failed."""
PARTS_ROUNDS = 200


@dataclass
class Clock:
    """Seconds of work, and what was done in them."""

    steps: int = 0
    seconds: float = 0.0

    @property
    def hz(self) -> float:
        """Steps per second."""
        return self.steps / max(self.seconds, 1e-9)


def measure(plan: Plan, env: EnvTarget, processes: Processes, seconds: float) -> dict[str, Any]:
    """Env steps per second of all samplers of a plan together, and of the bare simulators."""
    config = plan.config
    num, envs = resolved(config.sampler.processes), resolved(config.sampler.envs_per_process)
    turn_s = seconds / (len(KINDS) * TURNS + 2)
    with TemporaryDirectory() as folder:
        arena = Arena.create(plan.blocks)
        try:
            control, weights = Control(arena), Weights(arena)
            control.supervisor["active_samplers"] = num
            control.learner["allowed_steps"] = NO_LIMIT
            # Small weights: actions as an untrained policy takes them, noise and all.
            rng = np.random.default_rng(0)
            weights.publish(rng.normal(0, 0.05, weights.size).astype(np.float32), 0, 0)
            (Path(folder) / "metrics").mkdir()
            children = []
            for index in range(num):
                job = Job("sampler", index, config, plan.spec, env, Path(folder), time.monotonic())
                payload = cloudpickle.dumps((job, arena.blocks, turn_s))
                with (Path(folder) / f"{job.name}.log").open("ab") as log:  # environments talk
                    function, fds = "spreeze.bench.sampling:work", (arena.fd,)
                    children.append(processes.start(job.name, function, payload, log.fileno(), fds))
            results = _finish(processes, children, control, seconds, Path(folder))
        finally:
            arena.close()
    full, raw, random = (np.array([result[kind] for result in results]) for kind in KINDS)
    parts = {
        name: median(result["parts"][name] for result in results) for name in results[0]["parts"]
    }
    full_hz, raw_hz = (float(np.median(side.sum(0))) for side in (full, raw))
    return {
        "env": plan.spec.id,
        "processes": num,
        "envs_per_process": envs,
        "sample_hz": full_hz,
        "raw_hz": raw_hz,
        "ratio": float(np.median(full.sum(0) / raw.sum(0))),
        "raw_random_hz": float(np.median(random.sum(0))),
        "us_per_step": {name: round(value, 2) for name, value in parts.items()},
        "sampler_pss_mb": round(max(result["pss_mb"] for result in results), 1),
    }


def _finish(
    processes: Processes, children: list[Child], control: Control, seconds: float, logs: Path
) -> list[dict[str, Any]]:
    """Let all begin at the same time, and collect what they measured."""

    def failure(child: Child) -> RunFailed:
        printed = (logs / f"{child.name}.log").read_text(errors="replace")[-MOST_SHOWN:]
        ended = "took too long" if child.exit_code is None else f"ended by {child.how_it_ended}"
        problem = f"{child.name} {ended}: the environment could not be measured."
        return RunFailed(f"{printed}\n{problem}".strip())

    deadline = time.monotonic() + SETUP_LIMIT_S
    while not all(control.samplers["beats"]):
        processes.poll(0.05)
        if failed := [child for child in children if child.exit_code is not None]:
            raise failure(failed[0])
        if time.monotonic() > deadline:
            raise failure(children[int(np.argmin(control.samplers["beats"]))])
    control.supervisor["stop"] = 1  # here: begin
    processes.wait(children, 3 * seconds + SETUP_LIMIT_S)
    if bad := [child for child in children if child.exit_code != 0]:
        raise failure(bad[0])
    return [cloudpickle.loads(child.report) for child in children]


def work(payload: bytes, report_fd: int, arena_fd: int) -> int:
    """The main function of a measured process: sampler and bare simulator in turns."""
    job, blocks, turn_s = cloudpickle.loads(payload)
    ctx = join(job, Arena(arena_fd, blocks), lambda: time.monotonic() - job.started_s, time.sleep)
    bench = SamplerBench(ctx)
    bench.full(turn_s, Clock())  # the actions that the reference takes, too
    bench.prepare_references()
    ctx.counters["beats"] = 1
    while not ctx.control.stopping:
        time.sleep(0.001)
    began = time.monotonic()
    rates: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for turn in range(len(KINDS) * TURNS):
        kind, clock = KINDS[turn % len(KINDS)], Clock()
        bench.turn(kind, turn_s * 0.9, clock)
        rates[kind].append(clock.hz)
        time.sleep(max(0.0, began + (turn + 1) * turn_s - time.monotonic()))
    result = {**rates, "parts": bench.parts(1e6 / median(rates["full"])), "pss_mb": bench.pss_mb}
    os.write(report_fd, cloudpickle.dumps(result))
    return 0


class SamplerBench:
    """One sampler, and the bare simulator that takes the same actions."""

    def __init__(self, ctx: Context) -> None:
        """A sampler as in a run, but for the learner."""
        self._ctx = ctx
        self._num_envs = resolved(ctx.config.sampler.envs_per_process)
        self._lane: NDArray[np.void] = ctx.experience._rows[ctx.job.index]
        self._segment = ctx.config.hyper.row_format().segment
        self._rounds = (len(self._lane) // self._num_envs - 1) * self._segment
        self._references: dict[str, Callable[[Clock, float], None]] = {}
        self.pss_mb = 0.0
        """Memory of the sampler before anything else came into its process."""

    def full(self, seconds: float, clock: Clock) -> None:
        """The real role, from its very first step on."""
        counters = self._ctx.counters
        counters["env_steps"] = 0
        self._ctx.experience._words[self._ctx.job.index] = 0
        role = start(self._ctx)
        next(role)
        steps, began = int(counters["env_steps"]), time.perf_counter()
        for i in range(self._rounds):
            next(role)
            if time.perf_counter() - began > seconds and i >= self._segment:
                break
        clock.seconds += time.perf_counter() - began
        clock.steps += int(counters["env_steps"]) - steps
        self.pss_mb = self.pss_mb or _pss_mb()
        role.close()

    def turn(self, kind: str, seconds: float, clock: Clock) -> None:
        """One turn of a kind; the simulators alone begin anew until the time is up."""
        if kind == "full":
            self.full(seconds, clock)
        while clock.seconds < seconds and kind != "full":
            self._references[kind](clock, seconds)

    def prepare_references(self) -> None:
        """The same environments with the actions of the sampler's turn, and with uniform ones."""
        ctx, num = self._ctx, self._num_envs
        num_rows = int(ctx.counters["env_steps"]) // (num * self._segment)
        policy = Policy(ctx.spec, ctx.config.hyper.policy_form(ctx.spec))
        rows = self._lane["action"][: num_rows * num].reshape(num_rows, num, self._segment, -1)
        taken = rows.swapaxes(1, 2).reshape(num_rows * self._segment, num, -1)
        policy.seed(0)
        uniform = policy.act_randomly(len(taken) * num).reshape(taken.shape)
        seed = ctx.seed(2)[0] % 2**31
        first: Any = make_env(ctx.job.env)
        vector = isinstance(first, VectorEnv)
        envs = [] if vector else [first, *(make_env(ctx.job.env) for _ in range(num - 1))]
        for kind, chosen in (("raw", taken), ("random", uniform)):
            actions = np.stack([policy.to_env_action(row) for row in chosen])
            self._references[kind] = (
                _vector_reference(first, actions, seed)
                if vector
                else _loop_reference(envs, actions, seed)
            )

    def parts(self, us_per_step: float) -> dict[str, float]:
        """Microseconds of one env step that go to each part of it."""
        ctx, num = self._ctx, self._num_envs
        hyper = ctx.config.hyper
        group = make_group(ctx.job.env, ctx.spec, num, hyper.row_format())
        policy = Policy(ctx.spec, hyper.policy_form(ctx.spec))
        ctx.weights.fetch(policy.vector, 0)
        lane, spent = (
            ctx.experience.writer(ctx.job.index),
            dict.fromkeys(("simulate", "act", "step"), 0.0),
        )
        stepper: Any = group._stepper
        bare = stepper.step

        def timed(*arguments: Any) -> None:
            began = time.perf_counter()
            bare(*arguments)
            spent["simulate"] += time.perf_counter() - began

        stepper.step = timed
        group.reset(0)
        for _ in range(PARTS_ROUNDS):
            began = time.perf_counter()
            actions = policy.act(group.obs, True)
            env_actions = policy.to_env_action(actions)
            acted = time.perf_counter()
            lane.commit(group.step(actions, env_actions, 1, lane.reserve(), policy.log_prob))
            spent["act"] += acted - began
            spent["step"] += time.perf_counter() - acted
        group.close()
        us = {name: 1e6 * value / (PARTS_ROUNDS * num) for name, value in spent.items()}
        write = us.pop("step") - us["simulate"]
        return {**us, "write": write, "rest": us_per_step - sum(us.values()) - write}


def _loop_reference(
    envs: list[Any], actions: NDArray[np.float32], seed: int
) -> Callable[[Clock, float], None]:
    """Plain environments as `gymnasium.make` gives them, one after the other."""
    steps = [env.step for env in envs]

    def play(clock: Clock, seconds: float) -> None:
        for i, env in enumerate(envs):
            env.reset(seed=seed + i)
        began, limit = time.perf_counter(), seconds - clock.seconds
        for row in actions:
            for i, step in enumerate(steps):
                _, _, terminated, truncated, _ = step(row[i])
                if terminated or truncated:
                    envs[i].reset()
            clock.steps += len(envs)
            if time.perf_counter() - began > limit:
                break
        clock.seconds += time.perf_counter() - began

    return play


def _vector_reference(
    env: VectorEnv[Any, Any, Any], actions: NDArray[np.float32], seed: int
) -> Callable[[Clock, float], None]:
    """The vector environment as it is."""

    def play(clock: Clock, seconds: float) -> None:
        env.reset(seed=seed)
        began, limit = time.perf_counter(), seconds - clock.seconds
        for row in actions:
            env.step(row)
            clock.steps += env.num_envs
            if time.perf_counter() - began > limit:
                break
        clock.seconds += time.perf_counter() - began

    return play


def _pss_mb() -> float:
    """Memory of this process, shared pages by share."""
    import psutil

    return float(psutil.Process().memory_full_info().pss) / 2**20
