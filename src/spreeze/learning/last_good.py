"""The last training state that was finite, to go back to when the networks diverge.

A copy costs the training nothing but its place in the queue: on a GPU the state is copied and reduced to
one number per vector behind the updates that are enqueued, and the host reads the numbers when they have
arrived. Until then the copy before it is the last good one.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import cast

import torch
from torch import Tensor

from spreeze.algos.base import Algorithm
from spreeze.learning.replay_memory import blocking_event
from spreeze.learning.state import TrainingState, named
from spreeze.learning.updaters import AnyUpdater


class Verdict(Enum):
    """What is known about the newest copy."""

    NONE = auto()
    """No copy was asked for."""
    PENDING = auto()
    """The device has not answered yet."""
    GOOD = auto()
    """It is finite, and now the last good one."""
    BAD = auto()
    """It holds NaN or infinity."""


@dataclass(frozen=True)
class Copied:
    """A copy of the training state, and when it was made."""

    tensors: dict[str, Tensor]
    updates: int
    """Updates done by then."""
    random: dict[str, Tensor]
    """The states of the random number generators, by kind of device."""


class LastGood:
    """Two copies of the training state on the first device: the last good one, and one under examination."""

    def __init__(self, updater: AnyUpdater, updates: int) -> None:
        """The state as it is now, after this many updates, must be finite."""
        if bad := not_finite(updater.state):
            raise ValueError(f"the networks start with NaN or infinity in {', '.join(bad)}")
        self._updater = updater
        on_gpu = updater.device.type == "cuda"
        vectors = named(updater.state)
        self.good = Copied(_clones(vectors), updates, random_states(updater.device))
        """The last copy that was finite."""
        self._candidate = Copied(_clones(vectors), updates, {})
        self._largest = torch.zeros(len(vectors), pin_memory=on_gpu)
        self._host = {
            name: torch.empty(vector.shape, pin_memory=on_gpu) for name, vector in vectors.items()
        }
        self._checked, self._on_host = (blocking_event() if on_gpu else None for _ in range(2))
        self._stream = torch.cuda.Stream(updater.device) if on_gpu else None  # type: ignore[no-untyped-call]
        self.examining = False
        """Whether a copy is being checked."""

    @property
    def algorithm(self) -> Algorithm:
        """Whose state it is."""
        return self._updater.algorithm

    def take(self, updates: int) -> bool:
        """Start to copy and to check the newest state; False if the last copy is still in the way."""
        if self.examining or not _has_passed(self._on_host):
            return False
        spare, state = self._candidate.tensors, named(self._updater.state)
        torch._foreach_copy_(list(spare.values()), [state[name] for name in spare])
        largest = torch.stack([vector.abs().amax() for vector in spare.values()])
        self._largest.copy_(largest, non_blocking=True)
        if self._checked is not None:
            self._checked.record()
        self._candidate = Copied(spare, updates, random_states(self._updater.device))
        self.examining = True
        return True

    def poll(self, wait: bool = False) -> Verdict:
        """What became of the copy that was started last; says GOOD or BAD once."""
        if not self.examining:
            return Verdict.NONE
        if not wait and not _has_passed(self._checked):
            return Verdict.PENDING
        if self._checked is not None:
            self._checked.synchronize()
        self.examining = False
        if not math.isfinite(float(self._largest.sum())):
            return Verdict.BAD
        self.good, self._candidate = self._candidate, self.good
        return Verdict.GOOD

    def restore(self) -> list[str]:
        """Go back to the last good state; returns the vectors that were not finite. Waits for the device."""
        self._updater.pause()
        bad = not_finite(self._updater.state)
        self.examining = False
        self._updater.restore(cast(TrainingState, self.good.tensors))
        return bad

    def start_copy_to_host(self) -> None:
        """Start to copy the last good state to the host, beside the updates."""
        with torch.cuda.stream(self._stream):  # does nothing without one
            for name, vector in self.good.tensors.items():
                self._host[name].copy_(vector, non_blocking=True)
            if self._on_host is not None:
                self._on_host.record(self._stream)

    def host_copy(self) -> dict[str, Tensor] | None:
        """The copy that was started last, once it has arrived; valid until the next one is started."""
        return self._host if _has_passed(self._on_host) else None


def not_finite(state: TrainingState) -> list[str]:
    """The names of the vectors that hold NaN or infinity."""
    return [name for name, vector in named(state).items() if not bool(vector.isfinite().all())]


def random_states(device: torch.device) -> dict[str, Tensor]:
    """The states of the generators that updates on this device draw from."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_random_states(states: Mapping[str, Tensor], device: torch.device) -> None:
    """Continue to draw where these states were taken; with new numbers if this torch cannot read them."""
    with contextlib.suppress(RuntimeError, TypeError):
        if "cpu" in states:
            torch.set_rng_state(states["cpu"])
        if "cuda" in states and device.type == "cuda":
            torch.cuda.set_rng_state(states["cuda"], device)


def _clones(vectors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: vector.clone() for name, vector in vectors.items()}


def _has_passed(event: torch.cuda.Event | None) -> bool:
    """Whether a GPU has done what was enqueued before the event; without a GPU always."""
    return event is None or bool(event.query())  # type: ignore[no-untyped-call]
