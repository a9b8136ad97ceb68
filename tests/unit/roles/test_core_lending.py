"""Core lending: which samplers rest while an evaluation plays."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spreeze.roles import core_lending
from stage import EPISODE_STEPS, Stage


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
    assert made.who_steps() == [True, True, True], "there is nothing to evaluate yet"
    made.publish(1, 2)
    made.seconds += 1
    next(made.evaluates)
    assert made.who_steps() == [True, False, False], "four processes, two cores"
    assert made.control.samplers["waited_s"].sum() == 0, "resting is not counted as waiting"
    for _ in range(EPISODE_STEPS):
        next(made.evaluates)
    assert made.control.evaluator["evaluations"] == 1
    assert made.who_steps() == [True, True, True]


def test_one_sampler_always_continues(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_lending, "cores_beside", lambda _: 1)
    made = stage()
    made.publish(1, 2)
    next(made.evaluates)
    assert made.who_steps() == [True, False, False]


def test_one_sampler_continues_if_few_are_active(stage: Any) -> None:
    made = stage()
    made.control.supervisor["active_samplers"] = 1
    made.publish(1, 2)
    next(made.evaluates)
    assert made.who_steps() == [True, False, False]


def test_only_processes_that_play_need_cores(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_lending, "cores_beside", lambda _: 3)
    made = stage(**{"evaluator.processes": 16, "evaluator.episodes": 1})
    made.publish(1, 2)
    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", lambda _: ["one thread"])
        next(made.evaluates)
    assert made.who_steps() == [True, True, False], "three samplers, one player, three cores"


def test_a_loan_expires_if_the_evaluation_hangs(stage: Any) -> None:
    made = stage()
    made.publish(1, 2)
    next(made.evaluates)
    assert made.who_steps() == [True, False, False]
    made.seconds += core_lending.LOAN_S
    assert made.who_steps() == [True, True, True]


def test_shared_cores_are_not_lent(stage: Any) -> None:
    made = stage(cores="shared")
    made.publish(1, 2)
    next(made.evaluates)
    assert made.who_steps() == [True, True, True]


def test_a_serial_run_lends_nothing(stage: Any) -> None:
    made = stage(serial=True)
    made.publish(1, 2)
    next(made.evaluates)
    assert made.who_steps() == [True, True, True]
