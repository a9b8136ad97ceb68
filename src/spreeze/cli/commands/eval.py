"""`spreeze eval`: plays a trained policy without noise."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from spreeze.cli.output import stdout_to_stderr
from spreeze.cli.playback import check_fits, env_to_play
from spreeze.errors import UsageError
from spreeze.store.files import write_json
from spreeze.store.rundir import find_run

if TYPE_CHECKING:
    from spreeze.policy import Policy


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Play a trained policy without noise and print its returns."""

    run: tyro.conf.Positional[str | None] = None
    """Path, name under the runs folder, or nothing for the newest run."""
    episodes: int = 10
    """Whole episodes to play."""
    seed: int = 0
    """Seed of the environments."""
    env: str | None = None
    """Environment, where the run's own is code of yours (package.module:EnvClass)."""
    runs: str = "runs"
    """Folder of the runs."""
    json: str | None = None
    """Write the result as JSON to this file; - for standard output."""


def main(arguments: list[str], _started_s: float) -> int:
    """Play and print."""
    args = tyro.cli(Arguments, args=arguments, prog="spreeze eval")
    if not 1 <= args.episodes <= 100_000:
        raise UsageError([f"--episodes {args.episodes}: must be a whole number from 1 to 100000."])
    # After the flags: --help needs none of this.
    import numpy as np

    from spreeze.policy import load_policy
    from spreeze.text import short

    run = find_run(args.run, Path(args.runs))
    checkpoint = run.checkpoint()
    policy = load_policy(checkpoint)
    env = env_to_play(policy, run.path.name, args.env)
    stored = run.read("config").get("config", {})
    pooled = args.env is None and stored.get("simulation", {}).get("engine") == "envpool"
    began_s = time.monotonic()
    with stdout_to_stderr():
        results = _play(policy, env, pooled, args)
    whole = np.array([result for result in results if not np.isnan(result[0])])
    broken = len(results) - len(whole)
    if not len(whole):
        raise UsageError([f"{env} gave NaN or infinity in every episode: there is no return."])
    returns, lengths = whole.T
    facts = {
        "run": str(run.path),
        "env": env,
        "checkpoint": checkpoint.name,
        "episodes": args.episodes,
        "mean": float(returns.mean()),
        "std": float(returns.std()),
        "min": float(returns.min()),
        "max": float(returns.max()),
        "mean_length": float(lengths.mean()),
        "broken": broken,
        "returns": returns.tolist(),
        "seconds": time.monotonic() - began_s,
    }
    if args.json is not None:
        write_json(facts, args.json)
    if args.json != "-":
        print(
            f"{env}, {args.episodes} episodes with checkpoint {checkpoint.name} of {run.path}",
            file=sys.stdout,
        )
        print("  ".join(f"{name} {short(facts[name])}" for name in ("mean", "std", "min", "max")))
        if broken:
            print(f"{broken} of them gave NaN or infinity and are left out")
    return 0


def _play(policy: Policy, env: str, pooled: bool, args: Arguments) -> list[tuple[float, int]]:
    """Return and length of each episode."""
    from spreeze.envs.envpool import EnvPoolTarget
    from spreeze.envs.inspect import evaluation_env
    from spreeze.envs.stepping import make_stepper, play_to_end

    target = evaluation_env(EnvPoolTarget(env), policy.spec) if pooled else env
    check_fits(policy, target, env)
    stepper = make_stepper(target, min(args.episodes, 10))
    try:
        return play_to_end(stepper, policy.spec, policy.greedy_action, args.episodes, args.seed)
    finally:
        stepper.close()
