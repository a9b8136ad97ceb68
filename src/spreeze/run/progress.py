"""Progress: what a run is doing, read from the control wire; the source of screen, status and summary."""

from __future__ import annotations

import contextlib
import time
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import psutil

from spreeze.machine.gpu_meter import GpuMeter
from spreeze.rows import PLACEMENTS
from spreeze.run.controller import Decision
from spreeze.settings.config import Config, resolved
from spreeze.store.metrics import Rate, Recorder, finite
from spreeze.wires.control import Control

COMPILED = {1: True, 2: False, 3: False}
"""By the learner's word; it is 0 as long as nothing is known."""
COMPILE_PROBLEMS = {
    2: "no C++ compiler: updates run at about half speed (Debian: apt install g++)",
    3: "the update could not be compiled and runs at about half speed; see logs/compiler.log",
}


@dataclass
class Snapshot:
    """One look at a run."""

    time_s: float = 0.0
    env_steps: int = 0
    updates: int = 0
    episodes: int = 0
    rollout_return: float | None = None
    eval_return: float | None = None
    best_return: float | None = None
    sample_hz: float = 0.0
    update_hz: float = 0.0
    update_frame_hz: float = 0.0
    policy_lag: float = 0.0
    replay_rows: int = 0
    cpu_percent: dict[str, float] = field(default_factory=dict)
    gpu_percent: float | None = None
    stall_percent: dict[str, float] = field(default_factory=dict)
    bottleneck: str = "starting"
    decision: str | None = None
    """What the controller did last."""
    warnings: list[str] = field(default_factory=list)
    evaluations: list[tuple[float, float]] = field(default_factory=list)
    """(time, mean return) of every evaluation so far."""
    page: str = ""
    """Address of the live page; empty without one."""


class Progress:
    """Watches one run through its control words."""

    def __init__(
        self, config: Config, control: Control, started_s: float, recorder: Recorder
    ) -> None:
        """Begin to count."""
        self.config = config
        self.snapshot = Snapshot()
        self.pids: dict[str, int] = {}
        self.restarts = 0
        self.notes: list[str] = []
        self._control = control
        self._started_s = started_s
        self._recorder = recorder
        self._sample_rate, self._update_rate = Rate(), Rate()
        self._stalls = {name: Rate() for name in ("samplers", "learner", "evaluator", "visualizer")}
        self._waited_s = 0.0
        self._all_sampling_s: float | None = None  # when every sampler had made a step
        self._sampler_waits = control.samplers["waited_s"].copy()
        self._frame_rate = Rate()
        self._arrivals: deque[tuple[float, int]] = deque(maxlen=100_000)
        """Time and env steps, each second."""
        self._beats: dict[str, tuple[int, float]] = {}
        self._processes: dict[int, psutil.Process] = {}
        self._gpu = GpuMeter(config.devices)
        self._lags: list[float] = []
        self._ages: list[float] = []
        self._looked_at_use_s = 0.0
        self._first: tuple[float, int, int, int] | None = None
        """Time, env steps, updates and rows learned from when updates began: rates are over what came after."""
        self._reached_s: float | None = None

    @property
    def elapsed_s(self) -> float:
        """Seconds since the command began."""
        return time.monotonic() - self._started_s

    @property
    def batch_size(self) -> int:
        """Transitions per update, as the learner really has them."""
        return int(self._control.learner["batch_size"]) or resolved(self.config.learner.batch_size)

    @property
    def memory_fallback_note(self) -> str | None:
        """What the learner does otherwise than planned, for want of GPU memory."""
        learner = self._control.learner
        if not learner["out_of_memory"]:
            return None
        place = PLACEMENTS[int(learner["replay_placement"])]
        return f"out of GPU memory: went on with replay.placement {place} and batches of {self.batch_size}"

    def note(self, text: str) -> None:
        """Something happened that the user should know, now and when he looks back."""
        self.notes.append(text)
        snap = self.snapshot
        self._recorder.record(
            time_s=self.elapsed_s, env_steps=snap.env_steps, updates=snap.updates, event=text
        )

    def look(self) -> Snapshot:
        """Read the words anew."""
        control, snap = self._control, self.snapshot
        now = time.monotonic()
        samplers, learner, evaluator = control.samplers, control.learner, control.evaluator
        snap.time_s = self.elapsed_s
        snap.env_steps, snap.updates = control.env_steps, int(learner["updates"])
        snap.episodes = int(samplers["episodes"].sum())
        playing = samplers[samplers["episodes"] > 0]
        snap.rollout_return = float(playing["return_mean"].mean()) if len(playing) else None
        snap.sample_hz = self._sample_rate.update(snap.env_steps, now)
        if learner["first_update_s"] > 0:  # before that they are those of a run that is resumed
            snap.update_hz = self._update_rate.update(snap.updates, now)
        snap.update_frame_hz = snap.update_hz * self.batch_size
        snap.policy_lag, snap.replay_rows = (
            float(learner["policy_lag"]),
            int(learner["replay_rows"]),
        )
        if evaluator["evaluations"] > len(snap.evaluations):
            snap.eval_return = float(evaluator["return_mean"])
            snap.best_return = finite(float(evaluator["best_return"]))
            missed = int(evaluator["evaluations"]) - len(snap.evaluations)
            snap.evaluations += [(snap.time_s, snap.eval_return)] * missed
        # Samplers that are switched off wait for nobody.
        idle = samplers["waited_s"] - self._sampler_waits
        self._sampler_waits = samplers["waited_s"].copy()
        self._waited_s += float(idle[: max(1, int(control.supervisor["active_samplers"]))].mean())
        waited = {
            "samplers": self._waited_s,
            "learner": float(learner["waited_s"]),
            "evaluator": float(evaluator["waited_s"]),
            "visualizer": float(control.visualizer["waited_s"]),
        }
        snap.stall_percent = {
            role: min(100.0, 100 * rate.update(waited[role], now))
            for role, rate in self._stalls.items()
        }
        if self._all_sampling_s is None and (samplers["env_steps"] > 0).all():
            self._all_sampling_s = snap.time_s
        if self._first is None and learner["first_update_s"] > 0:
            counts = (snap.env_steps, snap.updates, int(learner["rows_learned"]))
            self._first = (snap.time_s, *counts)
        if self._reached_s is None and evaluator["target_time_s"] > 0:
            serial = self.config.serial  # where roles count time in env steps
            self._reached_s = snap.time_s if serial else float(evaluator["target_time_s"])
        if now - self._looked_at_use_s >= 1.0:
            self._looked_at_use_s = now
            self._arrivals.append((snap.time_s, snap.env_steps))
            self._measure_use()
            if learner["first_update_s"] > 0:
                self._lags.append(snap.policy_lag)
                self._ages.append(float(learner["exchange_age"]))
            self._record()
        snap.bottleneck = self._bottleneck()
        snap.warnings = self._warnings(now)
        return snap

    def decided(self, decision: Decision) -> None:
        """Write down what the controller has tried, and what it gave."""
        snap, knobs = self.snapshot, self._control.supervisor
        snap.decision = str(decision)
        self._recorder.record(
            time_s=snap.time_s,
            env_steps=snap.env_steps,
            updates=snap.updates,
            **{
                "tuner/seen": decision.seen,
                "tuner/change": decision.change,
                "tuner/gain": decision.gain,
                "tuner/kept": int(decision.kept),
                "tuner/active_samplers": int(knobs["active_samplers"]),
                "tuner/batch_size": int(knobs["batch_size"]),
                "tuner/min_updates_per_step": float(knobs["min_updates_per_step"]),
            },
        )

    def summary(self, state: str, reason: str) -> dict[str, Any]:
        """The contents of summary.json."""
        snap, config, control = self.look(), self.config, self._control
        learned = int(control.learner["rows_learned"])
        began_s, *first = self._first or (snap.time_s, snap.env_steps, snap.updates, learned)
        learning_s = max(snap.time_s - began_s, 1.0)
        counts = (snap.env_steps, snap.updates, learned)
        rates = [
            round((now - then) / learning_s, 1) for now, then in zip(counts, first, strict=True)
        ]
        values = {
            "env": config.env,
            "algo": config.algo,
            "seed": config.seed,
            "state": state,
            "reason": reason,
            "wall_s": round(snap.time_s, 3),
            "time_to_target_s": self._reached_s and round(self._reached_s, 3),
            "all_sampling_s": self._all_sampling_s and round(self._all_sampling_s, 3),
            "first_update_s": round(float(control.learner["first_update_s"]), 3) or None,
            "env_steps": snap.env_steps,
            "updates": snap.updates,
            "batch_size": self.batch_size,
            "sampler_processes": config.sampler.processes,
            "envs_per_process": config.sampler.envs_per_process,
            **dict(zip(("sample_hz", "update_hz", "update_frame_hz"), rates, strict=True)),
            "best_return": snap.best_return,
            "final_return": snap.eval_return,
            "policy_lag_mean": round(sum(self._lags) / len(self._lags), 2) if self._lags else None,
            "exchange_age_mean": round(sum(self._ages) / len(self._ages), 2)
            if len(config.devices) > 1 and self._ages
            else None,
            "updates_per_step": round(snap.updates / max(snap.env_steps, 1), 6),
            "rows_lost": int(control.learner["rows_lost"]),
            "steps_rejected": int(control.samplers["rejected"].sum()),
            "restarts": self.restarts,
            "device": config.device,
            "compiled": COMPILED.get(int(control.learner["compiled"])),
            "replay_placement": PLACEMENTS[int(control.learner["replay_placement"])]
            if self._first
            else config.replay.placement,
            "out_of_memory": self.memory_fallback_note,
        }
        return {name: finite(value) for name, value in values.items()}

    def status(self, state: str) -> dict[str, Any]:
        """The contents of status.json."""
        snap = self.snapshot
        progress = {
            name: finite(getattr(snap, name))
            for name in (
                "time_s",
                "env_steps",
                "updates",
                "sample_hz",
                "update_hz",
                "eval_return",
                "best_return",
            )
        }
        return {
            "state": state,
            "pids": self.pids,
            "progress": progress | {"bottleneck": snap.bottleneck},
            "warnings": snap.warnings,
        }

    def _measure_use(self) -> None:
        """CPU per role, GPU of the learner."""
        use: dict[str, float] = {}
        for name, pid in self.pids.items():
            with contextlib.suppress(psutil.Error):
                role, processes = name.split("-")[0], [psutil.Process(pid)]
                if role == "evaluator":
                    processes += processes[0].children()  # its helpers
                for process in processes:
                    known = self._processes.setdefault(process.pid, process)
                    use[role] = use.get(role, 0.0) + known.cpu_percent()
        self.snapshot.cpu_percent = use
        self.snapshot.gpu_percent = self._gpu.percent()

    def _record(self) -> None:
        snap = self.snapshot
        values: dict[str, Any] = {
            "perf/sample_hz": snap.sample_hz,
            "perf/update_hz": snap.update_hz,
            "perf/update_frame_hz": snap.update_frame_hz,
            "perf/cpu_percent": sum(snap.cpu_percent.values()),
            "perf/gpu_percent": snap.gpu_percent,
            "perf/frames_hz": self._frame_rate.update(float(self._control.visualizer["frames"])),
            "replay/age_s": self._replay_age(),
        }
        values |= {f"perf/cpu_percent/{role}": use for role, use in snap.cpu_percent.items()}
        values |= {f"async/stall_percent/{role}": p for role, p in snap.stall_percent.items()}
        self._recorder.record(
            time_s=snap.time_s,
            env_steps=snap.env_steps,
            updates=snap.updates,
            **{name: value for name, value in values.items() if value is not None},
        )

    def _replay_age(self) -> float | None:
        """Seconds since the middle one of the stored transitions came."""
        snap = self.snapshot
        middle = snap.env_steps - snap.replay_rows // 2
        if not snap.replay_rows:
            return None
        index = bisect_left(self._arrivals, middle, key=lambda arrival: arrival[1])
        return snap.time_s - self._arrivals[min(index, len(self._arrivals) - 1)][0]

    def _bottleneck(self) -> str:
        """Which role limits the run, in words."""
        snap = self.snapshot
        if not self._control.learner["first_update_s"] > 0:
            return "starting: collecting the first transitions" if snap.env_steps else "starting"
        samplers, learner = snap.stall_percent["samplers"], snap.stall_percent["learner"]
        if learner > max(samplers, 10):
            return f"samplers (the learner waits {learner:.0f} % of its time)"
        if samplers > 10:
            return f"learner (the samplers wait {samplers:.0f} % of their time)"
        where = "GPU" if self.config.device.startswith("cuda") else "CPU"
        return f"learner's {where} and the samplers' cores: nobody waits"

    def _dropped(self) -> list[str]:
        """What was not learned from, or not judged."""
        control, out = self._control, []
        if lost := int(control.learner["rows_lost"]):
            out.append(f"{lost} transitions were overwritten before the learner read them")
        if rejected := int(control.samplers["rejected"].sum()):
            out.append(
                f"{rejected} env steps gave NaN or infinity; they were dropped and their episodes cut"
            )
        if broken := int(control.evaluator["broken_episodes"]):
            out.append(
                f"{broken} evaluation episodes gave NaN or infinity and do not count; "
                "no policy becomes the best one by an evaluation that had any"
            )
        return out

    def _warnings(self, now: float) -> list[str]:
        control, out = self._control, [*self.notes, *self._dropped()]
        if control.learner["diverged"]:
            out.append(
                "the networks have diverged to NaN; the last good policy stays. Lower --algo.lr"
            )
        if problem := self.memory_fallback_note:
            out.append(problem)
        if control.learner["detour"]:
            out.append(
                "the two GPUs cannot reach each other's memory: copies go through the host's, slower"
            )
        if problem := COMPILE_PROBLEMS.get(int(control.learner["compiled"])):
            out.append(problem)
        if failed := int(control.learner["saves_failed"] + control.evaluator["saves_failed"]):
            out.append(f"{failed} checkpoints could not be written; is the disk full? See logs/")
        began = float(control.learner["first_update_s"])
        if began > 0 and not self.snapshot.evaluations and self.elapsed_s - began > 120:
            out.append(
                "no evaluation has ended in two minutes; if episodes have no end, set a TimeLimit"
            )
        words = {f"sampler-{i}": row for i, row in enumerate(control.samplers)}
        words |= {"learner-0": control.learner, "evaluator-0": control.evaluator}
        for name, row in words.items():
            beats, since = self._beats.get(name, (-1, now))
            if int(row["beats"]) != beats:
                beats, since = int(row["beats"]), now
            self._beats[name] = (beats, since)
            if now - since > 30 and name in self.pids:
                out.append(f"{name} has made no progress for {now - since:.0f} s")
        return out
