"""Learner: drains experience into the replay, updates the networks, publishes the policy.

Reads: all lanes, control.   Writes: weights, its control words, metrics, checkpoints.
Owns: the replay and the training state.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from spreeze.algos import ALGORITHMS
from spreeze.checkpoint import name_checkpoint, prune_checkpoints, save_checkpoint
from spreeze.policy import Policy
from spreeze.replay import Replay
from spreeze.roles.base import Context
from spreeze.updates import State, Updater, init_state
from spreeze.wires.experience import LaneReader

LOG_EVERY_S = 1.0
WAIT_S = 0.001
DRAIN_ROWS = 4096


def run(ctx: Context) -> Iterator[None]:
    """One unit of work is: take what came, a few updates, publish."""
    config, words, control = ctx.config, ctx.words, ctx.control
    learner, hyper = config.learner, config.hyper
    assert isinstance(learner.threads, int) and isinstance(learner.batch_size, int)
    assert isinstance(config.replay.capacity, int) and isinstance(learner.warmup_rows, int)
    assert isinstance(learner.updates_per_publish, int) and isinstance(learner.ratio_bounds, tuple)
    assert isinstance(hyper.lr, float) and isinstance(hyper.tau, float)
    torch.set_num_threads(learner.threads)
    torch.manual_seed(ctx.seed()[0])
    device = torch.device(config.device)
    algorithm = ALGORITHMS[config.algo].build(hyper, ctx.spec)
    replay = Replay(ctx.layout, config.replay.capacity, device)
    state = init_state(algorithm, ctx.seed()[0], device)
    if config.resume is not None:
        _restore(ctx, state)
    updater = Updater(algorithm, replay, state, learner.batch_size, hyper.lr, hyper.tau)
    intake = Intake(ctx.experience.readers(), ctx.layout.dtype)
    policy = Policy(ctx.spec, hyper.hidden)
    low, high = learner.ratio_bounds
    updates = first = int(state["updates"])
    logged_s = saved_s = ctx.now()
    words["updates"], words["ready"] = updates, 1
    # The samplers act with the very first networks rather than wait for updated ones.
    _publish(ctx, state, policy, algorithm.policy_size, updates)
    try:
        while True:
            lag = intake.into(replay, ctx.weights.version)
            env_steps = control.env_steps
            words["replay_rows"], words["rows_lost"] = replay.num_rows, intake.num_lost
            # The ratio is counted from the first row that learning could start with.
            steps = max(env_steps - learner.warmup_rows, 0)
            done = updates - first
            words["hold"] = done < low * steps - learner.updates_per_publish
            if replay.num_rows < learner.warmup_rows or done >= high * steps:
                ctx.wait(WAIT_S)
            else:
                if done == 0:
                    words["first_update_s"] = ctx.now()
                updater.run(learner.updates_per_publish)
                updates += learner.updates_per_publish
                words["updates"] = updates
                _publish(ctx, state, policy, algorithm.policy_size, updates)
            if lag is not None:
                words["policy_lag"] += 0.05 * (lag - words["policy_lag"])
            if done and ctx.now() - logged_s >= LOG_EVERY_S:
                logged_s = ctx.now()
                _log(ctx, updater, updates / max(env_steps, 1))
            if done and ctx.now() - saved_s >= config.checkpoint.every_s:
                saved_s = ctx.now()
                _save(ctx, state, policy, updates)
            yield
    finally:
        _publish(ctx, state, policy, algorithm.policy_size, updates)
        _save(ctx, state, policy, updates)


class Intake:
    """The reading ends of all lanes, and a buffer for what comes out of them."""

    def __init__(self, lanes: list[LaneReader], dtype: np.dtype[np.void]) -> None:
        """Read these lanes."""
        self._lanes = lanes
        self._buffer = np.zeros(DRAIN_ROWS, dtype)

    @property
    def num_lost(self) -> int:
        """Rows that were overwritten before they could be read."""
        return sum(lane.num_lost for lane in self._lanes)

    def into(self, replay: Replay, version: int) -> float | None:
        """Move what is new to the replay; returns how many versions old its actions are, on average."""
        lags, num_rows = 0.0, 0
        for lane in self._lanes:
            # What was there when we came, and not what is written meanwhile: updates must go on.
            waiting = lane.num_waiting
            while waiting > 0:
                rows = lane.drain(self._buffer)
                waiting -= DRAIN_ROWS
                if len(rows):
                    replay.insert(rows)
                    lags += float((version - rows["version"].astype(np.int64)).sum())
                    num_rows += len(rows)
        return lags / num_rows if num_rows else None


def _publish(ctx: Context, state: State, policy: Policy, size: int, updates: int) -> None:
    policy.vector[:] = state["actor"][:size].cpu().numpy()
    # Samplers stay on the last good policy if the newest one is broken.
    if np.isfinite(policy.vector.sum()):
        ctx.weights.publish(policy.vector, updates, ctx.control.env_steps)


def _log(ctx: Context, updater: Updater, ratio: float) -> None:
    words = ctx.words
    metrics = updater.metrics()
    words["critic_loss"] = metrics["critic_loss"]
    ctx.recorder.record(
        time_s=ctx.now(),
        env_steps=ctx.control.env_steps,
        updates=int(words["updates"]),
        **{f"train/{name}": value for name, value in metrics.items()},
        **{
            "train/n_updates": int(words["updates"]),
            "perf/updates_per_step": ratio,
            "async/policy_lag": float(words["policy_lag"]),
            "replay/rows": int(words["replay_rows"]),
            "replay/lost": int(words["rows_lost"]),
        },
    )


def _save(ctx: Context, state: State, policy: Policy, updates: int) -> None:
    folder = ctx.run.checkpoints
    config = {
        "policy": {"spec": ctx.spec.to_json(), "hidden": policy.hidden},
        "config": ctx.config.to_json(),
        "updates": updates,
        "env_steps": ctx.control.env_steps,
    }
    train = {name: tensor.cpu().numpy() for name, tensor in state.items()}
    tensors = {"policy": policy.named(), "train": train}
    name_checkpoint(save_checkpoint(folder, updates, tensors, {"config": config}), "last")
    prune_checkpoints(folder, ctx.config.checkpoint.keep)


def _restore(ctx: Context, state: State) -> None:
    from safetensors.torch import load_file

    assert ctx.config.resume is not None
    path = f"{ctx.config.resume}/checkpoints/last/train.safetensors"
    for name, tensor in load_file(path).items():
        state[name].copy_(tensor)
