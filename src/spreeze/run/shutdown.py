"""The end of a run's processes: roles stop and save, observers finish, and what takes too long is killed."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from spreeze.faults import Fault
from spreeze.run.processes.call_result import Raised
from spreeze.run.processes.pool import Child, Processes
from spreeze.run.progress import Progress
from spreeze.run.signals import Interrupts
from spreeze.store.rundir import RunDir
from spreeze.wires.control import Control

LEARNER = "learner-0"
POLL_S = 0.05
STUCK_S = 3.0
"""When a sampler or evaluator without a heartbeat is killed: it hangs in a step of its environment."""
GRACE_S = 10.0
"""When every other role is killed."""
LEARNER_GRACE_S = 30.0
"""When the learner is killed, which writes a checkpoint; on a GPU it may also be starting or compiling."""
KILL_S = 5.0
"""How long after that a killed process may take to disappear."""

OBSERVER_GRACE_S = {"relay-0": 8.0, "visualizer-0": 6.0, "dashboard": 3.0, "tracker": 60.0}
"""How long observers may take to finish: a last video, the last records to send."""
CTRL_C_GRACE_S = {"relay-0": 6.0, "visualizer-0": 4.0, "dashboard": 0.5, "tracker": 0.5}
"""The same after Ctrl-C: enough for short videos of the last and the best policy."""
FAILURE_GRACE_S = dict.fromkeys(OBSERVER_GRACE_S, 0.5)
"""The same after a failure."""


def stop_roles(
    processes: Processes, children: list[Child], control: Control, interrupts: Interrupts
) -> bool:
    """Set the stop flag and wait until all roles have ended; returns whether the learner's time ran out.

    Each role finishes its unit of work, and the learner saves a checkpoint. Another Ctrl-C kills them
    at once.
    """
    before = control.heartbeats()
    control.supervisor["stop"] = 1
    began, late = time.monotonic(), False
    while any(child.exit_code is None for child in children) and processes.failure is None:
        waited_s = time.monotonic() - began
        late = waited_s > LEARNER_GRACE_S
        if waited_s > LEARNER_GRACE_S + KILL_S:
            break  # uninterruptible inside the kernel; give up
        for child in children:
            overdue = waited_s > (LEARNER_GRACE_S if child.name == LEARNER else GRACE_S)
            hangs = waited_s > STUCK_S and _hangs(child, control, before)
            if interrupts.urgent or overdue or hangs:
                child.kill()
        processes.poll(POLL_S)
    return late


def judge_ends(
    children: list[Child], late: bool, progress: Progress, run_dir: RunDir
) -> str | None:
    """Count the roles that did not end as they should; returns why the run has failed, if it has.

    Only the learner matters now: it saves the last checkpoint.
    """
    failure = None
    for child in children:
        name, error, log = child.name, child.error, run_dir.log(child.name)
        if error is None and (child.exit_code == 0 or name != LEARNER):
            continue  # a clean end, or killed because it hung
        progress.faults[Fault.RAISED if error else Fault.KILLED] += 1
        if name != LEARNER:
            cause = error.cause if error else ""
            progress.note(f"{name} raised while the run ended: {cause}; see {log}")
        elif error is not None:
            failure = crash_message(name, error, log)
        else:
            how = f"was ended by {child.how_it_ended}"
            if late:
                how = f"did not end within {LEARNER_GRACE_S:.0f} s and was killed"
            failure = (
                f"the learner {how} before it could save a last checkpoint. "
                f"Earlier ones are in {run_dir.checkpoints}; its output is in {log}"
            )
    return failure


def await_observers(
    processes: Processes,
    children: list[Child],
    interrupts: Interrupts,
    failed: bool,
    has_drawn: bool,
) -> None:
    """Let observers finish after everything is written; kill those that take too long.

    `has_drawn`: whether the visualizer has drawn anything; otherwise it has no video to finish.
    """
    usual_s = CTRL_C_GRACE_S if interrupts.signal == signal.SIGINT else OBSERVER_GRACE_S
    graces_s = FAILURE_GRACE_S if failed else usual_s
    began = time.monotonic()
    while any(child.exit_code is None for child in children) and processes.failure is None:
        for child in children:
            grace_s = graces_s[child.name]
            if child.name == "visualizer-0" and not has_drawn:
                grace_s = 0.0
            if time.monotonic() - began > grace_s or interrupts.urgent:
                child.kill()
        processes.poll(POLL_S)


def crash_message(name: str, error: Raised, log: Path) -> str:
    """The traceback of a process that raised, and where the rest of its output is."""
    return f"{error.traceback}\n{name} raised this. Its whole output: {log}"


def _hangs(child: Child, control: Control, before: dict[str, int]) -> bool:
    """Whether it has done no work since `before`. The learner is exempt: it writes a checkpoint."""
    return child.name != LEARNER and control.heartbeats()[child.name] == before[child.name]
