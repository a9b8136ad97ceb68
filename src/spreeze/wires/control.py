"""The control wire: progress counters and settings in shared memory, readable by every process.

There is one record per process, and only that process writes it:

| table      | written by | what it holds                                                            |
|------------|------------|--------------------------------------------------------------------------|
| supervisor | supervisor | the stop flag and the settings that may change during a run              |
| learner    | learner    | updates, the state of the replay and of the update, the samplers' limit  |
| samplers   | sampler i  | env steps, episodes and the means of the latest ones                     |
| evaluator  | evaluator  | the latest and the best evaluation, the cores it has borrowed            |
| visualizer | visualizer | pictures drawn and videos written                                        |
| relay      | relay      | what the other machines of a cluster do; all zero without one            |
| inference  | inference  | answers to samplers that do not run the policy; all zero if they do      |

`beats` is the heartbeat: it counts units of work, so a role that hangs inside its environment or a
kernel can be seen from outside. `waited_s` is the time a role has slept because it had nothing to do.

A word is eight aligned bytes, so no reader sees half of one. Words become visible in the order in
which they are stored (x86-64 only, see `arena`). One reader relies on that: the evaluator stores
`return_mean`, `best_return` and `target_time_s` before it increments `evaluations`, so a reader of
the new count also sees the results that belong to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from spreeze.wires.arena import Arena, Block

Table: TypeAlias = NDArray[np.void]
"""One record, or one per sampler: `table["updates"]`."""


class CompileState(IntEnum):
    """The learner's word `compiled`: which form of the update runs."""

    PLAIN = 0
    """Not compiled, or not yet."""
    COMPILED = 1
    NO_CPP_COMPILER = 2
    REFUSED = 3
    """Compilation failed, or its result differs from the plain update."""
    FUSED = 4
    """Compiled by our own compiler; torch's is at work on a faster form."""


_WORK = [
    ("beats", "<i8"),
    ("waited_s", "<f8"),
    ("lines_lost", "<i8"),  # records, prints and pictures that could not be written
]
_ENV = [
    ("doing", "<i8"),  # a faults.Doing: what it does with its environments
    ("env_calls", "<i8"),  # constructions and resets begun: signs of life, but no progress
    ("env_errors", "<i8"),  # exceptions in step or reset
    ("rejected", "<i8"),  # steps and resets with NaN, infinity or absurdly large numbers
    ("simulation_resets", "<i8"),  # MuJoCo diverged and reset itself
]

SUPERVISOR = [
    ("stop", "<i8"),  # 1: every role finishes its unit of work and ends
    ("active_samplers", "<i8"),  # samplers from this index on rest
    ("batch_size", "<i8"),  # the one to use; the learner's word says which one it uses
    ("min_updates_per_step", "<f8"),  # samplers wait if updates fall behind this ratio
    ("max_updates_per_step", "<f8"),  # the learner waits above this ratio; 0: as configured
    ("learning_rate", "<f8"),  # 0: as configured
    ("exploration", "<f8"),  # a factor on the noise or epsilon of samplers; 0: as configured
    ("checkpoints_asked", "<i8"),  # how often someone has asked for a checkpoint at once
    ("evaluations_asked", "<i8"),  # the same for an evaluation
    ("training_began_s", "<f8"),  # when all roles were started; 0 until then
    ("resumed_steps", "<i8"),  # env steps at which the roles started; seeds depend on it
]
LEARNER = [
    *_WORK,
    ("updates", "<i8"),  # those of a resumed run included
    ("rows_learned", "<i8"),  # the sum of all batch sizes
    ("allowed_steps", "<i8"),  # env steps that samplers may reach; 0 until the learner is up
    ("rows_lost", "<i8"),  # overwritten in their lanes before the learner read them
    ("replay_rows", "<i8"),
    ("saves_failed", "<i8"),
    ("compiled", "<i8"),  # a CompileState
    ("compiling", "<i8"),  # compilations under way
    ("prepared", "<i8"),  # whether the first update was compiled
    ("rollbacks", "<i8"),  # how often the networks went back to their last good state
    ("checkpoints", "<i8"),  # written in this run
    ("checkpoints_refused", "<i8"),  # damaged ones that were passed over
    ("batch_size", "<i8"),  # in use; 0 until the learner is up
    ("replay_placement", "<i8"),  # index into rows.PLACEMENTS
    ("out_of_memory", "<i8"),  # how often it had to reduce its memory
    ("detour", "<i8"),  # 1: copies between two GPUs go through host memory
    ("policy_lag", "<f8"),  # versions between acting and the newest policy
    ("exchange_age", "<f8"),  # updates by which the other device's copies lag
    ("up_s", "<f8"),  # when its process had imported everything
    ("ready_s", "<f8"),  # when replay and networks were in place
    ("first_update_s", "<f8"),  # when this run's first update began; 0 until then
    ("first_updated_s", "<f8"),  # when the first updates were done
    ("looked_s", "<f8"),  # when it last looked for the symptoms below; 0: never
    ("reward_low", "<f8"),  # the smallest and largest reward in the replay
    ("reward_high", "<f8"),
    ("saturated", "<f8"),  # share of the actions' numbers at their bounds
    ("obs_size", "<f8"),  # the largest root mean square of a number of the observation
    ("obs_ratio", "<f8"),  # the largest spread of one, over the middle one
    ("terminated", "<f8"),  # share of the rows that end an episode
    ("q_mean", "<f8"),  # the critic's mean value; 0 where there is none
]
SAMPLER = [
    *_WORK,
    *_ENV,
    ("env_steps", "<i8"),
    ("episodes", "<i8"),
    ("version", "<i8"),  # of the weights it acts with
    ("return_mean", "<f8"),
    ("length_mean", "<f8"),
    ("names_left_out", "<i8"),  # numbers in info by names that are too many to be recorded
    ("noise_lasts", "<i8"),  # whether half of its environments explore with noise that lasts
]
EVALUATOR = [
    *_WORK,
    *_ENV,
    ("borrowed_cores", "<i8"),  # see roles.core_lending
    ("borrowed_until_s", "<f8"),
    ("evaluations", "<i8"),  # stored last, after the results of the evaluation
    ("broken_episodes", "<i8"),  # episodes with NaN or infinity
    ("saves_failed", "<i8"),
    ("names_left_out", "<i8"),  # as for samplers
    ("updates", "<i8"),  # of the policy that was evaluated last
    ("return_mean", "<f8"),
    ("best_return", "<f8"),  # NaN until an evaluation counts
    ("target_time_s", "<f8"),  # when an evaluation first reached the target; 0 until then
]
VISUALIZER = [*_WORK, *_ENV, ("frames", "<i8"), ("videos", "<i8")]
RELAY = [
    *_WORK,
    ("env_steps", "<i8"),  # of all other machines, so every machine knows the run's total
    ("episodes", "<i8"),
    ("nodes", "<i8"),  # that sample now
    ("samplers", "<i8"),  # on these nodes
    ("nodes_lost", "<i8"),  # how often a node or its outpost was lost
    ("nodes_refused", "<i8"),  # that may not join
    ("outposts", "<i8"),  # started so far
    ("blocks_lost", "<i8"),  # on their way
    ("in_flight", "<i8"),  # calls for blocks that are not answered yet
    ("blocks", "<i8"),  # taken over
    ("rows", "<i8"),  # in these blocks
    ("rows_late", "<i8"),  # dropped, because their block was older than --ray.max-lag-s
    ("rows_refused", "<i8"),  # dropped, because their block was not as agreed
    ("rows_lost", "<i8"),  # overwritten in their lanes, on the nodes
    ("evaluations", "<i8"),  # whose episodes a node has played
    ("weights_version", "<i8"),  # the oldest that a node acts with
    ("block_ms", "<f8"),  # how long the newest block took from its node
]
INFERENCE = [
    *_WORK,
    ("answers", "<i8"),  # to groups of environments
    ("batches", "<i8"),  # in so many batches
    ("version", "<i8"),  # of the weights it acts with
]


def _padded(fields: Sequence[tuple[str, str]]) -> np.dtype[np.void]:
    """A record of eight-byte words, rounded up to whole cache lines."""
    spare = -len(fields) % 8
    return np.dtype([*fields, *([("spare", "<i8", (spare,))] if spare else [])])


def control_blocks(num_samplers: int) -> list[Block]:
    """Memory for the control wire of one run."""
    return [
        Block("control.supervisor", (), _padded(SUPERVISOR)),
        Block("control.learner", (), _padded(LEARNER)),
        Block("control.samplers", (num_samplers,), _padded(SAMPLER)),
        Block("control.evaluator", (), _padded(EVALUATOR)),
        Block("control.visualizer", (), _padded(VISUALIZER)),
        Block("control.relay", (), _padded(RELAY)),
        Block("control.inference", (), _padded(INFERENCE)),
    ]


class Control:
    """The records of a run as numpy arrays, `control.learner["updates"]`, and what is read from them."""

    def __init__(self, arena: Arena) -> None:
        """View the records in an arena that was made with `control_blocks`."""
        self.supervisor: Table = arena["control.supervisor"]
        self.learner: Table = arena["control.learner"]
        self.samplers: Table = arena["control.samplers"]
        self.evaluator: Table = arena["control.evaluator"]
        self.visualizer: Table = arena["control.visualizer"]
        self.relay: Table = arena["control.relay"]
        self.inference: Table = arena["control.inference"]

    @property
    def stopping(self) -> bool:
        """Whether every role should end."""
        return bool(self.supervisor["stop"])

    @property
    def env_steps(self) -> int:
        """Env steps of all samplers together, those on other machines included."""
        return int(self.samplers["env_steps"].sum() + self.relay["env_steps"])

    @property
    def first_update_s(self) -> float | None:
        """When this run's first update began, on the roles' clock; None before."""
        return float(self.learner["first_update_s"]) or None

    @property
    def compile_state(self) -> CompileState:
        """Which form of the update the learner runs."""
        return CompileState(int(self.learner["compiled"]))

    def heartbeats(self) -> dict[str, int]:
        """Units of work done so far by each role: `sampler-3`, `learner-0`."""
        samplers = {f"sampler-{i}": int(n) for i, n in enumerate(self.samplers["beats"])}
        names = ("learner", "evaluator", "visualizer", "relay", "inference")
        others = {name: getattr(self, name) for name in names}
        return samplers | {f"{name}-0": int(table["beats"]) for name, table in others.items()}

    @property
    def target_time_s(self) -> float | None:
        """When an evaluation reached the target, on the roles' clock; None before.

        The evaluator alone decides that the target is reached, by storing this word.
        """
        return float(self.evaluator["target_time_s"]) or None
