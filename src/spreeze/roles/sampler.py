"""Sampler: acts with the newest weights, steps its environments, writes transitions.

Reads: weights, control.   Writes: its lane, its control counters, metrics.   Owns: its environments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np

from spreeze.envs.transitions import make_group
from spreeze.policy import Policy
from spreeze.roles.context import Context
from spreeze.roles.core_lending import CoreLending
from spreeze.roles.pacing import allowed_steps
from spreeze.settings.config import resolved

HOLD_S = 0.005
LOG_EVERY_S = 2.0
FIRST_UPDATES = 32
REST_S = 0.002
FETCH_EVERY_S = 0.01
"""A GPU publishes hundreds of policies a second; to copy each of them would cost samplers dearly."""


def run(ctx: Context) -> Iterator[None]:
    """One unit of work is one step of all environments of this process."""
    config, counters = ctx.config, ctx.counters
    num_envs, num_samplers = (
        resolved(config.sampler.envs_per_process),
        resolved(config.sampler.processes),
    )
    env_seed, policy_seed = ctx.seed(2)
    group = make_group(ctx.job.env, ctx.spec, num_envs, config.hyper.row_format())
    policy = Policy(ctx.spec, config.hyper.policy_form(ctx.spec))
    policy.seed(policy_seed)
    # All environments of all samplers share out the kinds of exploration; this is our share.
    if (scales := config.hyper.exploration(num_samplers * num_envs)) is not None:
        policy.set_exploration_scales(scales[ctx.job.index :: num_samplers])
    policy.set_noise_hold(config.hyper.longest_hold())
    spare = policy.vector.copy()
    lane = ctx.experience.writer(ctx.job.index)
    random_steps = -(-config.sampler.random_steps // num_samplers)
    learner, all_steps = config.learner, ctx.control.samplers["env_steps"]
    active, lending = ctx.control.supervisor, CoreLending(ctx.control, ctx.now)
    fewest, _ = resolved(learner.ratio_bounds)
    first_share = allowed_steps(resolved(learner.warmup_rows), FIRST_UPDATES, fewest)
    returns: deque[tuple[float, int]] = deque(maxlen=100)
    logged_s, fetch_s = ctx.now(), 0.0
    version = 0
    env_steps = int(counters["env_steps"])  # a restarted sampler goes on counting
    try:
        group.reset(env_seed % 2**31 + env_steps)
        while True:
            # Before the learner is up it has allowed nothing yet; then the first share is enough.
            allowed = ctx.control.learner["allowed_steps"] or first_share
            if all_steps.sum() > allowed or ctx.job.index >= active["active_samplers"]:
                ctx.wait(HOLD_S)
                yield
                continue
            if lending.is_lent(ctx.job.index):
                ctx.idle(REST_S)  # not a wait: the core is at work
                yield
                continue
            if ctx.now() >= fetch_s:
                fetch_s = ctx.now() + FETCH_EVERY_S
                if (stamp := ctx.weights.fetch(spare, version)) is not None:
                    policy.vector[:] = spare
                    version = stamp.version
                    counters["version"] = version
            # Random until there is a policy: nobody waits for the first weights. One that says how
            # likely its actions are acts from the start: with no weights, at random.
            at_start = version == 0 or env_steps < random_steps
            explore_randomly = at_start and not policy.has_log_prob
            actions = (
                policy.act_randomly(group.num_envs)
                if explore_randomly
                else policy.act(group.obs, True)
            )
            env_actions, rows = policy.to_env_action(actions), lane.reserve()
            lane.commit(group.step(actions, env_actions, version, rows, policy.log_prob))
            env_steps += group.num_envs
            counters["env_steps"] = env_steps
            if group.finished:
                returns.extend(group.finished)
                counters["episodes"] += len(group.finished)
                group.finished.clear()
                counters["return_mean"], counters["length_mean"] = np.mean(returns, axis=0)
            counters["rejected"] = group.num_rejected
            if returns and ctx.now() - logged_s >= LOG_EVERY_S:
                logged_s = ctx.now()
                _log(ctx)
            yield
    finally:
        group.close()


def _log(ctx: Context) -> None:
    counters = ctx.counters
    ctx.recorder.record(
        time_s=ctx.now(),
        env_steps=ctx.control.env_steps,
        updates=int(ctx.control.learner["updates"]),
        **{
            "rollout/ep_rew_mean": float(counters["return_mean"]),
            "rollout/ep_len_mean": float(counters["length_mean"]),
            "rollout/episodes": int(counters["episodes"]),
            "async/weights_version": int(counters["version"]),
        },
    )
