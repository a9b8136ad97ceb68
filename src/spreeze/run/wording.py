"""Facts about a run in words: for the terminal, for status.json and for the metrics files."""

from __future__ import annotations

from spreeze.faults import Doing
from spreeze.run.bottleneck import Bottleneck, Limit
from spreeze.run.controller import BATCH, RATIO, SAMPLERS, Change, Decision, Rates
from spreeze.run.diagnosis import Cause, Diagnosis
from spreeze.run.start_up import Milestone
from spreeze.run.watchdog import Hang
from spreeze.settings.auto.reproducible import CORES, MEMORY_BYTES
from spreeze.text import short

KNOB_NAMES = {SAMPLERS: "samplers", BATCH: "batch", RATIO: "updates per step at least"}

COMPILING = "compiling a faster form"
NOISE_LASTS = (
    "the first episodes all return about the same: half of the environments act by noise that lasts"
)

REPRODUCIBLE = (
    f"equal flags give these settings on every machine; they are chosen for {CORES} cores and {MEMORY_BYTES >> 30} GiB of "
    "memory. The order of experience and the steps per second still differ, because no process waits for another "
    "(--serial: they all do)"
)


def describe_bottleneck(bottleneck: Bottleneck, device: str) -> str:
    """What limits the run; `device` is the learner's."""
    waiting = f"{bottleneck.waiting_percent:.0f} %"
    where = "GPU" if device.startswith("cuda") else "CPU"
    return {
        Limit.STARTING: "starting",
        Limit.COLLECTING: "starting: collecting the first transitions",
        Limit.SAMPLERS: f"samplers (the learner waits {waiting} of its time)",
        Limit.LEARNER: f"learner (the samplers wait {waiting} of their time)",
        Limit.NOBODY_WAITS: f"learner's {where} and the samplers' cores: nobody waits",
        Limit.OTHERS: (
            f"other programs use {bottleneck.other_cores:.1f} of {bottleneck.cores} cores"
        ),
    }[bottleneck.kind]


def describe_awaited(milestone: Milestone, rows: int = 0, needed_rows: int = 0) -> str:
    """What a start is doing until it reaches the milestone; the learner begins when it has `needed_rows`."""
    return {
        Milestone.FLAGS: "reading the flags",
        Milestone.ENVIRONMENT: "trying the environment out",
        Milestone.PLAN: "choosing the settings",
        Milestone.FOLDER: "making the folder of the run",
        Milestone.ROLES: "starting the processes",
        Milestone.SAMPLING: "samplers make their environments",
        Milestone.LEARNER: "the learner loads torch",
        Milestone.NETWORKS: "the learner makes replay and networks",
        Milestone.WARM_UP: f"collecting the first transitions, {rows:,} of {needed_rows:,}",
        Milestone.UPDATE: "making the first update",
    }[milestone]


def describe_no_update(awaited: Milestone, seconds: float, rows: int, needed_rows: int) -> str:
    """What a run has to say that came to its limit before its first update."""
    stage = describe_awaited(awaited, rows, needed_rows)
    return (
        f"nothing was learned: the run ended after {seconds:.1f} s, before its first update ({stage}). "
        "Raise --time or --steps"
        f"{', or lower --learner.warmup-rows' if awaited is Milestone.WARM_UP else ''}."
    )


def describe_changes(changes: tuple[Change, ...]) -> str:
    """The settings that the controller tried: `batch 256 -> 512`."""
    return ", ".join(
        f"{KNOB_NAMES[knob]} {_exact(old)} -> {_exact(new)}" for knob, old, new in changes
    )


def _exact(value: float) -> str:
    """A whole number with all its digits, any other with three."""
    return f"{value:,.0f}" if value == round(value) else f"{value:.3g}"


def describe_rates(rates: Rates) -> str:
    """What the run did per second."""
    return f"{rates.update_hz:,.0f} updates/s of {rates.batch_size}, {rates.sample_hz:,.0f} steps/s"


def describe_decision(decision: Decision) -> str:
    """What the controller tried, what it gained, and whether it stays."""
    result = "kept" if decision.kept else "undone"
    return f"{describe_changes(decision.changes)}: {100 * decision.gain:+.0f} % ({result})"


def describe_hang(hang: Hang) -> str:
    """What a process did for too long, and the knob that allows it longer."""
    what = {
        Doing.CONSTRUCT: "it made an environment",
        Doing.RESET: "it reset an environment",
        Doing.STEP: "it stepped its environments",
        Doing.OTHER: "it made no progress",
    }[hang.doing]
    knob = f" (--{hang.knob.replace('_', '-')})" if hang.knob else ""
    return f"{what} for {hang.seconds:.3g} s{knob}"


def describe_diagnosis(found: Diagnosis) -> str:
    """Why the run does not learn, and what to try."""
    value = short(found.value)
    why = {
        Cause.NO_EPISODE_ENDS: f"no episode has ended in {value} steps",
        Cause.EQUAL_REWARDS: f"every reward so far is {value}, so there is nothing to learn from",
        Cause.CRITIC_DIVERGES: (
            f"the critic diverges: its values are {value} times the largest possible return"
        ),
        Cause.MIXED_OBSERVATIONS: (
            f"numbers of the observation differ in scale, one by {value} times the usual"
        ),
        Cause.LARGE_OBSERVATIONS: f"numbers of the observation are large, about {value}",
        Cause.SATURATED_ACTIONS: f"{100 * found.value:.0f} % of the actions are at their bounds",
        Cause.DOES_NOTHING: "rewards are only costs so far, and the policy avoids them by doing nothing",
        Cause.STILL_RANDOM: f"returns are no better than at the start (best {value})",
    }[found.cause]
    return f"not learning: {why}.{f' Try {found.flags}' if found.flags else ''}"
