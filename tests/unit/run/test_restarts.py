"""When processes are started: once their fork server is ready, and again after they have ended."""

from __future__ import annotations

from typing import Any

import pytest

from spreeze.run.processes.pool import Observer
from spreeze.run.restarts import DELAYS_S, EXCEPTION_COST, KILL_COST, StartQueue

PAGE, TRACKER = (Observer(name, "module:main", b"", ()) for name in ("dashboard", "tracker"))
PER_MINUTE = 20


class Stage:
    """A queue, fork servers that are ready when the test says so, and a clock that it moves."""

    def __init__(self) -> None:
        self.seconds, self.is_ready = 100.0, True
        self.queue = StartQueue(PER_MINUTE, lambda: self.seconds)

    def ready(self, with_torch: bool) -> bool:
        return self.is_ready

    def due(self) -> list[Any]:
        return self.queue.pop_due(self)  # type: ignore[arg-type]

    def end(self, task: Observer = PAGE, cost: int = KILL_COST, progressed: bool = False) -> bool:
        return self.queue.add_restart(task, cost, progressed)


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_a_process_starts_when_its_server_is_ready_and_only_once(stage: Stage) -> None:
    stage.is_ready = False
    stage.queue.add(PAGE)
    assert stage.due() == []
    stage.is_ready = True
    assert stage.due() == [PAGE]
    assert stage.due() == []


@pytest.mark.fault("F03")
def test_without_progress_each_restart_comes_later_until_the_process_is_given_up(
    stage: Stage,
) -> None:
    for delay_s in DELAYS_S:
        assert stage.end()
        if delay_s:
            stage.seconds += delay_s - 0.01
            assert stage.due() == []
            stage.seconds += 0.02
        assert stage.due() == [PAGE]
    assert not stage.end()
    assert stage.due() == []
    assert stage.queue.exits["dashboard"] == len(DELAYS_S) + 1


def test_the_ends_of_one_process_do_not_delay_another(stage: Stage) -> None:
    for _ in range(3):
        stage.end()
        stage.seconds += max(DELAYS_S)
        assert stage.due() == [PAGE]
    stage.end()
    stage.end(TRACKER)
    assert stage.due() == [TRACKER]


def test_after_progress_a_process_starts_at_once_and_its_delays_begin_anew(stage: Stage) -> None:
    for _ in DELAYS_S:
        assert stage.end()
    assert stage.end(progressed=True)
    stage.due()
    assert stage.end()
    assert stage.due() == [PAGE], "the first delay is none"


@pytest.mark.fault("F01")
def test_a_kill_every_three_seconds_for_a_day_ends_nothing(stage: Stage) -> None:
    for _ in range(24 * 60 * 60 // 3):
        stage.seconds += 60 / PER_MINUTE
        assert stage.end(progressed=True)
        assert stage.due() == [PAGE]


@pytest.mark.fault("F04")
@pytest.mark.parametrize("cost", [KILL_COST, EXCEPTION_COST])
def test_a_process_that_ends_faster_than_its_budget_refills_is_given_up(
    stage: Stage, cost: int
) -> None:
    for _ in range(PER_MINUTE // cost):
        assert stage.end(cost=cost, progressed=True)
    assert not stage.end(cost=cost, progressed=True)


@pytest.mark.fault("F03")
def test_an_exception_a_minute_is_allowed_and_one_every_ten_seconds_is_not(stage: Stage) -> None:
    for _ in range(24 * 60):
        stage.seconds += 60
        assert stage.end(cost=EXCEPTION_COST, progressed=True)

    def allowed() -> bool:
        stage.seconds += 10
        return stage.end(cost=EXCEPTION_COST, progressed=True)

    assert not all(allowed() for _ in range(60))
