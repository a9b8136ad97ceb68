"""Learner: drains experience into the replay, updates the networks, publishes the policy.

Reads: all lanes, control.   Writes: weights, its control counters, metrics, checkpoints.
Owns: the replay and the training state.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from spreeze.algos import find_algorithm
from spreeze.algos.base import Algorithm
from spreeze.learning.compiled.key import set_precision
from spreeze.learning.replay import Replay
from spreeze.learning.two_devices.channel import way_between
from spreeze.learning.two_devices.pair import TwoDeviceUpdater
from spreeze.learning.update import State, init_state
from spreeze.learning.updater import Updater, out_of_memory
from spreeze.networks import unfused_arithmetic
from spreeze.policy import Policy
from spreeze.roles.context import Context
from spreeze.roles.learner.intake import Intake
from spreeze.roles.learner.publisher import PolicyPublisher
from spreeze.roles.learner.update_runner import Learning, UpdateRunner, free_memory
from spreeze.roles.pacing import SampleBudget
from spreeze.rows import PLACEMENTS
from spreeze.settings.config import resolved
from spreeze.store.checkpoint import save_training
from spreeze.store.rundir import updates_before

LOG_EVERY_S = 1.0
WAIT_S = 0.001
INTAKE_EVERY_S = 0.05
"""Beside a GPU new rows are taken this often: a pass over all lanes costs more than the rows in it."""


def run(ctx: Context) -> Iterator[None]:
    """One unit of work is: take what came, a few updates, publish."""
    config, counters = ctx.config, ctx.counters
    intake = Intake(ctx.experience.readers(as_words=True))
    replay, updater = _build(ctx)
    ctx.note(f"replay and networks are in place, device {config.device}")
    runner = UpdateRunner(ctx, updater, replay)
    policy = Policy(ctx.spec, config.hyper.policy_form(ctx.spec))
    publisher = PolicyPublisher(ctx, policy, replay.device)
    warmup, chunk = resolved(config.learner.warmup_rows), updater.chunk
    warmup_steps = warmup * config.hyper.row_format().segment
    pace = SampleBudget(warmup_steps)
    knobs, (_, most) = ctx.control.supervisor, resolved(config.learner.ratio_bounds)
    updates = updates_before(config.resume)
    logged_s = saved_s = ctx.now()
    logged_updates = updates
    intake_s = next_intake_s = 0.0
    # The samplers act with the very first networks rather than wait for updated ones.
    publisher.send(updater.policy, updates)
    publisher.flush()
    # Of a learner that was killed, the updates since its last checkpoint are lost.
    counters["rows_learned"] -= max(int(counters["updates"]) - updates, 0) * int(
        counters["batch_size"]
    )
    counters["updates"] = updates
    try:
        while True:
            began_s = ctx.now()
            if replay.slack == 0 or began_s >= next_intake_s:
                intake.into(replay, ctx.weights.version)
                intake_s += ctx.now() - began_s
                next_intake_s = began_s + INTAKE_EVERY_S
            counters["replay_rows"], counters["rows_lost"] = replay.num_rows, intake.num_lost
            counters["policy_lag"] = intake.lag
            warm = replay.num_rows >= warmup
            fewest = float(knobs["min_updates_per_step"]) if warm else 0.0
            counters["allowed_steps"] = pace.allowed_steps(
                updates + chunk, fewest, ctx.control.env_steps
            )
            if warm and updates < most * max(ctx.control.env_steps - warmup_steps, 0):
                if counters["first_update_s"] == 0:
                    ctx.note(f"{replay.num_rows:,} rows are there: learning begins")
                    counters["first_update_s"] = ctx.now()
                runner.run()
                updates += chunk
                counters["rows_learned"] += chunk * updater.batch_size
                counters["updates"], counters["exchange_age"] = updates, updater.age
                publisher.send(updater.policy, updates)
            else:
                publisher.flush()
                ctx.wait(WAIT_S)
            if counters["first_update_s"] > 0 and (passed_s := ctx.now() - logged_s) >= LOG_EVERY_S:
                _log(ctx, updater, intake_s / passed_s)
                logged_s, logged_updates, intake_s = ctx.now(), updates, 0.0
            if ctx.now() - saved_s >= config.checkpoint.every_s:
                saved_s = ctx.now()
                _save(ctx, updater, policy, updates)
            yield
    except GeneratorExit:  # the run is over, maybe within its first second
        if updates > logged_updates:
            _log(ctx, updater, intake_s / max(ctx.now() - logged_s, 1e-9))
        raise
    finally:
        runner.close()
        _save(ctx, updater, policy, updates)


def _build(ctx: Context) -> tuple[Replay, Learning]:
    """Replay and networks on the training devices, fresh or from a checkpoint."""
    ctx.note("the process is up")
    config = ctx.config
    learner, hyper = config.learner, config.hyper
    torch.set_num_threads(resolved(learner.threads))
    # Dead units decay into denormal numbers, which a CPU computes a hundred times slower.
    torch.set_flush_denormal(True)
    torch.manual_seed(ctx.seed()[0])
    device, *second = map(torch.device, config.devices)
    if device.index is not None:
        torch.cuda.set_device(device)  # graphs are captured on the current device
    set_precision(resolved(learner.precision))
    arithmetic = unfused_arithmetic(resolved(learner.precision))
    algorithm = find_algorithm(config.algo).build(hyper, ctx.spec, arithmetic)
    replay, state = _allocate(ctx, algorithm, device)
    if config.resume is not None:
        _restore(config.resume, state)
    chunk, batch_size = resolved(learner.updates_per_publish), resolved(learner.batch_size)
    what = (algorithm, replay, state, batch_size, hyper.rates(), chunk)
    if not second:
        return replay, Updater(*what)
    # In one process that takes turns a seed repeats bit by bit, so the devices take turns too.
    pair = TwoDeviceUpdater(*what, second[0], lockstep=config.serial)
    way, ctx.counters["detour"] = way_between(device, second[0])
    print(f"{way}; the actor is {pair.age_bound} updates old at most")
    return replay, pair


def _allocate(ctx: Context, algorithm: Algorithm, device: torch.device) -> tuple[Replay, State]:
    """Replay and fresh networks; the replay where there is room for it, if not where it should be."""
    capacity, wanted = resolved(ctx.config.replay.capacity), resolved(ctx.config.replay.placement)
    ctx.counters["out_of_memory"] = 0
    prioritised = ctx.config.hyper.priorities()[0] > 0
    # Priorities are the device's business: it must be able to read the rows.
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


def _log(ctx: Context, updater: Learning, intake_share: float) -> None:
    counters, more = ctx.counters, {}
    if isinstance(updater, TwoDeviceUpdater):
        more = {"async/exchange_age": updater.age, "async/exchange_bound": updater.age_bound}
    env_steps, updates = ctx.control.env_steps, int(counters["updates"])
    ctx.recorder.record(
        time_s=ctx.now(),
        env_steps=env_steps,
        updates=updates,
        **{f"train/{name}": value for name, value in updater.metrics().items()},
        **{
            "train/n_updates": updates,
            "train/batch_size": int(counters["batch_size"]),
            "perf/compiled": int(counters["compiled"]),
            "perf/intake_share": intake_share,
            "perf/updates_per_step": updates / max(env_steps, 1),
            "async/policy_lag": float(counters["policy_lag"]),
            "replay/rows": int(counters["replay_rows"]),
            "replay/lost": int(counters["rows_lost"]),
            **more,
        },
    )


def _save(ctx: Context, updater: Learning, policy: Policy, updates: int) -> None:
    config = {
        "policy": policy.describe(),
        "config": ctx.config.to_json(),
        "updates": updates,
        "env_steps": ctx.control.env_steps,
    }
    train = {name: tensor.cpu().numpy() for name, tensor in updater.state.items()}
    if not all(np.isfinite(array).all() for array in train.values()):
        ctx.counters["diverged"] = 1
        return  # the checkpoint before is worth more
    policy.vector[:] = updater.policy.cpu().numpy()
    tensors = {"policy": policy.named(), "train": train}
    keep = ctx.config.checkpoint.keep
    if not save_training(ctx.run.checkpoints, updates, tensors, {"config": config}, keep):
        ctx.counters["saves_failed"] += 1


def _restore(run: str, state: State) -> None:
    """Networks, optimiser and counters from a run's last checkpoint; the replay fills anew."""
    from safetensors.torch import load_file

    for name, tensor in load_file(f"{run}/checkpoints/last/train.safetensors").items():
        state[name].copy_(tensor)
