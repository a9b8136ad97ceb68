"""Traces: what processes record, and the file that viewers read."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from spreeze.store import trace
from spreeze.store.rundir import RunDir
from spreeze.store.trace import Activity, Tracer, join_traces, read_trace


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The monotonic clock in nanoseconds, which the test moves."""
    now = [5_000_000_000]
    monkeypatch.setattr(trace.time, "monotonic_ns", lambda: now[0])
    return now


def now(make: Callable[[], None]) -> None:
    """Write at once; a full disk is somebody else's business."""
    with suppress(OSError):
        make()


def record(run: RunDir, clock: list[int], process: str, *did: tuple[Activity, float]) -> None:
    """Let a process do one thing after the other, each for so many milliseconds."""
    seconds = sum(milliseconds for _, milliseconds in did) / 1000
    tracer = Tracer(run.trace_parts / f"{process}.npy", seconds, lambda: True, now)
    for activity, milliseconds in did:
        tracer.mark(activity)
        clock[0] += int(1e6 * milliseconds)
    tracer.mark(Activity.OTHER)


def test_the_file_holds_what_each_process_did_and_when(tmp_path: Path, clock: list[int]) -> None:
    run = RunDir(tmp_path)
    acts = [(Activity.ACT, 1.0), (Activity.SIMULATE, 3.0)]
    record(run, clock, "sampler-10", *acts)
    record(run, clock, "sampler-2", *acts, (Activity.SIMULATE, 4.0))
    record(run, clock, "learner-0", (Activity.UPDATE, 2.0))
    shares = join_traces(run)
    assert shares["sampler-10"] == {"act": 25.0, "simulate": 75.0}
    spans = read_trace(run.trace)
    assert list(spans) == ["learner-0", "sampler-2", "sampler-10"]
    # What goes on without a change is one event.
    assert spans["sampler-2"] == [
        (pytest.approx(5.004), pytest.approx(0.001), Activity.ACT),
        (pytest.approx(5.005), pytest.approx(0.007), Activity.SIMULATE),
    ]
    assert not run.trace_parts.exists()


def test_viewers_get_the_keys_of_the_trace_event_format(tmp_path: Path, clock: list[int]) -> None:
    run = RunDir(tmp_path)
    record(run, clock, "evaluator-0", (Activity.EVALUATE, 2.0))
    join_traces(run)
    events = json.loads(gzip.decompress(run.trace.read_bytes()))["traceEvents"]
    (event,) = [event for event in events if event.get("ph") == "X"]
    assert event["name"] == "evaluate"
    assert event.keys() == {"ph", "pid", "tid", "name", "ts", "dur"}
    titles = {event["name"] for event in events if event.get("ph") == "M"}
    assert titles == {"process_name", "process_sort_index"}


def test_recording_begins_when_it_is_due_and_ends_in_time(tmp_path: Path, clock: list[int]) -> None:
    run, due = RunDir(tmp_path), [False]
    tracer = Tracer(run.trace_parts / "sampler-0.npy", 0.010, lambda: due[0], now)
    tracer.mark(Activity.ACT)
    clock[0] += 100_000_000
    tracer.mark(Activity.SIMULATE)
    due[0] = True
    clock[0] += 1_000_000
    tracer.mark(Activity.WAIT)
    for _ in range(20):
        clock[0] += 1_000_000
        tracer.mark(Activity.ACT)
        tracer.mark(Activity.WAIT)
    join_traces(run)
    (spans,) = read_trace(run.trace).values()
    assert spans[0] == (pytest.approx(5.101), pytest.approx(0.001), Activity.WAIT)
    assert spans[-1][0] + spans[-1][1] == pytest.approx(5.111)


def test_a_process_that_ends_early_leaves_what_it_has(tmp_path: Path, clock: list[int]) -> None:
    run = RunDir(tmp_path)
    tracer = Tracer(run.trace_parts / "sampler-0.npy", 60.0, lambda: True, now)
    tracer.mark(Activity.ACT)
    clock[0] += 3_000_000
    tracer.close()
    assert join_traces(run) == {"sampler-0": {"act": 100.0}}
    never = Tracer(run.trace_parts / "sampler-1.npy", 60.0, lambda: False, now)
    never.mark(Activity.ACT)
    never.close()
    assert join_traces(run) == {}


def test_memory_is_bounded(
    tmp_path: Path, clock: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "MAX_MOMENTS", 10)
    run = RunDir(tmp_path)
    tracer = Tracer(run.trace_parts / "sampler-0.npy", 60.0, lambda: True, now)
    for _ in range(100):
        for activity in (Activity.ACT, Activity.SIMULATE):
            clock[0] += 1000
            tracer.mark(activity)
    join_traces(run)
    assert len(read_trace(run.trace)["sampler-0"]) == 9  # between ten moments


def test_a_disk_that_refuses_a_part_costs_that_part(tmp_path: Path, clock: list[int]) -> None:
    (tmp_path / "trace").write_text("a file where the folder should be")
    tracer = Tracer(tmp_path / "trace" / "sampler-0.npy", 60.0, lambda: True, now)
    tracer.mark(Activity.ACT)
    tracer.close()
    tracer.mark(Activity.ACT)
