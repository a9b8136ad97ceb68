"""Facts about a run in words: for the terminal, for status.json and for the metrics files."""

from __future__ import annotations

from spreeze.run.bottleneck import Bottleneck, Limit
from spreeze.run.controller import BATCH, RATIO, SAMPLERS, Change, Decision, Rates

KNOB_NAMES = {SAMPLERS: "samplers", BATCH: "batch", RATIO: "updates per step at least"}


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
    }[bottleneck.kind]


def describe_changes(changes: tuple[Change, ...]) -> str:
    """The settings that the controller tried: `batch 256 -> 512`."""
    return ", ".join(f"{KNOB_NAMES[knob]} {old:g} -> {new:g}" for knob, old, new in changes)


def describe_rates(rates: Rates) -> str:
    """What the run did per second."""
    return f"{rates.update_hz:,.0f} updates/s of {rates.batch_size}, {rates.sample_hz:,.0f} steps/s"


def describe_decision(decision: Decision) -> str:
    """What the controller tried, what it gained, and whether it stays."""
    result = "kept" if decision.kept else "undone"
    return f"{describe_changes(decision.changes)}: {100 * decision.gain:+.0f} % ({result})"
