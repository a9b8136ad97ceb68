"""Joins callbacks to the supervisor: at each tick events go out to them, and what they ask for is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from spreeze.envs.calls import EnvCall, EnvMembers
from spreeze.run.callbacks import Callback
from spreeze.run.callbacks.events import Event, Events
from spreeze.run.callbacks.live_knobs import UPDATES_PER_STEP, apply_live_knob
from spreeze.run.callbacks.live_run import (
    CallEnvs,
    Evaluate,
    LiveRun,
    Request,
    SaveCheckpoint,
    SetKnob,
    Stop,
)
from spreeze.run.callbacks.runner import CallbackRunner, Problem
from spreeze.run.controller import RATIO, Controller
from spreeze.run.processes.serial import STEPS_PER_S
from spreeze.run.progress import Progress
from spreeze.settings.config import Config
from spreeze.store.metrics import Recorder
from spreeze.store.rundir import RunDir
from spreeze.wires.arena import Arena
from spreeze.wires.control import Control
from spreeze.wires.documents import ENV_CALLS, EVALUATION, Document, TooLong

ROLE = "callbacks-0"


@dataclass(frozen=True)
class UserCode:
    """The user's code in a run, checked before the start."""

    callbacks: Sequence[Callback] = ()
    members: EnvMembers | None = None
    """What can be called and set in the environment; None if it is not known."""
    say: Callable[[str], None] = lambda _: None
    """Shows text on the terminal."""


class Desk:
    """Where the supervisor and the callbacks of one run meet."""

    def __init__(
        self,
        code: UserCode,
        config: Config,
        run_dir: RunDir,
        arena: Arena,
        progress: Progress,
        controller: Controller,
    ) -> None:
        """Call nothing yet. Without callbacks, all methods do next to nothing."""
        self.stop_reason: str | None = None
        """Why a callback has asked for the end of the run."""
        self.failure: str | None = None
        """The traceback of a callback whose exceptions are fatal."""
        self._num_lost = self._num_told = 0
        self._code, self._serial, self._run_dir = code, config.serial, run_dir
        self._control, self._progress, self._controller = Control(arena), progress, controller
        self._calls: dict[str, dict[tuple[str, bool], EnvCall]] = {}
        """The newest calls by role."""
        self._num_calls, self._document = 0, Document(arena, ENV_CALLS)
        self._problems: list[Problem] = []
        if not code.callbacks:
            return
        self._recorder = Recorder(run_dir.metrics / f"{ROLE}.jsonl", self._count_loss)
        self._live = LiveRun(
            run_dir.path, config, self._control, lambda: progress.elapsed_s, code.members
        )
        self._runner = CallbackRunner(code.callbacks, self._live, self._recorder, run_dir.log(ROLE))
        self._events = Events(
            self._control, Document(arena, EVALUATION), run_dir.checkpoints, self._now
        )

    def start(self) -> None:
        """The run starts."""
        if self._code.callbacks:
            if not self._serial:
                self._runner.start()
            self._runner.tell(Event("on_start"))
            self.tick([])

    def tick(self, restarted: Sequence[str]) -> None:
        """Tell callbacks what has happened, and do what they have asked for; never waits for them.

        `restarted`: the processes that were started again since the last tick.
        """
        if not self._code.callbacks:
            return
        for role in restarted:
            self._runner.tell(Event("on_restart", (role,)))
        for event in self._events.look():
            self._runner.tell(event)
        if self._serial:
            self._runner.work()
        self._do_what_was_asked()

    def finish(self, summary: dict[str, Any], hurry: Callable[[], bool]) -> None:
        """The run is over: call the last hooks, for a limited time."""
        if not self._code.callbacks:
            return
        for event in self._events.look():
            self._runner.tell(event)
        self._runner.tell(Event("on_end", (dict(summary),)))
        if late := self._runner.finish(hurry):
            self._progress.note(f"{late} did not end; the run ended without it")
        self._do_what_was_asked()
        self._recorder.close()
        summary["callbacks"] = {
            "cpu_s": round(self._runner.cpu_s, 3),
            "switched_off": {problem.callback: problem.cause for problem in self._problems},
        }

    def take_lost(self) -> int:
        """How many lines that callbacks have logged could not be written since the last call."""
        lost = self._num_lost - self._num_told
        self._num_told += lost
        return lost

    def metrics(self) -> dict[str, float]:
        """The CPU time that callbacks have taken so far, in percent of one core."""
        if not self._code.callbacks:
            return {}
        used = 100 * self._runner.cpu_s / max(self._progress.elapsed_s, 1e-9)
        return {"perf/callbacks_percent": used}

    def _count_loss(self) -> None:
        self._num_lost += 1

    def _now(self) -> float:
        return self._control.env_steps / STEPS_PER_S if self._serial else self._progress.elapsed_s

    def _do_what_was_asked(self) -> None:
        while self._live.requests:
            self._do(self._live.requests.popleft())
        while self._runner.problems:
            self._switched_off(self._runner.problems.popleft())
        standing = []
        if slow := self._runner.slow_hook():
            standing.append(
                f"{slow[0]} has been running for {slow[1]:.0f} s: callbacks wait for it"
            )
        if self._runner.num_dropped:
            standing.append(
                f"{self._runner.num_dropped} events were dropped: a callback is too slow"
            )
        self._progress.standing["callbacks"] = standing

    def _do(self, request: Request) -> None:
        words = self._control.supervisor
        match request:
            case Stop():
                self.stop_reason = self.stop_reason or request.reason
            case SaveCheckpoint():
                words["checkpoints_asked"] += 1
            case Evaluate():
                words["evaluations_asked"] += 1
            case SetKnob():
                if request.name == UPDATES_PER_STEP:
                    self._controller.leave_alone(RATIO)
                apply_live_knob(self._control, request.name, request.value)
                self._progress.record_event(f"{request.name} = {request.value:g}")
            case CallEnvs():
                self._call_envs(request)

    def _call_envs(self, request: CallEnvs) -> None:
        self._num_calls += 1
        call = EnvCall(
            self._num_calls, request.name, request.arguments, request.is_attribute, request.now
        )
        for role in request.roles:
            newest = self._calls.setdefault(role, {})
            newest.pop(call.key, None)  # to the end: calls are made in the order of their numbers
            newest[call.key] = call
        try:
            self._document.write({role: [*calls.values()] for role, calls in self._calls.items()})
        except TooLong as error:
            self._progress.note(f"{call} was not made: {error}")
            return
        where = "" if len(request.roles) > 2 else f" for {' and '.join(request.roles)}"
        self._progress.record_event(f"environments: {call}{where}")

    def _switched_off(self, problem: Problem) -> None:
        """A hook raised: show it, and end the run if the callback wants that."""
        self._problems.append(problem)
        what = f"{problem.callback} raised in {problem.hook}"
        if problem.is_fatal:
            self.failure = (
                f"{problem.traceback}\n{what}, and it is fatal. See {self._run_dir.log(ROLE)}"
            )
            self._progress.stop_reason = f"{what}: {problem.cause}"
            return
        self._code.say(f"{problem.traceback}\n{what} and was switched off; the run goes on.")
        self._progress.note(f"{what} and was switched off: {problem.cause}\n{problem.traceback}")
