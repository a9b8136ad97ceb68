"""How often each kind of fault has happened in a run."""

from __future__ import annotations

from collections import Counter

from spreeze.faults import Fault
from spreeze.wires.control import Control, Table


def fault_counts(control: Control, seen: Counter[Fault]) -> dict[str, int]:
    """The faults that the supervisor has `seen`, and those that roles count; kinds without any are left out."""
    learner, evaluator = control.learner, control.evaluator
    with_env = (control.samplers, evaluator, control.visualizer)

    def count(word: str, *others: Table) -> int:
        return sum(int(table[word].sum()) for table in (*with_env, *others))

    faults = seen + Counter(
        {
            Fault.ENV_ERROR: count("env_errors"),
            Fault.BAD_NUMBERS: count("rejected"),
            Fault.SIMULATION_RESET: count("simulation_resets"),
            Fault.ROLLED_BACK: int(learner["rollbacks"]),
            Fault.SAVE_FAILED: int(learner["saves_failed"] + evaluator["saves_failed"]),
            Fault.CHECKPOINT_REFUSED: int(learner["checkpoints_refused"]),
            Fault.OUTPUT_DROPPED: count("lines_lost", learner),
            Fault.ROWS_LOST: int(learner["rows_lost"]),
        }
    )
    return {kind.value: faults[kind] for kind in Fault if faults[kind]}
