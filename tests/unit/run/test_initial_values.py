"""What a resumed run takes over on the control wire."""

from __future__ import annotations

from typing import Any

import pytest

import cases
from spreeze.machine.facts import Machine
from spreeze.run.initial_values import _continue_from, set_initial_values
from spreeze.run.plan import make_plan
from spreeze.settings.defaults import config_with, default_config
from spreeze.store.resume_point import ResumePoint
from spreeze.wires.arena import Arena
from spreeze.wires.control import Control

TUNED = {"active_samplers": 2.0, "batch_size": 77.0, "min_updates_per_step": 1e9}
POINT = ResumePoint([10, 20, 30], [1, 2, 3], TUNED, [0, 0, 0], (0, 0))


def resumed(**knobs: Any) -> Control:
    config = config_with(default_config("sac", env="x"), {"device": "cpu", **knobs})
    plan = make_plan(config, cases.BOX, Machine(8, 8 << 30, ()))
    control = Control(Arena.create(plan.blocks))
    set_initial_values(control, plan)
    _continue_from(POINT, control, plan)
    high = plan.config.learner.ratio_bounds[1]
    assert control.supervisor["min_updates_per_step"] <= high, "within the bounds of this run"
    return control


def test_settings_that_were_tuned_go_on_if_they_are_still_auto() -> None:
    control = resumed()
    assert control.supervisor["active_samplers"] == 2
    assert control.supervisor["batch_size"] == 77
    given = resumed(**{"learner.batch_size": 64, "sampler.processes": 5})
    assert given.supervisor["batch_size"] == 64
    assert given.supervisor["active_samplers"] == 5
    assert resumed(**{"tuner.off": True}).supervisor["batch_size"] != 77


@pytest.mark.parametrize(("num", "steps"), [(3, [10, 20, 30]), (2, [30, 30]), (4, [15] * 4)])
def test_counts_go_on_with_any_number_of_samplers(num: int, steps: list[int]) -> None:
    control = resumed(**{"sampler.processes": num})
    assert control.samplers["env_steps"].tolist() == steps
    assert control.samplers["episodes"].sum() == 6
    assert control.supervisor["resumed_steps"] == 60
