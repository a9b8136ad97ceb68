"""When processes are started: once their fork server is ready, and again after they have ended."""

from __future__ import annotations

from typing import Any

import pytest

from spreeze.run.processes.pool import Observer
from spreeze.run.restarts import DELAYS_S, StartQueue

PAGE, TRACKER = (Observer(name, "module:main", b"", ()) for name in ("dashboard", "tracker"))


class Stage:
    """A queue, fork servers that are ready when the test says so, and a clock that it moves."""

    def __init__(self) -> None:
        self.seconds, self.is_ready = 100.0, True
        self.queue = StartQueue(20, lambda: self.seconds)

    def ready(self, with_torch: bool) -> bool:
        return self.is_ready

    def due(self) -> list[Any]:
        return self.queue.pop_due(self)  # type: ignore[arg-type]


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


def test_each_restart_comes_later_until_the_process_is_given_up(stage: Stage) -> None:
    for delay_s in DELAYS_S:
        assert stage.queue.add_restart(PAGE, 1, progressed=False)
        if delay_s:
            stage.seconds += delay_s - 0.01
            assert stage.due() == []
            stage.seconds += 0.02
        assert stage.due() == [PAGE]
    assert not stage.queue.add_restart(PAGE, 1, progressed=False)
    assert stage.due() == []
    assert stage.queue.exits["dashboard"] == len(DELAYS_S) + 1


def test_the_exits_of_one_process_do_not_delay_another(stage: Stage) -> None:
    for _ in range(3):
        stage.queue.add_restart(PAGE, 1, progressed=False)
        stage.seconds += max(DELAYS_S)
        assert stage.due() == [PAGE]
    stage.queue.add_restart(PAGE, 1, progressed=False)
    stage.queue.add_restart(TRACKER, 1, progressed=False)
    assert stage.due() == [TRACKER]
