"""Allocates the replay and the networks on the training devices."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from spreeze.algos import build_algorithm
from spreeze.algos.base import Algorithm
from spreeze.learning.compiled.key import set_precision
from spreeze.learning.data_parallel.shards import AnyReplay, ShardedReplay
from spreeze.learning.data_parallel.updater import DataParallelUpdater
from spreeze.learning.last_good import set_random_states
from spreeze.learning.replay import Replay
from spreeze.learning.state import TrainingState, init_state
from spreeze.learning.two_devices.link import Link, describe_link, find_link
from spreeze.learning.two_devices.updater import TwoDeviceUpdater
from spreeze.learning.updater import Updater, UpdateSetup, out_of_memory
from spreeze.learning.updaters import AnyUpdater
from spreeze.networks import unfused_arithmetic
from spreeze.roles.context import Context
from spreeze.roles.learner.restore import Restored, restore
from spreeze.roles.learner.start_from import take_over
from spreeze.roles.learner.update_runner import free_memory
from spreeze.rows import PLACEMENTS
from spreeze.settings.config import resolved


def build(ctx: Context) -> tuple[AnyReplay, AnyUpdater, Restored]:
    """Replay and networks, fresh or from a checkpoint."""
    ctx.note("the process has started")
    config = ctx.config
    learner, hyper = config.learner, config.hyper
    torch.set_num_threads(resolved(learner.threads))
    # Dead units decay into denormal numbers, which are a hundred times slower on a CPU.
    torch.set_flush_denormal(True)
    torch.manual_seed(ctx.seed()[0])
    devices = [torch.device(name) for name in config.devices]
    if devices[0].index is not None:
        torch.cuda.set_device(devices[0])  # graphs are captured on the current device
    set_precision(resolved(learner.precision))
    arithmetic = unfused_arithmetic(resolved(learner.precision))
    algorithm = build_algorithm(config.algo, hyper, ctx.spec, arithmetic)
    replay, state = allocate(ctx, algorithm, devices[:1] if config.is_split else devices)
    restored = restore(ctx, state, replay)
    if config.start_from is not None and not restored.resumed:
        take_over(ctx, algorithm, state)
    updater = _updater(ctx, algorithm, replay, state, devices)
    set_random_states(restored.random, devices[0])
    return replay, updater, restored


def _updater(
    ctx: Context,
    algorithm: Algorithm,
    replay: AnyReplay,
    state: TrainingState,
    devices: list[torch.device],
) -> AnyUpdater:
    """What runs the updates on these devices."""
    config, learner = ctx.config, ctx.config.learner
    chunk, batch_size = resolved(learner.updates_per_publish), resolved(learner.batch_size)
    first = replay.shards[0] if isinstance(replay, ShardedReplay) else replay
    setup = UpdateSetup(algorithm, first, state, batch_size, config.hyper.rates(), chunk)
    if isinstance(replay, ShardedReplay):
        print(f"{len(devices)} ranks share each batch: {', '.join(map(str, devices))}")
        return DataParallelUpdater(setup, replay, seeds=ctx.seed(len(devices))[1:])
    if len(devices) == 1:
        return Updater(setup)
    # A serial run must repeat bit for bit, so the two devices take turns.
    updater = TwoDeviceUpdater(setup, devices[1], lockstep=config.serial)
    ctx.counters["detour"] = find_link(*devices) is Link.THROUGH_HOST
    print(f"{describe_link(*devices)}; the actor is at most {updater.age_bound} updates old")
    return updater


def allocate(
    ctx: Context, algorithm: Algorithm, devices: Sequence[torch.device]
) -> tuple[AnyReplay, TrainingState]:
    """Replay and fresh networks. If the replay does not fit where it should be, try the next place.

    Of several devices, each has a shard of the replay; the networks are on the first one.
    """
    device = devices[0]
    size = ctx.layout.rows_for(resolved(ctx.config.replay.capacity) // len(devices))
    wanted = resolved(ctx.config.replay.placement)
    ctx.counters["out_of_memory"] = 0
    prioritised = ctx.config.hyper.prioritised
    # The device draws rows by priority, so it must be able to read them.
    last = "pinned" if prioritised and device.type == "cuda" else PLACEMENTS[-1]
    for placement in PLACEMENTS[PLACEMENTS.index(wanted) :]:
        try:
            shards = [
                Replay(ctx.layout, size, device, placement, prioritised=prioritised)
                for device in devices
            ]
            replay = ShardedReplay(shards) if len(shards) > 1 else shards[0]
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
