"""A long run under constant faults, and its verdict: what grows, what was learned, what is left behind.

`bench/soak.py` is the command; `tests/fault/test_soak.py` is the two-minute form.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from spreeze.testing import EnvFault, FaultEnv
from user_runs import learning, read, still_there, training, wait_for

KILL_EVERY_S, HANG_EVERY_S, SAMPLE_EVERY_S = 2.0, 30.0, 1.0
TARGET = -1.0
"""Mean return to reach. Without faults about -0.3 is reached in half a minute."""
HANG_FILE = "SPREEZE_SOAK_HANG"
MIB = 2**20


class SoakEnv(FaultEnv):
    """Gives NaN in one of a thousand steps, and hangs for an hour when the soak asks one of them to."""

    def __init__(self) -> None:
        super().__init__(fault=EnvFault.NAN, probability=0.001)
        self.hang = os.environ[HANG_FILE]

    def step(self, action: Any) -> Any:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.hang)  # the first one takes it
            time.sleep(3600)
        return super().step(action)


# --- what a run holds


@dataclass
class Samples:
    """What the processes of a run held, once a second: numbers by name, such as `supervisor memory`."""

    times: list[float] = field(default_factory=list)
    values: dict[str, list[float]] = field(default_factory=dict)
    pids: dict[str, int] = field(default_factory=dict)
    """Every process that was seen."""

    def take(self, run: psutil.Process, time_s: float) -> None:
        """Look at all processes of the run."""
        now: Counter[str] = Counter()
        for process in (run, *run.children(recursive=True)):
            with contextlib.suppress(psutil.Error, OSError):
                self.pids[f"{process.pid}"] = process.pid
                role = _role(process, run)
                now[f"{role} memory"] += _own_bytes(process.pid)
                now[f"{role} files"] += process.num_fds()
                now[f"{role} threads"] += process.num_threads()
                now["processes"] += 1
        now["/dev/shm entries"] = len(os.listdir("/dev/shm"))
        self.times.append(time_s)
        for name in {*now, *self.values}:
            past = self.values.setdefault(name, [math.nan] * (len(self.times) - 1))
            past.append(float(now[name]) if name in now else math.nan)


def _role(process: psutil.Process, run: psutil.Process) -> str:
    """`supervisor`, `sampler`, ..., from the title of the process."""
    if process == run:
        return "supervisor"
    title = " ".join(process.cmdline()[:1])  # empty if it is ending
    name = title.removeprefix("spreeze ").partition(" ")[0] if "spreeze" in title else "other"
    return "fork server" if name == "fork" else name.partition("-")[0]


def _own_bytes(pid: int) -> int:
    """Memory of a process, its share of what it has in common with others of the run included.

    Without mapped files such as libraries: their share grows when programs outside the run end.
    """
    parts = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines())
    return sum(int(part[1]) * 1024 for part in parts if part[0] in ("Pss_Anon:", "Pss_Shmem:"))


# --- what grows


@dataclass(frozen=True)
class Growth:
    """How much a number grew over the run, by a straight line through it."""

    estimate: float
    at_least: float
    """With 95 % confidence."""
    budget: float

    @property
    def is_fine(self) -> bool:
        """Whether it may be within the budget."""
        return self.at_least <= self.budget


BLOCKS = 12
T_95 = 1.812
"""Student's t for 12 - 2 degrees of freedom, one-sided."""


def growth(times: list[float], values: list[float], budget: float) -> Growth:
    """Least squares over the means of twelve blocks: neighbours in time are alike, blocks hardly."""
    x, y = np.array(times), np.array(values)
    known = np.isfinite(y)
    parts = np.array_split(np.flatnonzero(known), BLOCKS)
    if min(map(len, parts)) == 0:
        return Growth(0.0, -math.inf, budget)
    bx, by = (np.array([series[part].mean() for part in parts]) for series in (x, y))
    slope, start = np.polyfit(bx, by, 1)
    rest = by - (start + slope * bx)
    error = math.sqrt((rest**2).sum() / (BLOCKS - 2) / ((bx - bx.mean()) ** 2).sum())
    span = x[-1] - x[0]
    return Growth(float(slope * span), float((slope - T_95 * error) * span), budget)


def budget_of(name: str, seconds: float) -> float:
    """How much a number may grow: memory a little, for caches that fill; nothing else by a whole one."""
    return 8 * MIB + 20 * MIB * seconds / 3600 if name.endswith("memory") else 1.0


# --- the soak


@dataclass
class Soak:
    """What was done to a run, and what became of it."""

    seconds: float
    kills: Counter[str] = field(default_factory=Counter)
    hangs: int = 0
    samples: Samples = field(default_factory=Samples)
    exit_code: int | None = None
    summary: dict[str, Any] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    error: str = ""

    def growths(self) -> dict[str, Growth]:
        """The growth of each number after the first quarter, in which buffers fill."""
        times = self.samples.times
        first = sum(t < self.seconds / 4 for t in times)
        return {
            name: growth(times[first:], values[first:], budget_of(name, self.seconds))
            for name, values in sorted(self.samples.values.items())
        }

    def problems(self) -> list[str]:
        """What is not as it should be, in words."""
        faults, killed = self.summary.get("faults", {}), sum(self.kills.values())
        counted = {
            "killed": (faults.get("killed", 0), killed),
            # A kill may hit a process that hangs: then it is counted once, as killed.
            "killed or hung": (
                faults.get("killed", 0) + faults.get("hung", 0),
                killed + self.hangs,
            ),
            "hung": (faults.get("hung", 0), self.hangs // 2),
            "bad_numbers": (faults.get("bad_numbers", 0), 1),
        }
        best = self.summary.get("best_return")
        found = [
            f"{name} grew by at least {g.at_least:,.0f}, allowed are {g.budget:,.0f}"
            for name, g in self.growths().items()
            if not g.is_fine
        ]
        found += [
            f"summary.json counts {have} {name}, there were {wanted}"
            for name, (have, wanted) in counted.items()
            if have < 0.9 * wanted - 1
        ]
        if best is None or best < TARGET:
            found.append(f"the best return is {best}, {TARGET} was to be reached")
        if self.exit_code != 0:
            found.append(f"the run ended with exit code {self.exit_code}: {self.error[-2000:]}")
        return found + [f"left behind: {process}" for process in self.left]

    def report(self) -> dict[str, Any]:
        """Everything, for a JSON file."""
        return {
            "seconds": self.seconds,
            "kills": dict(self.kills),
            "hangs": self.hangs,
            "exit_code": self.exit_code,
            "summary": self.summary,
            "growth": {
                name: {key: round(value, 2) for key, value in dataclasses.asdict(g).items()}
                for name, g in self.growths().items()
                if math.isfinite(g.at_least)
            },
            "problems": self.problems(),
        }


def soak(folder: Path, seconds: float, *flags: str) -> Soak:
    """A real run that is harmed from its first update until shortly before its end."""
    result, hang = Soak(seconds), folder / "hang"
    os.environ[HANG_FILE] = str(hang)
    knobs = (
        f"--time {seconds:.0f}s --sampler.processes 2 --replay.capacity 20000 --learner.no-compile"
    )
    knobs += " --checkpoint.every-s 1 --limits.step-s 1 --limits.restarts-per-minute 60"
    said = folder / "output.txt"  # nobody reads a pipe meanwhile
    with (
        said.open("w") as output,
        training(folder, "soaking:SoakEnv", *knobs.split(), *flags, output=output) as process,
    ):
        began = time.monotonic()
        learning(folder)
        run, next_kill_s, next_hang_s, next_sample_s = psutil.Process(process.pid), 0.0, 0.0, 0.0
        while (now := time.monotonic() - began) < seconds - 10 and process.poll() is None:
            if now >= next_sample_s:
                next_sample_s = now + SAMPLE_EVERY_S
                result.samples.take(run, now)
            if now >= next_kill_s:
                next_kill_s = now + KILL_EVERY_S
                _kill_one(folder, result)
            if now >= next_hang_s:
                next_hang_s = now + HANG_EVERY_S
                result.hangs += not hang.exists()
                hang.touch()
            time.sleep(0.05)
        result.exit_code = process.wait(timeout=60)
    result.error = said.read_text()
    with contextlib.suppress(FileNotFoundError):
        result.summary = read(folder, "summary")
    with contextlib.suppress(AssertionError):
        wait_for(lambda: not still_there(result.samples.pids), 5.0)
    result.left = still_there(result.samples.pids)
    return result


def _kill_one(folder: Path, result: Soak) -> None:
    """Kill a role, the learner included, but not the supervisor."""
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        pids = {n: p for n, p in read(folder, "status")["pids"].items() if n != "supervisor"}
        name = random.choice(sorted(pids))
        os.kill(pids[name], signal.SIGKILL)
        result.kills[name] += 1
