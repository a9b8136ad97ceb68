"""Samplers: how they lend their cores to an evaluation, and how far ahead their rows look."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fakes
from spreeze.envs.inspect import inspect_env
from spreeze.machine.facts import Machine
from spreeze.roles import core_lending
from spreeze.roles.context import Context, Job, join, start
from spreeze.run.plan import make_plan
from spreeze.settings.config import config_with, default_config
from spreeze.wires.arena import Arena

EPISODE, EPISODES = 5, 2


class Stage:
    """Three samplers and an evaluator without learner and processes, and a clock that is moved by hand."""

    def __init__(self, folder: Path, resume: str | None = None, **knobs: Any) -> None:
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
        spec = inspect_env(fakes.CountEnv, "x")
        plan = make_plan(config_with(default_config(env="x"), knobs), spec, Machine(8, 8 << 30, ()))
        self.arena, self.seconds = Arena.create(plan.blocks), 0.0
        config = config_with(plan.config, {"resume": resume})
        self._job = lambda role, index: Job(role, index, config, spec, fakes.CountEnv, folder, 0.0)
        self.evaluator, self.evaluates = self.role("evaluator")
        self.samplers = [self.role("sampler", i) for i in range(3)]
        self.control = self.evaluator.control
        self.control.supervisor["active_samplers"] = 3
        self.control.learner["allowed_steps"] = 1_000_000

    def role(self, name: str, index: int = 0) -> tuple[Context, Iterator[None]]:
        """Its context and its work."""
        context = join(self._job(name, index), self.arena, lambda: self.seconds, self.idle)
        return context, start(context)

    def idle(self, seconds: float) -> None:
        self.seconds += seconds

    def publish(self, *updates: int) -> None:
        """A policy after so many updates."""
        size = self.evaluator.config.hyper.policy_form(self.evaluator.spec).size(
            self.evaluator.spec
        )
        for num in updates:
            self.evaluator.weights.publish(np.zeros(size, np.float32), num, 0)

    def who_steps(self) -> list[bool]:
        """Let each sampler do a unit of work; which of them have stepped."""
        before = self.control.samplers["env_steps"].copy()
        for _, work in self.samplers:
            next(work)
        return (self.control.samplers["env_steps"] > before).tolist()

    def close(self) -> None:
        for context, work in [(self.evaluator, self.evaluates), *self.samplers]:
            work.close()  # type: ignore[attr-defined]
            context.recorder.close()
        self.arena.close()


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(core_lending, "cores_beside", lambda _: 2)
    made: list[Stage] = []

    def make(**knobs: Any) -> Stage:
        made.append(Stage(tmp_path, **knobs))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_samplers_rest_while_an_evaluation_needs_their_cores(stage: Any) -> None:
    made = stage()
    next(made.evaluates)
    assert made.who_steps() == [True, True, True], "nothing to evaluate yet"
    made.publish(1, 2)
    made.seconds += 1
    next(made.evaluates)
    assert made.who_steps() == [True, False, False], "four processes, two cores"
    assert made.control.samplers["waited_s"].sum() == 0, "nobody waits for the learner"
    for _ in range(EPISODE):
        next(made.evaluates)
    assert made.control.evaluator["evaluations"] == 1
    assert made.who_steps() == [True, True, True]


def test_one_sampler_always_goes_on(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_lending, "cores_beside", lambda _: 1)
    made = stage()
    made.publish(1, 2)
    next(made.evaluates)
    assert made.who_steps() == [True, False, False]


def test_with_fewer_samplers_at_work_one_goes_on_too(stage: Any) -> None:
    made = stage()
    made.control.supervisor["active_samplers"] = 1
    made.publish(1, 2)
    next(made.evaluates)
    assert made.who_steps() == [True, False, False]


def test_only_those_who_play_need_cores(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_lending, "cores_beside", lambda _: 3)
    made = stage(**{"evaluator.processes": 16, "evaluator.episodes": 1})
    made.publish(1, 2)
    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", lambda _: ["one thread"])
        next(made.evaluates)
    assert made.who_steps() == [True, True, False], "three samplers and one that plays, three cores"


def test_an_evaluation_that_is_stuck_gives_them_back(stage: Any) -> None:
    """In a step of its environment or by a signal: it does nothing at all any more."""
    made = stage()
    made.publish(1, 2)
    next(made.evaluates)
    assert made.who_steps() == [True, False, False]
    made.seconds += core_lending.LOAN_S
    assert made.who_steps() == [True, True, True]


def test_few_cores_are_left_to_the_kernel(stage: Any) -> None:
    made = stage(cores="shared")
    made.publish(1, 2)
    next(made.evaluates)
    assert made.who_steps() == [True, True, True]


def test_in_one_process_there_is_nothing_to_lend(stage: Any) -> None:
    made = stage(serial=True)
    made.publish(1, 2)
    next(made.evaluates)
    assert made.who_steps() == [True, True, True]
