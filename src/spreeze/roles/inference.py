"""Inference: runs the policy for all samplers, in batches on a device, where it is too large for a sampler.

Reads: questions of the samplers, weights, control.   Writes: answers, its control counters.   Owns: the network.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from spreeze.learning.running_statistics import normalise_numbers
from spreeze.networks import read_stacks, unfused_arithmetic
from spreeze.roles.context import Context
from spreeze.settings.config import resolved
from spreeze.spec import Floats
from spreeze.store.trace import Activity
from spreeze.wires.acting import Acting, Slot
from spreeze.wires.weights import WeightsReader

WAIT_S = 0.00005
FETCH_EVERY_S = 0.01


def run(ctx: Context) -> Iterator[None]:
    """One unit of work is one batch: all questions that wait now, or a short sleep."""
    counters, slots = ctx.counters, Acting(ctx.arena).slots()
    network = Network(ctx)
    weights = WeightsReader(ctx.weights, network.vector)
    next_fetch_s = 0.0
    while True:
        if ctx.now() >= next_fetch_s:
            next_fetch_s = ctx.now() + FETCH_EVERY_S
            ctx.mark(Activity.FETCH)
            if weights.refresh():
                network.load()
                counters["version"] = weights.stamp.version
        waiting = [(slot, number) for slot in slots if (number := slot.open_question()) is not None]
        if not waiting or not weights.stamp.version:
            ctx.wait(WAIT_S)
            yield
            continue
        ctx.mark(Activity.ACT)
        answers = network.answer([slot for slot, _ in waiting])
        for (slot, number), outputs in zip(waiting, answers, strict=True):
            slot.answer(number, outputs, weights.stamp.version)
        counters["answers"] += len(waiting)
        counters["batches"] += 1
        yield


class Network:
    """The policy on its device, without what makes actions of its outputs: that stays with the samplers' noise."""

    def __init__(self, ctx: Context) -> None:
        """Its weights are 0 until they are loaded."""
        config = ctx.config
        torch.set_num_threads(1)
        torch.set_flush_denormal(True)
        self._spec, self._device = ctx.spec, torch.device(config.devices[0])
        arithmetic = unfused_arithmetic(resolved(config.learner.precision))
        self._network = config.hyper.build_policy(ctx.spec, arithmetic).network
        self.vector: Floats = np.zeros(ctx.weights.size, np.float32)
        """As it is published: the network, the log of a Gaussian's standard deviation, then the statistics."""
        self._sizes = self._network.shapes.size, 2 * ctx.spec.vector_size * ctx.form.normalised
        self._parts: Sequence[Tensor] = ()
        self.load()

    def load(self) -> None:
        """Take over the vector."""
        size, statistics = self._sizes
        flat = torch.from_numpy(self.vector.copy()).to(self._device)
        rest = len(flat) - size - statistics
        self._parts = torch.split(flat, [size, rest, statistics])

    @torch.inference_mode()
    def answer(self, slots: Sequence[Slot]) -> Floats:
        """The outputs for each slot, [slots, environments, outputs]."""
        network, head, statistics = self._parts
        num = len(slots[0].obs)
        gathered = np.concatenate([slot.obs for slot in slots])
        obs = torch.from_numpy(gathered).to(self._device, non_blocking=True)
        spec = self._spec
        seen = read_stacks(obs, spec.frames) if spec.images else obs.view(torch.float32)
        if len(statistics):
            seen = normalise_numbers(seen, *statistics.chunk(2))
        outputs = self._network(network, seen).float()
        if len(head):  # the log of a Gaussian's standard deviation, the same in all states
            outputs = torch.cat([outputs, head.expand(len(outputs), -1)], 1)
        answers: Floats = outputs.cpu().numpy().reshape(len(slots), num, -1)
        return answers
