"""Roles without processes: three samplers and an evaluator on real wires, with a clock that the test moves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import fakes
from spreeze.envs.inspect import inspect_env
from spreeze.machine.facts import Machine
from spreeze.roles.context import Context, Job, join, start
from spreeze.run.plan import make_plan
from spreeze.settings.auto.images import with_stack
from spreeze.settings.defaults import config_with, default_config
from spreeze.wires.arena import Arena

EPISODE_STEPS, EPISODES = 5, 2


class Stage:
    """Three samplers and an evaluator on CountEnv; the learner is what the test writes."""

    def __init__(
        self,
        folder: Path,
        threads: bool = False,
        env: Any = fakes.CountEnv,
        algo: str = "auto",
        **knobs: Any,
    ) -> None:
        self.threads = threads
        knobs = {
            "device": "cpu",
            "sampler.processes": 3,
            "sampler.envs_per_process": 1,
            "evaluator.episodes": EPISODES,
            "evaluator.every_s": 1.0,
            "cores": "separate",
            **knobs,
        }
        (folder / "metrics").mkdir()
        (folder / "checkpoints").mkdir()
        spec = with_stack(inspect_env(env, "x"), "auto")
        plan = make_plan(
            config_with(default_config(env="x", algo=algo), knobs), spec, Machine(8, 8 << 30, ())
        )
        self.arena, self.seconds = Arena.create(plan.blocks), 0.0
        self._job = lambda role, index: Job(role, index, plan.config, spec, env, folder, 0.0)
        self._roles: list[tuple[Context, Iterator[None]]] = []
        self.evaluator, self.evaluates = self.role("evaluator")
        self.samplers = [self.role("sampler", i) for i in range(3)]
        self.control = self.evaluator.control
        self.control.supervisor["active_samplers"] = 3
        self.control.learner["allowed_steps"] = 1_000_000

    def role(self, name: str, index: int = 0) -> tuple[Context, Iterator[None]]:
        """A role's context and its work."""
        clock = lambda: self.seconds  # noqa: E731
        context = join(self._job(name, index), self.arena, clock, self.idle, threads=self.threads)
        self._roles.append((context, start(context)))
        return self._roles[-1]

    def idle(self, seconds: float) -> None:
        """Doing nothing moves the clock."""
        self.seconds += seconds

    def publish(self, *updates: int) -> None:
        """Publish a policy of zeros for each of these update counts."""
        spec = self.evaluator.spec
        size = self.evaluator.config.hyper.policy_form(spec).size(spec)
        for num in updates:
            self.evaluator.weights.publish(np.zeros(size, np.float32), num, 0)

    def who_steps(self) -> list[bool]:
        """Let each sampler do a unit of work; returns which of them have stepped."""
        before = self.control.samplers["env_steps"].copy()
        for _, work in self.samplers:
            next(work)
        return (self.control.samplers["env_steps"] > before).tolist()

    def close(self) -> None:
        """End all roles and free the wires."""
        for context, work in self._roles:
            work.close()  # type: ignore[attr-defined]
            context.close()
        self.arena.close()
