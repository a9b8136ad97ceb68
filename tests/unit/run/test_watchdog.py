"""The watchdog with a clock that the test moves: who hangs, and who only takes its time."""

from __future__ import annotations

import pytest

from spreeze.faults import Doing
from spreeze.run.watchdog import (
    LEARNER_S,
    MOST_S,
    TIMES_LONGEST,
    WORKERS_S,
    Hang,
    Sign,
    Watchdog,
    signs_of_life,
)
from spreeze.settings.sections import LimitsConfig
from spreeze.wires.arena import Arena
from spreeze.wires.control import Control, control_blocks

LIMITS = LimitsConfig(construct_s=20.0, reset_s=10.0, step_s=2.0)
TICK_S = 0.05
ROLES = ("sampler-0", "sampler-1", "learner-0", "evaluator-0", "visualizer-0")


class Stage:
    """Roles whose signs the test sets, looked at every 50 ms."""

    def __init__(self, auto: bool = False) -> None:
        self.dog = Watchdog(LIMITS, lambda _: auto)
        self.clock_s = 1000.0
        self.signs = {name: Sign(7, Doing.STEP) for name in ROLES}

    def look(self, seconds: float, *at_work: str) -> list[Hang]:
        """Let time pass while those at work move on; stops at the first hang."""
        for _ in range(round(seconds / TICK_S)):
            self.clock_s += TICK_S
            for name in at_work:
                beats, doing = self.signs[name]
                self.signs[name] = Sign(beats + 1, doing)
            if hangs := self.dog.look(self.signs, self.clock_s):
                return hangs
        return []

    def begin(self, name: str, doing: Doing, beats: int = 0) -> None:
        """The role starts and says what it does."""
        self.dog.started(name, self.signs[name])
        self.signs[name] = Sign(beats, doing)
        self.look(TICK_S)


@pytest.mark.fault("F05")
@pytest.mark.parametrize(
    ("doing", "limit_s", "knob"),
    [
        (Doing.CONSTRUCT, 20.0, "limits.construct_s"),
        (Doing.RESET, 10.0, "limits.reset_s"),
        (Doing.STEP, 2.0, "limits.step_s"),
        (Doing.OTHER, 20.0, "limits.construct_s"),
    ],
)
def test_a_role_hangs_after_the_limit_of_what_it_does(
    doing: Doing, limit_s: float, knob: str
) -> None:
    stage = Stage()
    stage.begin("sampler-0", doing)
    assert stage.look(limit_s - 0.2) == []
    (hang,) = stage.look(0.5)
    assert (hang.name, hang.doing, hang.knob) == ("sampler-0", doing, knob)
    assert hang.seconds == pytest.approx(limit_s, abs=0.2)


def test_only_the_one_that_hangs_is_named_and_only_while_it_is_watched() -> None:
    stage = Stage()
    for name in ROLES:
        stage.begin(name, Doing.STEP)
    others = [name for name in ROLES if name != "sampler-1"]
    assert [hang.name for hang in stage.look(3, *others)] == ["sampler-1"]
    stage.dog.ended("sampler-1")
    assert stage.look(60, *others) == []


def test_a_role_that_waits_beats_and_never_hangs() -> None:
    stage = Stage()
    stage.begin("sampler-0", Doing.OTHER)
    assert stage.look(100, "sampler-0") == []


def test_what_it_does_is_progress_too() -> None:
    """As many environments in one process are made or reset one after the other."""
    stage = Stage()
    stage.begin("sampler-0", Doing.RESET)
    for i in range(40):
        stage.signs["sampler-0"] = Sign(0, (Doing.RESET, Doing.STEP)[i % 2])
        assert stage.look(1.5) == []


def test_a_new_process_is_not_blamed_for_the_words_of_the_one_before_it() -> None:
    stage = Stage()
    stage.dog.started("sampler-0", stage.signs["sampler-0"])  # killed in a step: 2 s are allowed
    assert stage.look(19) == []
    (hang,) = stage.look(2)
    assert hang.doing == Doing.OTHER


@pytest.mark.fault("F59")
def test_the_learner_has_its_own_limit() -> None:
    stage = Stage()
    stage.begin("learner-0", Doing.OTHER)
    assert stage.look(LEARNER_S - 1) == []
    (hang,) = stage.look(2)
    assert (hang.name, hang.knob) == ("learner-0", None)


def test_the_evaluator_gets_the_time_between_two_reports_of_its_workers() -> None:
    stage = Stage()
    stage.begin("evaluator-0", Doing.STEP)
    assert stage.look(2 + WORKERS_S - 0.2) == []
    assert stage.look(1)


@pytest.mark.fault("F73")
@pytest.mark.fault("F72")
def test_time_in_which_the_supervisor_did_not_run_does_not_count() -> None:
    stage = Stage()
    for name in ROLES:
        stage.begin(name, Doing.STEP)
    for _ in range(5):
        stage.clock_s += 3600
        assert stage.look(TICK_S) == []
    assert stage.look(0.5) == []
    assert stage.look(2), "a hang is still found"


@pytest.mark.parametrize("auto", [True, False])
def test_a_limit_adapts_to_what_is_usual_only_if_it_was_auto(auto: bool) -> None:
    stage = Stage(auto)
    stage.begin("sampler-0", Doing.STEP)
    for _ in range(3):
        assert stage.look(1.9) == []
        stage.look(TICK_S, "sampler-0")
    hangs = stage.look(TIMES_LONGEST * 1.9 - 0.5)
    assert bool(hangs) != auto
    assert stage.look(3)


def test_a_single_stall_does_not_switch_the_watchdog_off() -> None:
    stage = Stage(auto=True)
    stage.begin("sampler-0", Doing.RESET)
    for seconds in (9.0, 80.0, 700.0):
        assert stage.look(seconds) == []
        assert stage.look(TICK_S, "sampler-0") == []
    (hang,) = stage.look(MOST_S + 1)
    assert hang.seconds == pytest.approx(MOST_S, abs=1)


def test_a_word_that_means_nothing_counts_as_other() -> None:
    arena = Arena.create(control_blocks(1))
    try:
        control = Control(arena)
        control.samplers["doing"] = 2**40
        assert signs_of_life(control)["sampler-0"].doing is Doing.OTHER
    finally:
        arena.close()
