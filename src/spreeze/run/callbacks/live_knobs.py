"""The knobs that a callback may change while the run goes on, and their words on the control wire."""

from __future__ import annotations

from spreeze.knobs import knobs_of
from spreeze.settings.config import Config
from spreeze.settings.other_names import OURS
from spreeze.text import suggest
from spreeze.wires.control import Control

LEARNING_RATE, UPDATES_PER_STEP, EXPLORATION = "algo.lr", "learner.updates_per_step", "exploration"
WORDS = {
    LEARNING_RATE: ("learning_rate",),
    UPDATES_PER_STEP: ("min_updates_per_step", "max_updates_per_step"),
    EXPLORATION: ("exploration",),
}


def check_live_knob(config: Config, name: str, value: float) -> None:
    """ValueError if the knob cannot be changed during a run, or not to this value."""
    if name not in WORDS:
        meant = next((ours for ours in OURS.get(name, ()) if ours in WORDS), None)
        hint = f" Did you mean {meant}?" if meant else suggest(name, WORDS)
        raise ValueError(f"{name!r} cannot change during a run; {', '.join(WORDS)} can.{hint}")
    low, high = _bounds(config, name)
    if not low <= value <= high:
        raise ValueError(f"{name} {value:g}: must be a number from {low:g} to {high:g}")
    if name == EXPLORATION and config.hyper.row_format().segment > 1:
        # Rows store the log-probabilities of the policy's own distribution.
        raise ValueError(f"{name}: policies of --algo {config.algo} decide how much they explore")


def apply_live_knob(control: Control, name: str, value: float) -> None:
    """Set the words that roles read."""
    for word in WORDS[name]:
        control.supervisor[word] = value


def _bounds(config: Config, name: str) -> tuple[float, float]:
    if name == EXPLORATION:
        return 1e-6, 1000.0
    section = config.hyper if name == LEARNING_RATE else config.learner
    knob = knobs_of(type(section))[name.rpartition(".")[2]]
    return knob.low, knob.high
