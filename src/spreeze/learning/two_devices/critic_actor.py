"""The two parts of an update, an updater for each: the critic's and the actor's."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from spreeze.learning.minibatch import SampledBatches
from spreeze.learning.replay import Replay
from spreeze.learning.state import state_names, to_state, to_tensors
from spreeze.learning.step import UpdateOutputs
from spreeze.learning.updater import Updater, UpdateSetup
from spreeze.rows import Layout


class CriticUpdater(Updater):
    """Updates the critic, and keeps the rows and the noise that the actor learns from.

    It gets the whole training state and updates its own part of it.
    """

    part = "critic"

    def __init__(self, setup: UpdateSetup) -> None:
        """Prepare to update the critic of `setup.state`; copies of the actor arrive there too."""
        super().__init__(setup)
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

    def release(self) -> None:
        """Free captured graphs, batches, and what is kept for the actor."""
        super().release()
        self._for_actor.clear()

    def _keep_for_actor(self, i: int, out: UpdateOutputs, noise: Tensor) -> None:
        assert out.actor_rows is not None
        rows, noises = self.for_actor
        rows[i].copy_(out.actor_rows)
        noises[i].copy_(noise[1:, -self.batch_size :])


class ActorUpdater(Updater):
    """Updates the actor, from rows and noise that the critic's device sends."""

    part = "actor"

    def __init__(self, setup: UpdateSetup, device: torch.device) -> None:
        """Prepare to update a copy of the actor of `setup.state` on `device`; it needs no replay."""
        names = state_names(setup.algorithm)
        copies = [vector.to(device, copy=True) for vector in to_tensors(setup.state, names)]
        no_replay = Replay(setup.replay.layout, 1, device, "host")
        super().__init__(replace(setup, replay=no_replay, state=to_state(names, copies)))
        with torch.no_grad():  # one update that changes nothing, to learn the names of the metrics
            flat = self.plain(*self.inputs(setup.batch_size))
        self._metrics = torch.zeros_like(self.plain.unflatten_outputs(flat).metrics)

    @property
    def incoming(self) -> list[Tensor]:
        """Where the rows and the noise of a chunk arrive."""
        batches = self._sampled_batches(self.batch_size)
        return [batches.data, batches.noise]

    @property
    def critics(self) -> list[Tensor]:
        """Where the critic arrives, and the statistics if there are any."""
        return to_tensors(self._others, self.plain.others)

    @property
    def outgoing(self) -> list[Tensor]:
        """Its state and the metrics of its last update."""
        return [*to_tensors(self._state, self.plain.names), self._metrics]

    def _sampled_batches(self, batch_size: int) -> ReceivedBatches:
        if batch_size not in self._batches:
            shape = (self._num_rounds, 1, batch_size, self._action_size)
            self._batches[batch_size] = ReceivedBatches(self.layout, shape, self.device)
        batches = self._batches[batch_size]
        assert isinstance(batches, ReceivedBatches)
        return batches

    def _draw_random(self, num: int, batch_size: int) -> tuple[Tensor, Tensor]:
        batches = self._sampled_batches(batch_size)
        return batches.uniform, batches.noise


class ReceivedBatches(SampledBatches):
    """Batches that another device sends, with the noise of each."""

    def __init__(
        self, layout: Layout, shape: tuple[int, int, int, int], device: torch.device
    ) -> None:
        """Room for noise of this shape and the rows that go with it."""
        super().__init__(layout, shape[0], shape[2], device)
        self.noise = torch.zeros(shape, device=device)
