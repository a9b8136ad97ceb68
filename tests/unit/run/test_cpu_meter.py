"""Whose CPU time is whose."""

from __future__ import annotations

import contextlib
import os
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from spreeze.run import cpu_meter
from spreeze.run.cpu_meter import CpuMeter


class Fake:
    """A process of the test; it uses `speed` cores from `began_s` on."""

    def __init__(self, pid: int, parent: int, speed: float, began_s: float = 0.0) -> None:
        self.pid, self.parent, self.speed, self.began_s = pid, parent, speed, began_s
        self.now_s, self.gone = 0.0, False
        self.family: list[Fake] = []

    def ppid(self) -> int:
        return self.parent

    def oneshot(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def cpu_times(self) -> Any:
        if self.gone:
            raise psutil.NoSuchProcess(self.pid)
        used = self.speed * (self.now_s - self.began_s)
        return SimpleNamespace(user=used / 2, system=used / 2)

    def children(self, recursive: bool) -> list[Fake]:
        assert recursive
        return [child for child in self.family if child.began_s <= self.now_s]


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Measures a family of fakes on two CPUs, which are busy for `busy_s` seconds."""
    made = SimpleNamespace(run=Fake(1, 0, 0.01), busy_s=0.0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3})
    fakes = SimpleNamespace(Process=lambda: made.run, Error=psutil.Error)
    monkeypatch.setattr(cpu_meter, "psutil", fakes)
    monkeypatch.setattr(cpu_meter, "_busy_s", lambda cpus: made.busy_s)
    meter = CpuMeter()

    def measure(now_s: float, pids: dict[str, int]) -> Any:
        for process in (made.run, *made.run.family):
            process.now_s = now_s
        return meter.measure({"supervisor": 1, **pids}, now_s)

    made.measure = measure
    return made


def test_a_process_counts_for_the_role_that_has_started_it(meter: Any) -> None:
    meter.run.family = [
        Fake(2, 1, 0.0),  # a fork server
        Fake(3, 2, 0.9),
        Fake(4, 2, 0.3),
        Fake(5, 4, 0.2),  # a simulator that a sampler has started
        Fake(6, 2, 0.4, began_s=2.0),
    ]
    pids = {"learner-0": 3, "sampler-0": 4, "sampler-1": 6}
    assert meter.measure(1.0, pids) is None, "one reading is no rate"
    meter.busy_s = 3.6
    use = meter.measure(3.0, pids)
    assert use.roles == pytest.approx({"supervisor": 0.01, "learner": 0.9, "sampler": 0.7})
    assert use.run == pytest.approx(1.61)
    assert use.others == pytest.approx(1.8 - 1.61), "the CPUs were busy for 3.6 s in 2 s"
    assert (use.cores, use.cpus, use.is_full) == (2, 2, True)
    assert use.metrics()["perf/cpu_percent"] == pytest.approx(161)


def test_a_role_counts_from_its_first_moment(meter: Any) -> None:
    meter.run.family = [Fake(2, 1, 0.8, began_s=0.5)]
    meter.measure(0.0, {})
    assert meter.measure(1.0, {"learner-0": 2}).roles["learner"] == pytest.approx(0.4)
    assert meter.measure(9.0, {"learner-0": 2}).roles["learner"] == pytest.approx(0.8)


def test_processes_that_end_take_nothing_back(meter: Any) -> None:
    worker = Fake(2, 1, 1.0)
    meter.run.family = [worker]
    meter.measure(0.0, {"learner-0": 2})
    meter.measure(1.0, {"learner-0": 2})
    worker.gone = True
    use = meter.measure(2.0, {})
    assert use.roles["learner"] == pytest.approx(0.5)
    assert use.others == 0, "clocks differ a little: never less than none"


def test_the_cpus_of_this_machine_have_been_busy() -> None:
    cpus = sorted(os.sched_getaffinity(0))
    assert 0 < cpu_meter._busy_s(cpus[:1]) <= cpu_meter._busy_s(cpus)
    assert cpu_meter._busy_s([10**6]) == 0
