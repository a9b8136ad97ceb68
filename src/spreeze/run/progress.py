"""Progress: what a run is doing, read from the control wire; the source of screen, status and summary."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from itertools import chain
from typing import Any, NamedTuple

from spreeze.faults import Fault
from spreeze.machine.gpu_meter import GpuMeter
from spreeze.rows import PLACEMENTS
from spreeze.run.bottleneck import Bottleneck, Limit, find_bottleneck
from spreeze.run.controller import Decision
from spreeze.run.cpu_meter import CpuMeter
from spreeze.run.diagnosis import LearningWatch
from spreeze.run.fault_counts import fault_counts
from spreeze.run.outcome import Outcome, RunState
from spreeze.run.replay_age import ReplayAge
from spreeze.run.snapshot import Snapshot
from spreeze.run.start_up import StartUp
from spreeze.run.waiting import Waiting
from spreeze.run.warnings import (
    Heartbeats,
    memory_fallback_note,
    missing_evaluation,
    stuck_roles,
    warnings_from,
)
from spreeze.run.wording import NOISE_LASTS, describe_changes, describe_diagnosis, describe_rates
from spreeze.settings.config import Config, resolved
from spreeze.store.metrics import Mean, Rate, Records, Thinned, finite, record_interval
from spreeze.wires.control import Control

MEASURE_EVERY_S = 1.0
"""How often CPU and GPU use are measured; a line of metrics is written as often, in a long run less often."""
MAX_NOTES, MAX_EVALUATIONS, MAX_EVENT = 200, 4000, 4000


class Counts(NamedTuple):
    """Counters at one moment."""

    time_s: float
    env_steps: int
    updates: int
    rows_learned: int


class Progress:
    """Follows one run through its control wire; `look` brings `snapshot` up to date."""

    def __init__(
        self,
        config: Config,
        control: Control,
        start_up: StartUp,
        recorder: Records,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`start_up` knows when the command started, on `clock`."""
        self.config = config
        self.snapshot, self.restarts = Snapshot(), 0
        self.pids: dict[str, int] = {}
        self.faults: Counter[Fault] = Counter()
        """Faults that the supervisor has seen; `fault_counts` adds those that roles count."""
        self.stop_reason: str | None = None
        """Why the run stopped, if not by itself: the signal, or the error in one line."""
        self.notes: list[str] = []
        """Events that the supervisor reported; shown before the other warnings."""
        self.standing: dict[str, list[str]] = {}  # warnings that hold, by their subject
        self.target_reached_s: float | None = None
        self.more_metrics: Callable[[], dict[str, float]] = dict  # what others add to each record
        self._control = control
        self._start_up, self._clock = start_up, clock
        self._began_s: float | None = None  # when the roles were started
        self._recorder = recorder
        self._sample_rate, self._update_rate, self._frame_rate = Rate(), Rate(), Rate()
        self._waiting, self._replay_age = Waiting(control), ReplayAge()
        self._all_sampling_s: float | None = None  # when every sampler had made a step
        self._noise_lasts = False
        self._learning = LearningWatch(config)
        self._heartbeats, self._cpu, self._gpu = Heartbeats(), CpuMeter(), GpuMeter(config.devices)
        self._lag, self._age = Mean(), Mean()
        self._measured_s = self._recorded_s = -math.inf
        self._evaluations: Thinned[tuple[float, float]] = Thinned(MAX_EVALUATIONS)
        self.snapshot.evaluations = self._evaluations.items
        self._first: Counts | None = None  # at the first update: the summary's rates start there

    @property
    def elapsed_s(self) -> float:
        """Seconds since the command started."""
        return self._clock() - self._start_up.started_s

    @property
    def training_s(self) -> float:
        """Seconds since the roles were started: the earliest moment from which there could be an update."""
        return 0.0 if self._began_s is None else self._clock() - self._began_s

    def begin_training(self) -> None:
        """All roles are started now; later calls change nothing."""
        if self._began_s is None:
            self._began_s = self._clock()
            self._control.supervisor["training_began_s"] = self.elapsed_s

    @property
    def batch_size(self) -> int:
        """Transitions per update: what the learner uses, or what was planned until it is up."""
        return int(self._control.learner["batch_size"]) or resolved(self.config.learner.batch_size)

    def note(self, text: str) -> None:
        """Tell the user about an event: among the warnings, and as a line in the metrics."""
        self.notes.append(text)
        del self.notes[:-MAX_NOTES]
        self.record_event(text)

    def record_event(self, text: str) -> None:
        """Write a line about an event that is no trouble to the metrics."""
        self._record({"event": text[:MAX_EVENT]})

    def look(self) -> Snapshot:
        """Read the control wire and bring the snapshot up to date."""
        control, snap, now = self._control, self.snapshot, self._clock()
        snap.time_s, snap.training_s = self.elapsed_s, self.training_s
        snap.awaited = self._start_up.awaited(control, self.config.serial)
        snap.compiling = bool(control.learner["compiling"])
        self._look_at_counts(now)
        self._look_at_evaluations()
        snap.stall_percent = self._waiting.percent(now)
        if not self._noise_lasts and control.samplers["noise_lasts"].any():
            self._noise_lasts = True
            self.note(NOISE_LASTS)
        if self._all_sampling_s is None and (control.samplers["env_steps"] > 0).all():
            self._all_sampling_s = snap.time_s
        if self._first is None and control.first_update_s is not None:
            self._first = self._counts()
        if now - self._measured_s >= MEASURE_EVERY_S:
            self._measured_s = now
            self._measure(now)
        snap.bottleneck = self._bottleneck()
        snap.diagnosis = self._learning.diagnose(self._control, snap.time_s)
        snap.open_warnings = self._open_warnings(now)
        snap.warnings = [*self.notes, *snap.open_warnings]
        return snap

    def record_decision(self, decision: Decision) -> None:
        """Write the controller's decision to the metrics and show it."""
        self.snapshot.decision, knobs = decision, self._control.supervisor
        self._record(
            {
                "tuner/seen": describe_rates(decision.before),
                "tuner/change": describe_changes(decision.changes),
                "tuner/gain": decision.gain,
                "tuner/kept": int(decision.kept),
                "tuner/active_samplers": int(knobs["active_samplers"]),
                "tuner/batch_size": int(knobs["batch_size"]),
                "tuner/min_updates_per_step": float(knobs["min_updates_per_step"]),
            }
        )

    def summary(self, outcome: Outcome) -> dict[str, Any]:
        """The contents of summary.json."""
        snap, config, control = self.look(), self.config, self._control
        now = self._counts()
        first = self._first or now
        seconds = max(now.time_s - first.time_s, 1.0)
        placement = PLACEMENTS[int(control.learner["replay_placement"])]
        values = {
            "env": config.env,
            "algo": config.algo,
            "seed": config.seed,
            "state": outcome.state.value,
            "reason": outcome.reason.value,
            "wall_s": round(snap.time_s, 3),
            "before_training_s": round(snap.time_s - snap.training_s, 3),
            "time_to_target_s": self.target_reached_s and round(self.target_reached_s, 3),
            "all_sampling_s": self._all_sampling_s and round(self._all_sampling_s, 3),
            "first_update_s": round(control.first_update_s or 0.0, 3) or None,
            "env_steps": snap.env_steps,
            "updates": snap.updates,
            "batch_size": self.batch_size,
            "sampler_processes": config.sampler.processes,
            "envs_per_process": config.sampler.envs_per_process,
            "sample_hz": round((now.env_steps - first.env_steps) / seconds, 1),
            "update_hz": round((now.updates - first.updates) / seconds, 1),
            "update_frame_hz": round((now.rows_learned - first.rows_learned) / seconds, 1),
            "best_return": snap.best_return,
            "final_return": snap.eval_return,
            "policy_lag_mean": self._lag.value,
            "exchange_age_mean": self._age.value if config.is_split else None,
            "updates_per_step": round(snap.updates / max(snap.env_steps, 1), 6),
            "rows_lost": int(control.learner["rows_lost"]),
            "steps_rejected": int(control.samplers["rejected"].sum()),
            "restarts": self.restarts,
            "faults": fault_counts(control, self.faults),
            "stop_reason": self.stop_reason,
            "device": config.device,
            "update_form": control.compile_state.name.lower(),
            "prepared": bool(control.learner["prepared"]),
            "replay_placement": placement if self._first else config.replay.placement,
            "out_of_memory": memory_fallback_note(control, self.batch_size),
        }
        return {name: finite(value) for name, value in values.items()}

    def status(self, state: RunState) -> dict[str, Any]:
        """The contents of status.json."""
        snap = self.snapshot
        return {
            "state": state.value,
            "pids": dict(self.pids),
            "progress": snap.progress(self.config.device),
            "warnings": snap.warnings,
            "open_warnings": snap.open_warnings,
            "diagnosis": snap.diagnosis and snap.diagnosis.to_json(),
        }

    def _look_at_counts(self, now: float) -> None:
        control, snap = self._control, self.snapshot
        samplers, learner = control.samplers, control.learner
        snap.env_steps, snap.updates = control.env_steps, int(learner["updates"])
        snap.episodes = int(samplers["episodes"].sum() + control.relay["episodes"])
        playing = samplers[samplers["episodes"] > 0]
        snap.rollout_return = float(playing["return_mean"].mean()) if len(playing) else None
        snap.sample_hz = self._sample_rate.update(snap.env_steps, now)
        if control.first_update_s is not None:  # before: those of a resumed run
            snap.update_hz = self._update_rate.update(snap.updates, now)
        snap.update_frame_hz = snap.update_hz * self.batch_size
        snap.policy_lag = float(learner["policy_lag"])
        snap.replay_rows = int(learner["replay_rows"])

    def _look_at_evaluations(self) -> None:
        """The latest evaluation; it stands for those that ended since the last look, too."""
        control, snap = self._control, self.snapshot
        missed = int(control.evaluator["evaluations"]) - self._evaluations.num_seen
        if missed > 0:
            snap.eval_return = float(control.evaluator["return_mean"])
            snap.best_return = finite(float(control.evaluator["best_return"]))
            for _ in range(missed):
                self._evaluations.add((snap.time_s, snap.eval_return))
            self._learning.evaluated(snap.eval_return)
        if self.target_reached_s is None and control.target_time_s is not None:
            # In serial mode the evaluator's clock counts env steps.
            self.target_reached_s = snap.time_s if self.config.serial else control.target_time_s

    def _counts(self) -> Counts:
        snap, rows = self.snapshot, int(self._control.learner["rows_learned"])
        return Counts(snap.time_s, snap.env_steps, snap.updates, rows)

    def _measure(self, now: float) -> None:
        """Measure CPU and GPU use, and write a line of metrics if one is due."""
        snap, control = self.snapshot, self._control
        self._replay_age.add(snap.time_s, snap.env_steps)
        snap.cpu, snap.gpu_percent = self._cpu.measure(self.pids, now), self._gpu.percent()
        if control.first_update_s is not None:
            self._lag.add(snap.policy_lag)
            self._age.add(float(control.learner["exchange_age"]))
        if now - self._recorded_s < record_interval(MEASURE_EVERY_S, snap.time_s):
            return
        self._recorded_s = now
        values: dict[str, Any] = {
            "perf/sample_hz": snap.sample_hz,
            "perf/update_hz": snap.update_hz,
            "perf/update_frame_hz": snap.update_frame_hz,
            "perf/gpu_percent": snap.gpu_percent,
            "perf/frames_hz": self._frame_rate.update(float(control.visualizer["frames"]), now),
            "replay/age_s": self._replay_age.median_s(snap.replay_rows),
        }
        values |= snap.cpu.metrics() if snap.cpu else {}
        values |= self.more_metrics()
        values |= {f"async/stall_percent/{role}": p for role, p in snap.stall_percent.items()}
        self._record({name: value for name, value in values.items() if value is not None})

    def _record(self, values: dict[str, Any]) -> None:
        """Write a line of metrics."""
        snap = self.snapshot
        self._recorder.record(
            time_s=self.elapsed_s, env_steps=snap.env_steps, updates=snap.updates, **values
        )

    def _bottleneck(self) -> Bottleneck:
        snap = self.snapshot
        if self._control.first_update_s is None:
            return Bottleneck(Limit.COLLECTING if snap.env_steps else Limit.STARTING)
        waits = snap.stall_percent
        return find_bottleneck(waits["samplers"], waits["learner"], snap.cpu)

    def _open_warnings(self, now: float) -> list[str]:
        control = self._control
        silent_s = self._heartbeats.seconds_since(control, now)
        return [
            *chain.from_iterable(self.standing.values()),
            *warnings_from(control, self.batch_size),
            *([describe_diagnosis(found)] if (found := self.snapshot.diagnosis) else ()),
            *missing_evaluation(control, self.elapsed_s),
            *stuck_roles({name: s for name, s in silent_s.items() if name in self.pids}),
        ]
