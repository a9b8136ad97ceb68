"""Warnings: what the counters of a run say about trouble, as sentences for the user."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spreeze.envs.episodes import MAX_NAMES, MAX_SAID
from spreeze.rows import PLACEMENTS
from spreeze.settings.config import Config
from spreeze.wires.control import CompileState, Control

NO_EVALUATION_S = 120.0
STUCK_S = 30.0

COMPILE_PROBLEMS = {
    CompileState.NO_CPP_COMPILER: (
        "no C++ compiler: updates run at about half speed (Debian: apt install g++)"
    ),
    CompileState.REFUSED: (
        "the update could not be compiled and runs at about half speed; see logs/learner-0.log"
    ),
}


class Heartbeats:
    """How long ago each role finished its last unit of work."""

    def __init__(self) -> None:
        """No role has been seen yet."""
        self._seen: dict[str, tuple[int, float]] = {}

    def seconds_since(self, control: Control, now: float) -> dict[str, float]:
        """Seconds since each role's heartbeat last moved."""
        for name, beats in control.heartbeats().items():
            if self._seen.get(name, (-1, now))[0] != beats:
                self._seen[name] = (beats, now)
        return {name: now - since for name, (_, since) in self._seen.items()}


def memory_fallback_note(control: Control, batch_size: int) -> str | None:
    """What the learner does differently from the plan because GPU memory ran out."""
    if not control.learner["out_of_memory"]:
        return None
    place = PLACEMENTS[int(control.learner["replay_placement"])]
    return f"out of GPU memory: went on with replay.placement {place} and batches of {batch_size}"


def warnings_from(control: Control, batch_size: int) -> list[str]:
    """Everything that the counters report; `batch_size` is the one in use."""
    learner, evaluator = control.learner, control.evaluator
    out = []
    if lost := int(learner["rows_lost"]):
        out.append(f"{lost} transitions were overwritten before the learner read them")
    if rejected := int(control.samplers["rejected"].sum()):
        out.append(
            f"{rejected} env steps gave NaN, infinity or numbers beyond --limits.largest-number; "
            "they were dropped and their episodes cut"
        )
    if resets := int(control.samplers["simulation_resets"].sum()):
        out.append(
            f"{resets} env steps made MuJoCo diverge and reset itself; they were dropped and their "
            "episodes cut"
        )
    if refused := int(learner["checkpoints_refused"]):
        out.append(
            f"{refused} checkpoints are damaged and were passed over; see logs/learner-0.log"
        )
    if broken := int(evaluator["broken_episodes"]):
        out.append(
            f"{broken} evaluation episodes broke off (an exception, NaN or infinity) and do not count; "
            "an evaluation with such an episode cannot become the best"
        )
    left_out = int(max(control.samplers["names_left_out"].max(), evaluator["names_left_out"]))
    if left_out:
        out.append(
            f"info has {left_out}{' or more' * (left_out == MAX_SAID)} numbers beside the first "
            f"{MAX_NAMES}, which are recorded; logs/ names some of the others"
        )
    if rollbacks := int(learner["rollbacks"]):
        out.append(
            f"the networks diverged to NaN {rollbacks} times and went back to their last good "
            "state. Lower --algo.lr; logs/learner-0.log names what diverged"
        )
    if problem := memory_fallback_note(control, batch_size):
        out.append(problem)
    if learner["detour"]:
        out.append(
            "the two GPUs cannot access each other's memory: copies go through host memory, slower"
        )
    if problem := COMPILE_PROBLEMS.get(control.compile_state):
        out.append(problem)
    if failed := int(learner["saves_failed"] + evaluator["saves_failed"]):
        out.append(f"{failed} checkpoints could not be written; is the disk full? See logs/")
    return out


def env_error_warnings(control: Control, newest: Mapping[str, str]) -> list[str]:
    """How often environments raised, and the newest error of one role: `newest` is by role, in one line."""
    with_env = (control.samplers, control.evaluator, control.visualizer)
    count = sum(int(table["env_errors"].sum()) for table in with_env)
    if not count:
        return []
    role = min(newest, default=None)
    shown = f": {newest[role]} (traceback: logs/{role}.error)" if role else ""
    return [f"environments raised {count} times; their episodes ended there{shown}"]


def missing_target_metric(config: Config, evaluation: dict[str, Any]) -> list[str]:
    """A warning if the newest evaluation lacks the metric that should end the run."""
    if config.target is None or evaluation["target_value"] is not None:
        return []
    said = [name for name in evaluation["metrics"] if "/info/" in name]
    there = f"There are {', '.join(said)}." if said else "info holds no numbers then."
    return [
        f"--target-metric {config.target_metric}: the environment does not say it at the ends of episodes. {there}"
    ]


def missing_evaluation(control: Control, elapsed_s: float) -> list[str]:
    """A warning if updates have run for two minutes without a single evaluation."""
    began_s = control.first_update_s
    if (
        began_s is None
        or control.evaluator["evaluations"]
        or elapsed_s - began_s <= NO_EVALUATION_S
    ):
        return []
    return [
        "no evaluation has ended in two minutes; --env.max-episode-steps makes episodes shorter"
    ]


def stuck_roles(silent_s: dict[str, float]) -> list[str]:
    """A warning for each role whose heartbeat has not moved for long."""
    return [
        f"{name} has made no progress for {seconds:.0f} s"
        for name, seconds in silent_s.items()
        if seconds > STUCK_S
    ]
