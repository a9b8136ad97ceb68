"""Every metric of a run: its name, its unit and its meaning. docs/metrics.md lists them from here.

In a name, `<role>` and `<name>` stand for any role and for any number that an environment puts into `info`.
"""

from __future__ import annotations

from typing import NamedTuple


class Metric(NamedTuple):
    """One recorded number."""

    name: str
    unit: str
    """Empty: it has none."""
    meaning: str


# fmt: off
METRICS = {
    "axes": (
        Metric("time_s", "s", "time since the start of the command"),
        Metric("env_steps", "steps", "environment steps of all samplers together"),
        Metric("updates", "updates", "updates of the networks"),
    ),
    "sampler": (
        Metric("rollout/ep_rew_mean", "return", "mean return of this sampler's share of the run's last 100 episodes, exploration included"),
        Metric("rollout/ep_len_mean", "steps", "mean length of the same episodes"),
        Metric("rollout/episodes", "episodes", "episodes that this sampler has finished"),
        Metric("async/weights_version", "version", "the version of the weights that this sampler acts with"),
    ),
    "learner": (
        Metric("train/critic_loss", "loss", "loss of the critics, summed over them"),
        Metric("train/actor_loss", "loss", "loss of the actor; DQN has none"),
        Metric("train/q_mean", "return", "mean Q-value of the batch, in units of the scaled reward"),
        Metric("train/value_mean", "return", "mean value target (PPO)"),
        Metric("train/ent_coef", "", "temperature, the weight of the entropy (SAC, TQC, FastSAC)"),
        Metric("train/entropy", "nats", "entropy of the policy (SAC, TQC, FastSAC, PPO)"),
        Metric("train/edge_mass", "0 to 1", "probability of the outermost atoms; if it is large, returns exceed them (FastSAC, FastTD3)"),
        Metric("train/clip_fraction", "0 to 1", "share of actions whose probability ratio was clipped (PPO)"),
        Metric("train/learning_rate", "", "learning rate, as scheduled"),
        Metric("train/n_updates", "updates", "the same as `updates`"),
        Metric("train/batch_size", "rows", "rows per update; the tuner may change it"),
        Metric("perf/compiled", "code", "0 plain (yet), 1 compiled, 2 there is no compiler, 3 compiling failed, 4 fused: compiled, a faster form follows"),
        Metric("perf/intake_share", "0 to 1", "share of the learner's time spent on moving new rows into the replay"),
        Metric("perf/updates_per_step", "ratio", "updates per environment step since the start"),
        Metric("async/policy_lag", "versions", "how many versions behind the newest weights new transitions are, smoothed"),
        Metric("async/exchange_age", "updates", "how old the actor's weights are on the critic's device (two devices only)"),
        Metric("async/exchange_bound", "updates", "the largest value that `async/exchange_age` can have (two devices only)"),
        Metric("replay/rows", "rows", "rows in the replay"),
        Metric("replay/lost", "rows", "rows that samplers overwrote before the learner read them"),
    ),
    "evaluator": (
        Metric("eval/mean_reward", "return", "mean return of the episodes; `--target` is compared with it"),
        Metric("eval/std_reward", "return", "standard deviation over the episodes"),
        Metric("eval/min_reward", "return", "the worst episode"),
        Metric("eval/max_reward", "return", "the best episode"),
        Metric("eval/mean_ep_length", "steps", "mean length of the episodes"),
        Metric("eval/best_mean_reward", "return", "the best `eval/mean_reward` so far; its policy is `checkpoints/best`"),
        Metric("eval/seconds", "s", "how long the evaluation took"),
        Metric("eval/success_rate", "0 to 1", "share of the episodes with `is_success` in `info` at their end"),
        Metric("eval/info/<name>", "", "mean of any other number in `info` at the ends of the episodes"),
    ),
    "relay": (
        Metric("cluster/nodes", "nodes", "other machines that sample now"),
        Metric("cluster/samplers", "processes", "their samplers"),
        Metric("cluster/env_steps", "steps", "environment steps on other machines"),
        Metric("cluster/rows", "rows", "taken over from them"),
        Metric("cluster/blocks", "blocks", "in which these rows came"),
        Metric("cluster/in_flight", "calls", "calls for blocks that are not answered yet; at most two per node"),
        Metric("cluster/block_ms", "ms", "from the call for the newest block to its arrival, the time that it filled included"),
        Metric("cluster/policy_behind", "versions", "how far the slowest node's policy is behind the newest"),
        Metric("cluster/rows_late", "rows", "dropped: their policy was replaced longer ago than `--ray.max-lag-s`"),
        Metric("cluster/rows_refused", "rows", "dropped: their block was not as agreed"),
        Metric("cluster/rows_lost", "rows", "overwritten in their lanes on the nodes"),
        Metric("cluster/blocks_lost", "blocks", "lost by Ray"),
        Metric("cluster/nodes_lost", "times", "a node or its outpost was lost"),
    ),
    "supervisor": (
        Metric("perf/sample_hz", "steps/s", "environment steps of all samplers"),
        Metric("perf/update_hz", "updates/s", "updates"),
        Metric("perf/update_frame_hz", "rows/s", "updates times batch size"),
        Metric("perf/frames_hz", "frames/s", "pictures of the policy for the live page"),
        Metric("perf/cpu_percent", "%", "CPU use of all processes of the run; 100 is one core"),
        Metric("perf/cpu_percent/<role>", "%", "the same for the processes of one role"),
        Metric("perf/cpu_percent_others", "%", "CPU use of other programs, on the cores that the run may use"),
        Metric("perf/gpu_percent", "%", "use of the learner's GPU, if it has one"),
        Metric("async/stall_percent/<role>", "%", "time that a role waits; for samplers the mean of the active ones"),
        Metric("replay/age_s", "s", "age of the median row in the replay"),
        Metric("perf/callbacks_percent", "%", "CPU time that callbacks have taken so far; 100 is one core"),
        Metric("rollout/success_rate", "0 to 1", "share of the last 100 episodes with `is_success` in `info` at their end"),
        Metric("rollout/is_success", "0 to 1", "the same, by Gymnasium's name"),
        Metric("rollout/info/<name>", "", "mean of any other number in `info` at the ends of the last 100 episodes"),
    ),
    "tuner": (
        Metric("tuner/seen", "text", "the rates before the change"),
        Metric("tuner/change", "text", "the knobs that were changed, with old and new values"),
        Metric("tuner/gain", "ratio", "relative change of the learning speed; 0.1 is 10 % faster"),
        Metric("tuner/kept", "0 or 1", "whether the change was kept"),
        Metric("tuner/active_samplers", "processes", "active samplers after the trial"),
        Metric("tuner/batch_size", "rows", "batch size after the trial"),
        Metric("tuner/min_updates_per_step", "ratio", "lower bound of updates per environment step after the trial"),
    ),
}
# fmt: on
"""By the role that records them; `axes` are in every record, `tuner` is what the controller of the automatic settings tries."""
