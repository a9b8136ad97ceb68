"""Every fault point of the source, in every way it can fail, in real runs.

A fault happens when the file that marks it as done is removed, so this test decides the order. Faults in roles: the
run goes on. Faults in the supervisor or a fork server may end the run: nothing is left, and a resume works.
"""

from __future__ import annotations

import ast
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable
from itertools import chain, zip_longest
from pathlib import Path

import psutil
import pytest

import spreeze
from user_runs import gone_within, learning, read, training, wait_for

LANES = {
    "learner": ("checkpoint", "learner", "replay", "weights"),
    "sampler": ("sampler",),
    "evaluator": ("evaluator",),
    "visualizer": ("visualizer",),
    "supervisor": (
        *("supervisor", "forkserver", "status", "summary", "tensorboard", "log", "metrics"),
        "role",  # a process that starts; which one decides what happens
    ),
}
"""Which process passes a point, by the first part of its name. One fault per lane happens at a time."""
FILES = ("checkpoint", "replay", "status", "summary", "tensorboard", "log", "metrics")
"""Points where something is written: only there a disk can be full."""
MAY_END = {
    "kill": ("supervisor", "forkserver", "status", "summary", "tensorboard", "log", "metrics"),
    "raise": ("supervisor", "forkserver"),
}
"""Where a fault may end the run: it hits the process that holds the run together."""
AT_A_START = ("supervisor", "forkserver", "role")
"""Points that are passed when a process ends or starts: this test kills a sampler to get there."""
KNOBS = {
    "sampler.processes": 2,
    "visualizer.draw": "on",
    "replay.capacity": 20_000,
    "checkpoint.every-s": 0.3,
    "checkpoint.replay-mb": 1,
    "evaluator.every-s": 0.1,
    "limits.restarts-per-minute": 1000,
}
FLAGS = (
    *(f"--{name}={value}" for name, value in KNOBS.items()),
    "--no-dashboard",
    "--learner.no-compile",
)
LIMIT_S = 30.0


def points() -> list[str]:
    """The names of all fault points in the source."""
    found = set()
    for path in Path(spreeze.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "fault_point":
                found.add(ast.literal_eval(node.args[0]))
    return sorted(found)


def faults_of(lane: str) -> list[str]:
    """What can go wrong in a process: `checkpoint.linked:kill`."""
    mine = [point for point in points() if point.partition(".")[0] in LANES[lane]]
    return [
        f"{point}:{mode}"
        for point in mine
        for mode in ("delay", "raise", "kill", "full")
        if mode != "full" or point.partition(".")[0] in FILES
    ]


def may_end(fault: str) -> bool:
    point, _, mode = fault.partition(":")
    return point.partition(".")[0] in MAY_END.get(mode, ())


def test_every_point_has_a_lane() -> None:
    known = set(chain.from_iterable(LANES.values()))
    assert {point.partition(".")[0] for point in points()} <= known


class Harm:
    """A run, started again from its checkpoint whenever it ends, and the faults that happen to it."""

    def __init__(self, folder: Path, faults: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.marks = folder, folder / "faults"
        self.marks.mkdir()
        for fault in faults:
            (self.marks / fault).touch()
        monkeypatch.setenv("SPREEZE_FAULTS", ",".join(faults))
        monkeypatch.setenv("SPREEZE_FAULTS_FOLDER", str(self.marks))
        self.attempt, self.counted = 0, 0
        self.resume: tuple[str, ...] = ()
        self.family: dict[str, int] = {}

    @contextlib.contextmanager
    def run(self):  # type: ignore[no-untyped-def]
        """The run, learning; afterwards nothing is left of it and it can be resumed."""
        self.attempt += 1
        self.here, self.counted = self.folder / str(self.attempt), 0
        self.here.mkdir()
        flags = (*FLAGS, *self.resume)
        with (
            (self.here / "output.txt").open("w") as output,
            training(self.here, "noisy:NoisyEnv", *flags, output=output) as self.process,
        ):
            wait_for((self.here / "runs" / "r" / "checkpoints" / "last").exists, LIMIT_S)
            learning(self.here)
            yield
            with contextlib.suppress(psutil.NoSuchProcess):
                for child in psutil.Process(self.process.pid).children(recursive=True):
                    self.family[str(child.pid)] = child.pid
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGTERM)
            self.process.wait(LIMIT_S)
        gone_within(self.family, 5.0)
        path = self.here / "runs" / "r"
        spreeze.load(path)  # refuses a checkpoint that is not whole
        self.resume = ("--resume", str(path))

    @property
    def said(self) -> str:
        return (self.here / "output.txt").read_text()[-3000:]

    def happen(self, *faults: str) -> bool:
        """Let faults happen at once, then wait until learning goes on; False if the run has ended."""
        self.family = {
            str(child.pid): child.pid
            for child in psutil.Process(self.process.pid).children(recursive=True)
        }
        for fault in faults:
            (self.marks / fault).unlink()
        if any(fault.partition(".")[0] in AT_A_START for fault in faults):
            wait_for(self.kill_a_sampler)
        at_the_end = any(fault.startswith("summary.") for fault in faults)
        if at_the_end:
            self.process.send_signal(signal.SIGTERM)
        for fault in faults:
            self.wait((self.marks / fault).exists, fault)
        self.counted += sum(not fault.endswith(":delay") for fault in faults)
        if at_the_end or any(map(may_end, faults)):  # to work on for a moment is not to survive
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(LIMIT_S if at_the_end else 3)
        before = self.updates()
        self.wait(lambda: self.ended or self.updates() > before + 20, ", ".join(faults))
        if self.ended:
            assert at_the_end or any(map(may_end, faults)), f"{faults} ended the run:\n{self.said}"
        return not self.ended

    def kill_a_sampler(self) -> bool:
        try:
            os.kill(read(self.here, "status")["pids"]["sampler-0"], signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def updates(self) -> int:
        try:
            return int(read(self.here, "status")["progress"]["updates"])
        except (OSError, ValueError):
            return 0

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        try:
            wait_for(condition, LIMIT_S)
        except AssertionError:
            raise AssertionError(f"after {what}: no progress\n{self.said}") from None


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
@pytest.mark.fault("F14")
@pytest.mark.fault("F28")
@pytest.mark.fault("F61")
def test_a_run_goes_on_after_any_fault_in_a_role(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_lane = [faults_of(lane) for lane in LANES if lane != "supervisor"]
    assert all(by_lane), "every role has fault points"
    harm = Harm(tmp_path, list(chain.from_iterable(by_lane)), monkeypatch)
    with harm.run():
        for faults in zip_longest(*by_lane):
            assert harm.happen(*(fault for fault in faults if fault))
    assert harm.process.returncode == 0, harm.said
    counts = read(harm.here, "summary")["faults"]
    assert sum(counts.values()) >= harm.counted, counts
    assert counts["killed"] >= sum(f.endswith(":kill") for f in chain.from_iterable(by_lane))


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
@pytest.mark.fault("F07")
@pytest.mark.fault("F14")
def test_after_any_fault_in_the_supervisor_the_run_goes_on_or_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = faults_of("supervisor")
    assert faults
    harm, left = Harm(tmp_path, faults, monkeypatch), list(faults)
    while left:
        with harm.run():
            while left and harm.happen(left.pop(0)):
                pass
    if harm.process.returncode != 0:
        with harm.run():
            pass
    assert harm.process.returncode == 0, harm.said
    assert {path.name for path in harm.marks.iterdir()} == set(faults)
