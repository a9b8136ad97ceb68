"""The control wire: small numbers that every role may read, each written by exactly one process.

| table      | written by     | words |
|------------|----------------|-------|
| supervisor | supervisor     | stop flag, and the live knobs: how many samplers act, batch size, least updates per env step |
| learner    | learner        | progress, replay fill, policy lag, age of the other device's copies, what it really uses, how many env steps samplers may reach |
| samplers   | sampler i      | progress and the means of its latest episodes |
| evaluator  | evaluator      | progress, the latest and best evaluation, how many samplers rest while it plays, and until when at most |
| visualizer | visualizer     | pictures drawn, videos written |

`beats` counts units of work done and is the heartbeat: it moves only when the role gets on, so a
role that hangs inside its environment or a kernel is seen from outside. `waited_s` is the time the
role has spent idle on purpose. A word is eight aligned bytes, so it is never read half-written.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spreeze.wires.arena import Arena, Block

_WORK = [("beats", "<i8"), ("waited_s", "<f8")]

SUPERVISOR = [
    ("stop", "<i8"),
    ("active_samplers", "<i8"),
    ("batch_size", "<i8"),
    ("min_updates_per_step", "<f8"),
]
LEARNER = [
    *_WORK,
    ("updates", "<i8"),
    ("rows_learned", "<i8"),
    ("allowed_steps", "<i8"),
    ("rows_lost", "<i8"),
    ("replay_rows", "<i8"),
    ("saves_failed", "<i8"),
    ("compiled", "<i8"),
    ("diverged", "<i8"),
    ("batch_size", "<i8"),
    ("replay_placement", "<i8"),
    ("out_of_memory", "<i8"),
    ("detour", "<i8"),
    ("policy_lag", "<f8"),
    ("exchange_age", "<f8"),
    ("first_update_s", "<f8"),
]
SAMPLER = [
    *_WORK,
    ("env_steps", "<i8"),
    ("episodes", "<i8"),
    ("rejected", "<i8"),
    ("version", "<i8"),
    ("return_mean", "<f8"),
    ("length_mean", "<f8"),
]
EVALUATOR = [
    *_WORK,
    ("borrowed_cores", "<i8"),
    ("borrowed_until_s", "<f8"),
    ("evaluations", "<i8"),
    ("broken_episodes", "<i8"),
    ("saves_failed", "<i8"),
    ("updates", "<i8"),
    ("return_mean", "<f8"),
    ("best_return", "<f8"),
    ("target_time_s", "<f8"),
]
VISUALIZER = [*_WORK, ("frames", "<i8"), ("videos", "<i8")]


def _padded(fields: Sequence[tuple[str, str]]) -> np.dtype[np.void]:
    """A record of eight-byte words, rounded up to whole cache lines."""
    spare = -len(fields) % 8
    return np.dtype([*fields, *([("spare", "<i8", (spare,))] if spare else [])])


def control_blocks(num_samplers: int) -> list[Block]:
    """Memory for the words of one run."""
    return [
        Block("control.supervisor", (), _padded(SUPERVISOR)),
        Block("control.learner", (), _padded(LEARNER)),
        Block("control.samplers", (num_samplers,), _padded(SAMPLER)),
        Block("control.evaluator", (), _padded(EVALUATOR)),
        Block("control.visualizer", (), _padded(VISUALIZER)),
    ]


class Control:
    """The words of a run, as numpy records: `control.learner["updates"]`."""

    def __init__(self, arena: Arena) -> None:
        """Look at an arena made with `control_blocks`."""
        self.supervisor = arena["control.supervisor"]
        self.learner = arena["control.learner"]
        self.samplers = arena["control.samplers"]
        self.evaluator = arena["control.evaluator"]
        self.visualizer = arena["control.visualizer"]

    @property
    def stopping(self) -> bool:
        """Whether the run is to end."""
        return bool(self.supervisor["stop"])

    @property
    def env_steps(self) -> int:
        """Env steps of all samplers together."""
        return int(self.samplers["env_steps"].sum())
