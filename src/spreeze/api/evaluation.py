"""`spreeze.evaluate`."""

from __future__ import annotations

from pathlib import Path

from spreeze.api.run import Run
from spreeze.cli.playback import check_fits, env_to_play, target_to_play
from spreeze.envs.evaluation import Evaluation, check_episodes, evaluate_policy
from spreeze.envs.targets import EnvTarget, target_name
from spreeze.policy import Policy
from spreeze.store.rundir import RunDir


def evaluate(
    policy_or_run: Policy | Run | str | Path,
    env: EnvTarget | None = None,
    episodes: int = 10,
    seed: int = 0,
) -> Evaluation:
    """Play whole episodes without exploration noise.

    Give a policy, or a run, its path or its name: then its best policy plays. The environment is the run's, with the
    arguments and the time limit that it had. Name it again if it is your own code, unless this program has trained the
    run: a stored run never chooses code. Wrong arguments raise UsageError.
    """
    check_episodes("episodes", episodes)
    known: EnvTarget | None = None
    run: RunDir | None = None
    if isinstance(policy_or_run, Policy):
        policy, whose = policy_or_run, "the policy"
    else:
        opened = policy_or_run if isinstance(policy_or_run, Run) else Run(policy_or_run)
        policy, whose = opened.policy, f"run {opened.path.name}"
        known, run = opened.env, RunDir(opened.path)
    of = known if env is None else env
    if of is None or isinstance(of, str):
        of = env_to_play(policy, whose, of, "env=")
    target = of if run is None else target_to_play(of, run, policy, env is not None)
    check_fits(policy, target, target_name(of), "env=")
    return evaluate_policy(target, policy.spec, policy.greedy_action, episodes, seed)
