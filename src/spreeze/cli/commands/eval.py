"""`spreeze eval`: plays a trained policy without exploration noise."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from spreeze.cli.output import stdout_to_stderr
from spreeze.cli.playback import as_trained, check_fits, env_to_play
from spreeze.errors import UsageError
from spreeze.store.files import write_json
from spreeze.store.rundir import find_run

if TYPE_CHECKING:
    from spreeze.policy import Policy
    from spreeze.store.rundir import RunDir


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Play a trained policy without exploration noise and print its returns."""

    run: tyro.conf.Positional[str | None] = None
    """Path of a run, or its name in the runs folder. Default: the newest run."""
    episodes: int = 10
    """Number of episodes."""
    seed: int = 0
    """Seed of the environments."""
    checkpoint: str | None = None
    """best, last, or a number of updates; the run's checkpoints folder has them. Default: the best, or else the last."""
    env: str | None = None
    """Environment to play in. Needed if the run was trained on your own code (package.module:EnvClass, path/file.py:EnvClass)."""
    runs: str = "runs"
    """The runs folder."""
    json: str | None = None
    """Write the result as JSON to this file; - for standard output."""


def main(arguments: list[str], _started_s: float) -> int:
    """Play, then print the returns."""
    args = tyro.cli(Arguments, args=arguments, prog="spreeze eval")
    if not 1 <= args.episodes <= 100_000:
        raise UsageError([f"--episodes {args.episodes}: must be a whole number from 1 to 100000."])
    # Imported late, so that --help stays fast.
    from spreeze.policy.load import load_policy
    from spreeze.text import plain, short

    run = find_run(args.run, Path(args.runs))
    checkpoint = run.checkpoint(args.checkpoint)
    policy = load_policy(checkpoint)
    env = env_to_play(policy, run.path.name, args.env)
    began_s = time.monotonic()
    with stdout_to_stderr():
        results = _play(policy, env, run, args)
    facts = {
        "run": str(run.path),
        "env": env,
        "checkpoint": checkpoint.name,
        "episodes": args.episodes,
        **_statistics(results, env),
        "seconds": time.monotonic() - began_s,
    }
    if args.json is not None:
        write_json(facts, args.json)
    if args.json != "-":
        played = f"{env}, {args.episodes} episodes with checkpoint {checkpoint.name} of {run.path}"
        print(plain(played))
        print("  ".join(f"{name} {short(facts[name])}" for name in ("mean", "std", "min", "max")))
        if facts["broken"]:
            print(f"{facts['broken']} of them gave NaN or infinity and are not counted")
    return 0


def _statistics(results: list[tuple[float, int]], env: str) -> dict[str, Any]:
    """Mean, spread and length of the episodes. One with NaN or infinity is only counted as broken."""
    import numpy as np

    whole = np.array([result for result in results if not np.isnan(result[0])])
    if not len(whole):
        raise UsageError(
            [f"{env} gave NaN or infinity in every episode, so there is no return to report."]
        )
    returns, lengths = whole.T
    return {
        "mean": float(returns.mean()),
        "std": float(returns.std()),
        "min": float(returns.min()),
        "max": float(returns.max()),
        "mean_length": float(lengths.mean()),
        "broken": len(results) - len(whole),
        "returns": returns.tolist(),
    }


def _play(policy: Policy, env: str, run: RunDir, args: Arguments) -> list[tuple[float, int]]:
    """Return and length of each episode."""
    from spreeze.envs.envpool import EnvPoolTarget
    from spreeze.envs.guard import EnvGuard
    from spreeze.envs.inspect import evaluation_env
    from spreeze.envs.stepping import make_stepper, play_to_end

    target = as_trained(env, run)
    if args.env is None and run.engine == "envpool":
        target = evaluation_env(EnvPoolTarget(env), policy.spec)
    check_fits(policy, target, env)
    # Standard error: the result may go to standard output as JSON.
    guard = EnvGuard(report=lambda text: print(text, file=sys.stderr))
    stepper = make_stepper(target, min(args.episodes, 10), guard)
    try:
        return play_to_end(stepper, policy.spec, policy.greedy_action, args.episodes, args.seed)
    finally:
        stepper.close()
