"""Allocates the replay and the networks on the training devices."""

from __future__ import annotations

import torch

from spreeze.algos import build_algorithm
from spreeze.algos.base import Algorithm
from spreeze.learning.compiled.key import set_precision
from spreeze.learning.last_good import set_random_states
from spreeze.learning.replay import Replay
from spreeze.learning.state import TrainingState, init_state
from spreeze.learning.two_devices.link import Link, describe_link, find_link
from spreeze.learning.two_devices.updater import AnyUpdater, TwoDeviceUpdater
from spreeze.learning.updater import Updater, UpdateSetup, out_of_memory
from spreeze.networks import unfused_arithmetic
from spreeze.roles.context import Context
from spreeze.roles.learner.restore import Restored, restore
from spreeze.roles.learner.start_from import take_over
from spreeze.roles.learner.update_runner import free_memory
from spreeze.rows import PLACEMENTS
from spreeze.settings.config import resolved


def build(ctx: Context) -> tuple[Replay, AnyUpdater, Restored]:
    """Replay and networks, fresh or from a checkpoint."""
    ctx.note("the process has started")
    config = ctx.config
    learner, hyper = config.learner, config.hyper
    torch.set_num_threads(resolved(learner.threads))
    # Dead units decay into denormal numbers, which are a hundred times slower on a CPU.
    torch.set_flush_denormal(True)
    torch.manual_seed(ctx.seed()[0])
    device, *second = map(torch.device, config.devices)
    if device.index is not None:
        torch.cuda.set_device(device)  # graphs are captured on the current device
    set_precision(resolved(learner.precision))
    arithmetic = unfused_arithmetic(resolved(learner.precision))
    algorithm = build_algorithm(config.algo, hyper, ctx.spec, arithmetic)
    replay, state = allocate(ctx, algorithm, device)
    if config.start_from is not None and config.resume is None:
        take_over(ctx, algorithm, state)
    restored = restore(ctx, state, replay)
    chunk, batch_size = resolved(learner.updates_per_publish), resolved(learner.batch_size)
    setup = UpdateSetup(algorithm, replay, state, batch_size, hyper.rates(), chunk)
    if not second:
        set_random_states(restored.random, device)
        return replay, Updater(setup), restored
    # A serial run must repeat bit for bit, so the two devices take turns.
    updater = TwoDeviceUpdater(setup, second[0], lockstep=config.serial)
    ctx.counters["detour"] = find_link(device, second[0]) is Link.THROUGH_HOST
    link = describe_link(device, second[0])
    print(f"{link}; the actor is at most {updater.age_bound} updates old")
    set_random_states(restored.random, device)
    return replay, updater, restored


def allocate(
    ctx: Context, algorithm: Algorithm, device: torch.device
) -> tuple[Replay, TrainingState]:
    """Replay and fresh networks. If the replay does not fit where it should be, try the next place."""
    capacity, wanted = resolved(ctx.config.replay.capacity), resolved(ctx.config.replay.placement)
    ctx.counters["out_of_memory"] = 0
    prioritised = ctx.config.hyper.prioritised
    # The device draws rows by priority, so it must be able to read them.
    last = "pinned" if prioritised and device.type == "cuda" else PLACEMENTS[-1]
    for placement in PLACEMENTS[PLACEMENTS.index(wanted) :]:
        try:
            replay = Replay(ctx.layout, capacity, device, placement, prioritised=prioritised)
            state = init_state(algorithm, ctx.seed()[0], device)
        except RuntimeError as error:
            if not out_of_memory(error) or placement == last:
                raise
            print(f"no room for the replay, placement {placement}: {error}")
        else:
            ctx.counters["replay_placement"] = PLACEMENTS.index(placement)
            return replay, state
        ctx.counters["out_of_memory"] += 1
        free_memory(device)
    raise AssertionError
