"""The controller on simulated machines: a few lines of arithmetic and a clock that jumps."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from spreeze.run.controller import BATCH, RATIO, SAMPLERS, WORDS, Change, Controller, Decision
from spreeze.settings.defaults import config_with, default_config
from spreeze.wires.arena import Arena
from spreeze.wires.control import CompileState, Control, control_blocks

KNOBS: dict[str, Any] = {
    "sampler.processes": 8,
    "learner.batch_size": 256,
    "learner.ratio_bounds": (0.01, 8.0),
    "replay.capacity": 1_000_000,
    "cores": "shared",
}
Rates = Callable[[float, float, float], tuple[float, float]]
"""(active samplers, batch size, minimum updates per step) -> updates/s, env steps/s."""


class Machine:
    """Counts what a run would do, and calls the controller once a second."""

    expected_hz = MappingProxyType({256: 1e4, 512: 1e4, 1024: 1e4})
    """Far more than this machine achieves."""

    def __init__(self, rates: Rates, chosen: tuple[str, ...] = tuple(WORDS), **knobs: Any) -> None:
        self.arena = Arena.create(control_blocks(8))
        self.control, self.rates = Control(self.arena), rates
        config = config_with(default_config(env="x"), KNOBS | knobs)
        words = self.control.supervisor
        words["active_samplers"], words["batch_size"], words["min_updates_per_step"] = 8, 256, 0.01
        self.control.learner["first_update_s"] = 1
        self.control.learner["compiled"] = CompileState.COMPILED
        self.controller = Controller(config, chosen, self.expected_hz, self.control)
        self.compiles = True
        self.seconds = 0
        self.steps = self.updates = 0.0

    def run(self, seconds: int) -> list[Decision]:
        decisions = []
        for _ in range(seconds):
            words, learner = self.control.supervisor, self.control.learner
            learner["batch_size"] = words["batch_size"] if self.compiles else 256
            update_hz, sample_hz = self.rates(
                int(words["active_samplers"]), int(words["batch_size"]), self.ratio
            )
            self.updates += update_hz
            self.steps += sample_hz
            learner["updates"] = self.updates
            self.control.samplers["env_steps"][0] = self.steps
            self.seconds += 1
            if (decision := self.controller.tick(float(self.seconds))) is not None:
                decisions.append(decision)
        return decisions

    @property
    def active(self) -> int:
        return int(self.control.supervisor["active_samplers"])

    @property
    def batch(self) -> int:
        return int(self.control.supervisor["batch_size"])

    @property
    def ratio(self) -> float:
        return float(self.control.supervisor["min_updates_per_step"])

    def close(self) -> None:
        self.arena.close()


def batch_changes(decisions: list[Decision]) -> list[Change]:
    """The batch sizes that were tried."""
    return [change for d in decisions for change in d.changes if change.knob == BATCH]


def crowded(cores: float) -> Rates:
    """Samplers and learner need a core each; with fewer cores than that, all are slower."""

    def rates(active: float, batch: float, ratio: float) -> tuple[float, float]:
        share = min(1.0, cores / (active + 1)) ** 2  # switching has its cost
        return 200 * share * (256 / batch), 1000 * active * share

    return rates


@pytest.fixture
def machine() -> Any:
    made: list[Machine] = []

    def make(*arguments: Any, **knobs: Any) -> Machine:
        made.append(Machine(*arguments, **knobs))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_settings_that_are_right_stay_and_it_settles(machine: Any) -> None:
    made = machine(crowded(cores=9))
    decisions = made.run(200)
    assert decisions
    assert not any(decision.kept for decision in decisions)
    assert made.controller.settled
    assert (made.active, made.batch, made.ratio) == (8, 256, 0.01)
    assert made.run(200) == [], "once settled, it tries nothing"


def test_load_from_outside_is_followed_and_undone(machine: Any) -> None:
    made = machine(crowded(cores=9))
    made.run(200)
    made.rates = crowded(cores=4)
    decisions = made.run(300)
    assert made.active < 6, decisions
    assert made.controller.settled
    made.rates = crowded(cores=9)
    decisions = made.run(300)
    assert made.active == 8, decisions
    assert made.controller.settled
    for change in (change for decision in decisions for change in decision.changes):
        assert change.old != change.new, "a setting that stays is no change"


def test_a_larger_batch_stays_where_it_costs_little(machine: Any) -> None:
    def rates(active: float, batch: float, ratio: float) -> tuple[float, float]:
        return 200 / (1 + batch / 600), 8000.0

    made = machine(rates)
    sizes = batch_changes(made.run(400))
    assert made.batch == 512, "the largest of update_hz * sqrt(batch)"
    assert sizes == [Change(BATCH, 256, 512), Change(BATCH, 512, 1024)]
    assert made.run(400) == [], "the initial size lost fairly, so it is not retried"


@pytest.mark.parametrize(("expected_hz", "sizes"), [(300, [Change(BATCH, 256, 512)]), (210, [])])
def test_another_size_is_tried_only_where_this_one_disappoints(
    machine: Any, monkeypatch: pytest.MonkeyPatch, expected_hz: float, sizes: list[Change]
) -> None:
    monkeypatch.setattr(Machine, "expected_hz", {256: expected_hz, 512: 200.0, 1024: 100.0})
    made = machine(crowded(cores=9))
    assert batch_changes(made.run(200)) == sizes


def test_late_in_a_run_no_size_is_tried(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It could damage the policy; the controller adapts to load without it."""
    monkeypatch.setattr(Machine, "expected_hz", {256: 210.0, 512: 200.0, 1024: 100.0})
    made = machine(crowded(cores=9))
    made.run(300)
    made.rates = lambda *_: (100.0, 4000.0)  # half the expected rate
    later = made.run(300)
    assert later
    assert batch_changes(later) == []


def test_updates_of_a_resumed_run_count_as_late(machine: Any) -> None:
    made = machine(crowded(cores=9))
    made.updates = 1e6
    assert batch_changes(made.run(200)) == []


def test_samplers_are_held_back_where_that_frees_the_learner(machine: Any) -> None:
    """Two cores: the learner uses what samplers leave, up to the value of fresh data."""

    def rates(active: float, batch: float, ratio: float) -> tuple[float, float]:
        update_hz = 200 / (1 + 0.02 / ratio)
        return update_hz, update_hz / ratio

    made = machine(rates)
    made.run(400)
    assert 0.04 < made.ratio < 0.12, made.ratio


@pytest.mark.parametrize(
    ("chosen", "knobs"),
    [((), {}), (tuple(WORDS), {"tuner.off": True}), (tuple(WORDS), {"serial": True})],
)
def test_what_is_fixed_is_not_moved(machine: Any, chosen: Any, knobs: dict[str, Any]) -> None:
    made = machine(crowded(cores=2), chosen, **knobs)
    assert made.run(300) == []
    assert (made.active, made.batch, made.ratio) == (8, 256, 0.01)


def test_one_fixed_knob_leaves_the_others_free(machine: Any) -> None:
    made = machine(crowded(cores=4), ("learner.batch_size", "learner.ratio_bounds"))
    assert made.run(300)
    assert made.active == 8


def test_a_strict_ratio_is_not_moved(machine: Any) -> None:
    made = machine(crowded(cores=4), **{"learner.updates_per_step": 0.5})
    assert all(change.knob != RATIO for d in made.run(300) for change in d.changes)


def test_nothing_is_tried_before_the_update_is_compiled(machine: Any) -> None:
    made = machine(crowded(cores=2))
    made.control.learner["compiled"] = CompileState.PLAIN
    assert made.run(100) == []


def test_a_replay_never_turns_over_in_moments(machine: Any) -> None:
    made = machine(crowded(cores=9), **{"replay.capacity": 10_000})
    made.control.supervisor["active_samplers"] = 4
    made.controller._initial = made.controller._settings()
    made.run(200)
    assert made.active == 4, "eight would replace its contents every 1.25 s"


def test_a_size_that_does_not_arrive_is_given_up(machine: Any) -> None:
    made = machine(crowded(cores=9), ("learner.batch_size",))
    made.compiles, made.rates = False, lambda *_: (200.0, 8000.0)
    made.run(600)
    assert made.batch == 256
    assert made.controller.settled


@pytest.mark.fault("F09")
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("chosen", [tuple(WORDS), (SAMPLERS,), (RATIO,), (SAMPLERS, RATIO)])
def test_no_history_of_learners_that_are_started_again_breaks_it(
    seed: int, chosen: tuple[str, ...]
) -> None:
    """The user may have given the batch size; a restarted learner counts from an older number on."""
    rng = np.random.default_rng(seed)

    def rates(*_: float) -> tuple[float, float]:
        return float(rng.uniform(0, 300)), float(rng.uniform(0, 5000))

    machine = Machine(rates, chosen)
    try:
        for _ in range(200):
            for decision in machine.run(1):
                assert decision.before.update_hz >= 0
                assert np.isfinite(decision.gain)
            if rng.random() < 0.1:
                machine.updates *= rng.random()
            if rng.random() < 0.01:
                machine.controller.use_all_samplers()
    finally:
        machine.close()


@pytest.mark.fault("F04")
def test_when_a_sampler_is_lost_all_others_work_from_then_on() -> None:
    machine = Machine(crowded(2))
    try:
        machine.run(60)
        assert machine.active < 8
        machine.controller.use_all_samplers()
        machine.run(100)
        assert machine.active == 8
    finally:
        machine.close()


@pytest.mark.fault("F09")
def test_a_window_in_which_the_learner_was_started_again_does_not_count() -> None:
    machine = Machine(lambda *_: (100.0, 1000.0))
    try:
        for _ in range(40):
            decisions = machine.run(3)
            machine.updates = 0
            assert not decisions, "no window is whole"
        assert machine.run(60)
    finally:
        machine.close()
