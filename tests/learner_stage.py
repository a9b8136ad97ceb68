"""The learner role without processes: real wires, a clock that the test moves, rows that the test writes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

import cases
from spreeze.machine.facts import Machine
from spreeze.roles.context import Context, Job, join
from spreeze.roles.learner import Learner
from spreeze.rows import Rows
from spreeze.run.initial_values import set_initial_values
from spreeze.run.plan import make_plan
from spreeze.settings.defaults import config_with, default_config
from spreeze.wires.arena import Arena
from spreeze.wires.control import Control
from spreeze.wires.experience import Experience


class LearnerStage:
    """A learner on random rows. `start` may be called again, as if the learner before was killed."""

    def __init__(
        self, folder: Path, algo: str = "sac", threads: bool = False, **knobs: Any
    ) -> None:
        self.threads = threads
        knobs = {
            "algo.hidden": (16,),
            "device": "cpu",
            "learner.batch_size": 32,
            "learner.warmup_rows": 64,
            "learner.ratio_bounds": (0.0, 1000.0),
            "learner.compile": False,
            "replay.capacity": 4000,
            "sampler.processes": 2,
            "sampler.envs_per_process": 8,
            **knobs,
        }
        (folder / "checkpoints").mkdir(parents=True)
        spec = cases.DISCRETE if algo == "dqn" else cases.BOX
        plan = make_plan(
            config_with(default_config(algo, env="x"), knobs), spec, Machine(4, 8 << 30, ())
        )
        self.config, self.folder, self.seconds = plan.config, folder, 0.0
        self.arena = Arena.create(plan.blocks)
        self.control = Control(self.arena)
        set_initial_values(self.control, plan)
        self._job = Job("learner", 0, plan.config, spec, None, folder, 0.0)  # type: ignore[arg-type]
        self._contexts: list[Context] = []
        self.algorithm = cases.built(algo, "Discrete" if algo == "dqn" else "Box")
        self.algorithm_row_bytes = cases.layout_of(self.algorithm).row_bytes
        self.num_rows = 0

    def start(self, resume: Path | None = None) -> Learner:
        """A learner; with `resume`, one that continues that run."""
        config = dataclasses.replace(self.config, resume=str(resume) if resume else None)
        job = dataclasses.replace(self._job, config=config)
        clock = lambda: self.seconds  # noqa: E731
        self.context = join(job, self.arena, clock, self.idle, threads=self.threads)
        self._contexts.append(self.context)
        learner = Learner(self.context)
        learner.publish_initial_policy()
        return learner

    def idle(self, seconds: float) -> None:
        self.seconds += seconds

    def write(self, num: int) -> None:
        """Samplers write rows, in turn; the first observation of each is its number."""
        experience = Experience(self.arena, 8)
        for lane in range(num // 8):
            rows = cases.random_rows(self.algorithm, 8, seed=self.num_rows)
            rows["obs"][:, 0] = 1e-6 * np.arange(self.num_rows, self.num_rows + 8)
            writer = experience.writer(lane % 2)
            writer.reserve()[:] = rows
            writer.commit(8)
            self.num_rows += 8
            self.control.samplers["env_steps"][lane % 2] += 8

    def work(self, learner: Learner, units: int = 1, seconds: float = 0.0) -> None:
        """Units of work, as the role's generator does them, and so much time for each."""
        for _ in range(units):
            learner.take_rows()
            learner.update_or_wait()
            learner.check()
            learner.save_if_due()
            self.seconds += seconds

    def numbers(self, learner: Learner) -> list[int]:
        """The numbers of the rows in the replay, oldest first."""
        replay = learner._replay
        newest = replay.newest(replay.num_rows).numpy()
        rows: Rows = newest.view(replay.layout.dtype).reshape(-1)
        return np.rint(rows["obs"][:, 0] * 1e6).astype(int).tolist()  # type: ignore[no-any-return]

    def close(self) -> None:
        for context in self._contexts:
            context.close()
        self.arena.close()
