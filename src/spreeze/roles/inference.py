"""Inference: runs the policy for all samplers, in batches on a device, where it is too large for a sampler.

Reads: questions of the samplers, weights, control.   Writes: answers, its control counters.   Owns: the network.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from spreeze.learning.running_statistics import normalise_numbers
from spreeze.networks import read_stacks, unfused_arithmetic
from spreeze.roles.context import Context
from spreeze.settings.config import resolved
from spreeze.spec import Floats
from spreeze.store.trace import Activity
from spreeze.wires.acting import Acting, Slot, obs_of
from spreeze.wires.weights import WeightsReader

WAIT_S = 0.00005
FEW = 4
"""There is a smaller graph for this fraction of all slots."""
FETCH_EVERY_S = 0.1


def run(ctx: Context) -> Iterator[None]:
    """One unit of work is one batch: all questions that wait now, or a short sleep."""
    counters, slots = ctx.counters, Acting(ctx.arena).slots()
    network = Network(ctx, len(slots))
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

    def __init__(self, ctx: Context, num_slots: int) -> None:
        """Its weights are 0 until they are loaded."""
        config = ctx.config
        torch.set_num_threads(1)
        torch.set_flush_denormal(True)
        self._spec, self._device = ctx.spec, torch.device(config.devices[0])
        arithmetic = unfused_arithmetic(resolved(config.learner.precision))
        self._network = config.hyper.build_policy(ctx.spec, arithmetic).network
        on_gpu = self._device.type == "cuda"
        self._arrived = torch.zeros(ctx.weights.size, pin_memory=on_gpu)
        self.vector: Floats = self._arrived.numpy()
        """As it is published: the network, the log of a Gaussian's standard deviation, then the statistics."""
        flat = self._flat = torch.zeros(len(self.vector), device=self._device)
        size, statistics = self._network.shapes.size, 2 * ctx.spec.vector_size * ctx.form.normalised
        self._parts = torch.split(flat, [size, len(flat) - size - statistics, statistics])
        few = -(-num_slots // FEW)
        self._rooms = [Room(self, num, ctx) for num in dict.fromkeys((few, num_slots))]

    def load(self) -> None:
        """Take over the vector. In place: captured graphs read the same tensor."""
        self._flat.copy_(self._arrived)

    def answer(self, slots: Sequence[Slot]) -> Floats:
        """The outputs for each slot, [slots, environments, outputs]; valid until the next call."""
        room = next(room for room in self._rooms if len(room.obs) >= len(slots))
        for place, slot in zip(room.obs, slots, strict=False):
            place[:] = slot.obs
        return room.compute(len(slots))

    def outputs(self, obs: Tensor) -> Tensor:
        """The outputs for observations as bytes."""
        network, head, statistics = self._parts
        spec = self._spec
        seen = read_stacks(obs, spec.frames) if spec.images else obs.view(torch.float32)
        if len(statistics):
            seen = normalise_numbers(seen, *statistics.chunk(2))
        outputs = self._network(network, seen).float()
        if len(head):  # the log of a Gaussian's standard deviation, the same in all states
            outputs = torch.cat([outputs, head.expand(len(outputs), -1)], 1)
        return outputs


class Room:
    """Room for the questions of some slots. On a GPU one graph copies them there and the answers back."""

    def __init__(self, network: Network, num_slots: int, ctx: Context) -> None:
        """Get ready to answer up to so many."""
        self._network, self._device = network, torch.device(ctx.config.devices[0])
        on_gpu = self._device.type == "cuda"
        _, num_envs, obs_bytes = obs_of(ctx.arena).shape[1:]
        shape = num_slots, num_envs, obs_bytes
        self._obs = torch.zeros(shape, dtype=torch.uint8, pin_memory=on_gpu)
        self.obs = self._obs.numpy()
        """The observations of each slot."""
        self._answers = torch.zeros(0)
        self._graph = self._capture() if on_gpu else None

    def compute(self, num: int) -> Floats:
        """The outputs for the first slots, [slots, environments, outputs]."""
        if self._graph is None:
            return self._outputs(self._obs[:num]).numpy()
        self._graph.replay()
        torch.cuda.current_stream(self._device).synchronize()
        answers: Floats = self._answers[:num].numpy()
        return answers

    @torch.inference_mode()
    def _outputs(self, obs: Tensor) -> Tensor:
        slots, envs = obs.shape[:2]
        return self._network.outputs(obs.flatten(0, 1)).view(slots, envs, -1)

    def _enqueue(self) -> None:
        outputs = self._outputs(self._obs.to(self._device, non_blocking=True))
        if self._answers.shape != outputs.shape:
            self._answers = torch.zeros(outputs.shape, pin_memory=True)
        self._answers.copy_(outputs, non_blocking=True)

    def _capture(self) -> torch.cuda.CUDAGraph:
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            for _ in range(2):  # cuDNN and the allocator settle before the capture
                self._enqueue()
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            self._enqueue()
        return graph
