"""The controller on machines that are three lines of arithmetic, with a clock that jumps."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import pytest

from spreeze.run.controller import WORDS, Controller, Decision
from spreeze.settings.config import config_with, default_config
from spreeze.wires.arena import Arena
from spreeze.wires.control import Control, control_blocks

KNOBS: dict[str, Any] = {
    "sampler.processes": 8,
    "learner.batch_size": 256,
    "learner.ratio_bounds": (0.01, 8.0),
    "replay.capacity": 1_000_000,
    "cores": "shared",
}
Rates = Callable[[float, float, float], tuple[float, float]]
"""(active samplers, batch size, least updates per step) -> updates/s, env steps/s."""


class Machine:
    """Counts what a run would do, and lets the controller have its say each second."""

    expected_hz = MappingProxyType({256: 1e4, 512: 1e4, 1024: 1e4})
    """Far more than there is."""

    def __init__(self, rates: Rates, chosen: tuple[str, ...] = tuple(WORDS), **knobs: Any) -> None:
        self.arena = Arena.create(control_blocks(8))
        self.control, self.rates = Control(self.arena), rates
        config = config_with(default_config(env="x"), KNOBS | knobs)
        words = self.control.supervisor
        words["active_samplers"], words["batch_size"], words["min_updates_per_step"] = 8, 256, 0.01
        self.control.learner["first_update_s"] = self.control.learner["compiled"] = 1
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


def crowded(cores: float) -> Rates:
    """Each sampler has a core; if they and the learner are more than there are, all are slower."""

    def rates(active: float, batch: float, ratio: float) -> tuple[float, float]:
        share = min(1.0, cores / (active + 1)) ** 2  # switching costs, too
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
    assert made.controller.resolved
    assert (made.active, made.batch, made.ratio) == (8, 256, 0.01)
    assert made.run(200) == [], "settled, it tries nothing"


def test_load_from_outside_is_followed_and_undone(machine: Any) -> None:
    made = machine(crowded(cores=9))
    made.run(200)
    made.rates = crowded(cores=4)
    decisions = made.run(300)
    assert made.active < 6, decisions
    assert made.controller.resolved
    made.rates = crowded(cores=9)
    decisions = made.run(300)
    assert made.active == 8, decisions
    assert made.controller.resolved
    for part in (part for decision in decisions for part in decision.change.split(", ")):
        old, _, new = part.split()[-3:]
        assert old != new, "what stays as it was is not worth a word"


def test_a_larger_batch_stays_where_it_costs_little(machine: Any) -> None:
    def rates(active: float, batch: float, ratio: float) -> tuple[float, float]:
        return 200 / (1 + batch / 600), 8000.0

    made = machine(rates)
    sizes = [decision.change for decision in made.run(400) if "batch" in decision.change]
    assert made.batch == 512, "the largest of update_hz * sqrt(batch)"
    assert sizes == ["batch 256 -> 512", "batch 512 -> 1024"]
    assert made.run(400) == [], (
        "the size it began with is worse, and no load from outside made it so"
    )


@pytest.mark.parametrize(("expected_hz", "sizes"), [(300, ["batch 256 -> 512"]), (210, [])])
def test_another_size_is_tried_only_where_this_one_disappoints(
    machine: Any, monkeypatch: pytest.MonkeyPatch, expected_hz: float, sizes: list[str]
) -> None:
    monkeypatch.setattr(Machine, "expected_hz", {256: expected_hz, 512: 200.0, 1024: 100.0})
    made = machine(crowded(cores=9))
    assert [d.change for d in made.run(200) if "batch" in d.change] == sizes


def test_late_in_a_run_no_size_is_tried(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can cost what was learned; load can be followed without."""
    monkeypatch.setattr(Machine, "expected_hz", {256: 210.0, 512: 200.0, 1024: 100.0})
    made = machine(crowded(cores=9))
    made.run(300)
    made.rates = lambda *_: (100.0, 4000.0)  # half of what was expected
    later = made.run(300)
    assert later
    assert not [d for d in later if "batch" in d.change], later


def test_what_a_run_goes_on_from_counts_as_late(machine: Any) -> None:
    made = machine(crowded(cores=9))
    made.updates = 1e6
    assert not [d for d in made.run(200) if "batch" in d.change]


def test_samplers_are_held_back_where_that_frees_the_learner(machine: Any) -> None:
    """Two cores: what samplers do not compute, the learner does; up to what fresh data are worth."""

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


def test_a_strict_ratio_is_nobodys_to_move(machine: Any) -> None:
    made = machine(crowded(cores=4), **{"learner.updates_per_step": 0.5})
    assert not [d for d in made.run(300) if "updates per step" in d.change]


def test_nothing_is_tried_before_the_update_is_compiled(machine: Any) -> None:
    made = machine(crowded(cores=2))
    made.control.learner["compiled"] = 0
    assert made.run(100) == []


def test_a_replay_never_turns_over_in_moments(machine: Any) -> None:
    made = machine(crowded(cores=9), **{"replay.capacity": 10_000})
    made.control.supervisor["active_samplers"] = 4
    made.controller._home = made.controller._settings()
    made.run(200)
    assert made.active == 4, "eight would fill it anew every 1.25 s"


def test_a_size_that_does_not_arrive_is_given_up(machine: Any) -> None:
    made = machine(crowded(cores=9), ("learner.batch_size",))
    made.compiles, made.rates = False, lambda *_: (200.0, 8000.0)
    made.run(600)
    assert made.batch == 256
    assert made.controller.resolved
