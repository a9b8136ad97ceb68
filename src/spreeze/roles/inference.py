"""Inference: runs the policy for all samplers, in batches on a device, where it is too large for a sampler.

Reads: questions of the samplers, weights, control.   Writes: answers, its control counters.   Owns: the network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spreeze.networks import unfused_arithmetic
from spreeze.roles.context import Context
from spreeze.rows import normalised
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
    network = Inference(ctx)
    weights = WeightsReader(ctx.weights, network.vector)
    next_fetch_s = 0.0
    while True:
        if ctx.now() >= next_fetch_s:
            next_fetch_s = ctx.now() + FETCH_EVERY_S
            ctx.mark(Activity.FETCH)
            if weights.refresh():
                network.load()
        waiting = [(slot, number) for slot in slots if (number := slot.open_question()) is not None]
        if not waiting or not weights.stamp.version:
            ctx.wait(WAIT_S)
            yield
            continue
        ctx.mark(Activity.ACT)
        outputs = network([slot for slot, _ in waiting])
        for (slot, number), answer in zip(waiting, outputs, strict=True):
            slot.answer(number, answer, weights.stamp.version)
        counters["answers"] += len(waiting)
        counters["batches"] += 1
        yield


class Inference:
    """The policy's network on its device."""
