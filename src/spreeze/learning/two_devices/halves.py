"""The halves of an update, each an updater for a device of its own: the critic's and the actor's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spreeze.algos.base import Algorithm
from spreeze.learning.replay import Batches, Replay
from spreeze.learning.update import State, state_names
from spreeze.learning.updater import Updater
from spreeze.rows import Layout


class CriticUpdater(Updater):
    """Updates of the critic; keeps the rows and the noise that the actor learns from."""

    part = "critic"

    def __init__(self, *what: Any) -> None:
        """As an updater; the state is the whole one, of which it updates its own part."""
        super().__init__(*what)
        self._for_actor: dict[int, list[Tensor]] = {}

    @property
    def for_actor(self) -> list[Tensor]:
        """Rows [rounds, batch, width] and noise [rounds, 1, batch, action] of the last chunk."""
        num, size, device = self._num_rounds, self.batch_size, self.device
        if size not in self._for_actor:
            self._for_actor[size] = [
                torch.zeros(num, size, self.layout.width, device=device),
                torch.zeros(num, 1, size, self._action_size, device=device),
            ]
        return self._for_actor[size]

    def forget(self) -> None:
        """Drop everything prepared, and what is kept for the actor."""
        super().forget()
        self._for_actor.clear()

    def _pass_on(self, i: int, extras: list[Tensor], noise: Tensor) -> None:
        rows, noises = self.for_actor
        rows[i].copy_(extras[0])
        noises[i].copy_(noise[1:, -self.batch_size :])


class ActorUpdater(Updater):
    """Updates of the actor, from rows and noise that come from elsewhere."""

    part = "actor"

    def __init__(
        self,
        algorithm: Algorithm,
        layout: Layout,
        device: torch.device,
        state: State,
        batch_size: int,
        rates: tuple[float, float],
        chunk: int = 1,
    ) -> None:
        """As an updater; of the whole `state` it takes copies of what it needs."""
        nowhere = Replay(layout, 1, device, "host")
        names = state_names(algorithm)
        own = {name: state[name].to(device, copy=True) for name in names}
        super().__init__(algorithm, nowhere, own, batch_size, rates, chunk)
        with torch.no_grad():  # one that leaves no trace, to know which metrics there are
            self._metrics = torch.zeros_like(self.plain(*self.inputs(batch_size))[-1])

    @property
    def incoming(self) -> list[Tensor]:
        """Where rows and noise of a chunk have to be."""
        given = self._stage(self.batch_size)
        return [given.data, given.noise]

    @property
    def critics(self) -> list[Tensor]:
        """Where the critic has to be, and what else of the other half it needs."""
        return self._others

    @property
    def outgoing(self) -> list[Tensor]:
        """Its state and the metrics of its last update."""
        return [*self._state, self._metrics]

    def _stage(self, batch_size: int) -> ReceivedBatches:
        if batch_size not in self._stages:
            shape = (self._num_rounds, 1, batch_size, self._action_size)
            self._stages[batch_size] = ReceivedBatches(self.layout, shape, self.device)
        given = self._stages[batch_size]
        assert isinstance(given, ReceivedBatches)
        return given

    def _draw(self, num: int, batch_size: int) -> tuple[Tensor, Tensor]:
        given = self._stage(batch_size)
        return given.uniform, given.noise


class ReceivedBatches(Batches):
    """Batches that come from another device, with the noise of each."""

    def __init__(
        self, layout: Layout, shape: tuple[int, int, int, int], device: torch.device
    ) -> None:
        """Room for noise of this shape and the rows that go with it."""
        super().__init__(layout, shape[0], shape[2], device)
        self.noise = torch.zeros(shape, device=device)
