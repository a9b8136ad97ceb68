"""Learner: drains experience into the replay, updates the networks, publishes the policy.

Reads: all lanes, control.   Writes: weights, its control words, metrics, checkpoints.
Owns: the replay and the training state.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from spreeze.algos import ALGORITHMS
from spreeze.checkpoint import save_training
from spreeze.compiling import Compilation, agrees, recipe_of, set_precision
from spreeze.config import settled
from spreeze.networks import plain_arithmetic
from spreeze.policy import Policy
from spreeze.replay import Replay
from spreeze.roles.base import Context, allowed_steps
from spreeze.rundir import RunDir
from spreeze.updates import State, Updater, init_state
from spreeze.wires.experience import LaneReader

LOG_EVERY_S = 1.0
WAIT_S = 0.001
DRAIN_ROWS = 4096
LAG_SMOOTHING = 0.05


def run(ctx: Context) -> Iterator[None]:
    """One unit of work is: take what came, a few updates, publish."""
    config, words = ctx.config, ctx.words
    torch.set_num_threads(settled(config.learner.threads))
    # Dead units decay into denormal numbers, which a CPU computes a hundred times slower.
    torch.set_flush_denormal(True)
    torch.manual_seed(ctx.seed()[0])
    intake = Intake(ctx.experience.readers(), ctx.layout.dtype)
    replay, updater = _build(ctx)
    swap = Swap(ctx, updater)
    policy = Policy(ctx.spec, settled(config.hyper.hidden))
    warmup, chunk = settled(config.learner.warmup_rows), settled(config.learner.updates_per_publish)
    fewest, most = settled(config.learner.ratio_bounds)
    updates = _updates_before(config.resume)
    logged_s = saved_s = ctx.now()
    # The samplers act with the very first networks rather than wait for updated ones.
    _publish(ctx, updater.state, policy, updates)
    words["updates"] = updates
    try:
        while True:
            intake.into(replay, ctx.weights.version)
            words["replay_rows"], words["rows_lost"] = replay.num_rows, intake.num_lost
            words["policy_lag"] = intake.lag
            warm = replay.num_rows >= warmup
            words["allowed_steps"] = allowed_steps(warmup, updates + chunk, fewest if warm else 0)
            if warm and updates < most * max(ctx.control.env_steps - warmup, 0):
                if words["first_update_s"] == 0:
                    words["first_update_s"] = ctx.now()
                swap.poll()
                updater.run()
                updates += chunk
                words["updates"] = updates
                _publish(ctx, updater.state, policy, updates)
            else:
                ctx.wait(WAIT_S)
            if words["first_update_s"] > 0 and ctx.now() - logged_s >= LOG_EVERY_S:
                logged_s = ctx.now()
                _log(ctx, updater)
            if ctx.now() - saved_s >= config.checkpoint.every_s:
                saved_s = ctx.now()
                _save(ctx, updater.state, policy, updates)
            yield
    finally:
        swap.close()
        _save(ctx, updater.state, policy, updates)


def _build(ctx: Context) -> tuple[Replay, Updater]:
    """Replay and networks on the training device, fresh or from a checkpoint."""
    config = ctx.config
    learner, hyper, device = config.learner, config.hyper, torch.device(config.device)
    if device.index is not None:
        torch.cuda.set_device(device)  # graphs are captured on the current device
    set_precision(settled(learner.precision))
    arithmetic = plain_arithmetic(settled(learner.precision))
    algorithm = ALGORITHMS[config.algo].build(hyper, ctx.spec, arithmetic)
    replay = Replay(ctx.layout, settled(config.replay.capacity), device)
    state = init_state(algorithm, ctx.seed()[0], device)
    if config.resume is not None:
        _restore(config.resume, state)
    rates = (settled(hyper.lr), settled(hyper.tau))
    chunk = settled(learner.updates_per_publish)
    return replay, Updater(algorithm, replay, state, settled(learner.batch_size), rates, chunk)


class Swap:
    """Takes the compiled update into use when it is ready, for every batch size that is asked for."""

    def __init__(self, ctx: Context, updater: Updater) -> None:
        """Take what is compiled already; anything else waits for the first update."""
        self._ctx = ctx
        self._updater = updater
        self._running: dict[int, Compilation] = {}
        self._settled: set[int] = set()
        # One process that takes turns must not change its arithmetic at a random moment.
        self._wanted = ctx.config.learner.compile and not ctx.config.serial
        size = settled(ctx.config.learner.batch_size)
        if self._wanted and recipe_of(ctx.config, ctx.spec, size).path().exists():
            self._compilation(size)

    def poll(self) -> None:
        """Look at the batch size that is asked for, and at what has been compiled."""
        updater, size = self._updater, int(self._ctx.control.supervisor["batch_size"])
        updater.batch_size = size
        if not self._wanted or size in self._settled:
            return
        compilation = self._compilation(size)
        if not compilation.poll():
            return
        self._settled.add(size)
        step, words = compilation.step, self._ctx.words
        if step is not None and agrees(updater, step, compilation.recipe.precision):
            updater.use(size, step)
            words["compiled"] = 1
        else:
            print(compilation.problem or "the compiled update differs from the plain one")
            words["compiled"] = 2 if "C++" in (compilation.problem or "") else 3

    def _compilation(self, size: int) -> Compilation:
        if size not in self._running:
            recipe = recipe_of(self._ctx.config, self._ctx.spec, size)
            self._running[size] = Compilation(recipe, self._ctx.run.log("compiler"))
        return self._running[size]

    def close(self) -> None:
        """End what is still being compiled."""
        for compilation in self._running.values():
            compilation.close()


class Intake:
    """The reading ends of all lanes, and a buffer for what comes out of them."""

    def __init__(self, lanes: list[LaneReader], dtype: np.dtype[np.void]) -> None:
        """Read these lanes."""
        self._lanes = lanes
        self._buffer = np.zeros(DRAIN_ROWS, dtype)
        self.lag = 0.0
        """How many versions old the newest actions are, smoothed."""

    @property
    def num_lost(self) -> int:
        """Rows that were overwritten before they could be read."""
        return sum(lane.num_lost for lane in self._lanes)

    def into(self, replay: Replay, version: int) -> None:
        """Move what is new to the replay."""
        for lane in self._lanes:
            # What was there when we came, and not what is written meanwhile: updates must go on.
            waiting = lane.num_waiting
            while waiting > 0:
                rows = lane.drain(self._buffer)
                waiting -= DRAIN_ROWS
                if len(rows):
                    replay.insert(rows)
                    behind = version - float(rows["version"].mean())
                    self.lag += LAG_SMOOTHING * (behind - self.lag)


def _publish(ctx: Context, state: State, policy: Policy, updates: int) -> None:
    policy.vector[:] = state["actor"][: policy.vector.size].cpu().numpy()
    # Samplers stay on the last good policy if the newest one is broken.
    if np.isfinite(policy.vector.sum()):
        ctx.weights.publish(policy.vector, updates, ctx.control.env_steps)
    else:
        ctx.words["diverged"] = 1


def _log(ctx: Context, updater: Updater) -> None:
    words = ctx.words
    env_steps, updates = ctx.control.env_steps, int(words["updates"])
    ctx.recorder.record(
        time_s=ctx.now(),
        env_steps=env_steps,
        updates=updates,
        **{f"train/{name}": value for name, value in updater.metrics().items()},
        **{
            "train/n_updates": updates,
            "perf/compiled": int(words["compiled"]),
            "perf/updates_per_step": updates / max(env_steps, 1),
            "async/policy_lag": float(words["policy_lag"]),
            "replay/rows": int(words["replay_rows"]),
            "replay/lost": int(words["rows_lost"]),
        },
    )


def _save(ctx: Context, state: State, policy: Policy, updates: int) -> None:
    config = {
        "policy": {"spec": ctx.spec.to_json(), "hidden": policy.hidden},
        "config": ctx.config.to_json(),
        "updates": updates,
        "env_steps": ctx.control.env_steps,
    }
    train = {name: tensor.cpu().numpy() for name, tensor in state.items()}
    if not all(np.isfinite(array).all() for array in train.values()):
        ctx.words["diverged"] = 1
        return  # the checkpoint before is worth more
    tensors = {"policy": policy.named(), "train": train}
    keep = ctx.config.checkpoint.keep
    if not save_training(ctx.run.checkpoints, updates, tensors, {"config": config}, keep):
        ctx.words["saves_failed"] += 1


def _updates_before(resume: str | None) -> int:
    """Updates done by the run that is resumed. Not from the state: float32 stops counting at 2^24."""
    if resume is None:
        return 0
    return int(RunDir(Path(resume) / "checkpoints" / "last").read("config")["updates"])


def _restore(run: str, state: State) -> None:
    """Networks, optimiser and counters from a run's last checkpoint; the replay fills anew."""
    from safetensors.torch import load_file

    for name, tensor in load_file(f"{run}/checkpoints/last/train.safetensors").items():
        state[name].copy_(tensor)
