"""`spreeze eval`: plays a trained policy without exploration noise."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import tyro

from spreeze.cli.output import stdout_to_stderr
from spreeze.cli.playback import check_fits, env_to_play, network_to_play, target_to_play
from spreeze.envs.messages import messages_to
from spreeze.settings.arguments import read_arguments
from spreeze.store.files import write_json
from spreeze.store.rundir import find_run


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
    network: str | None = None
    """Your class or function of (inputs, outputs) that makes the policy's torch module, or your algorithm: file.py:NAME. Needed if it acts through torch."""
    runs: str = "runs"
    """The runs folder."""
    json: str | None = None
    """Write the result as JSON to this file; - for standard output."""


def main(arguments: list[str], _started_s: float) -> int:
    """Play, then print the returns."""
    args = read_arguments(Arguments, arguments, "eval")
    # Imported late, so that --help stays fast.
    from spreeze.envs.evaluation import check_episodes, evaluate_policy
    from spreeze.policy.load import load_policy
    from spreeze.text import plain, plural, short

    check_episodes("--episodes", args.episodes)
    run = find_run(args.run, Path(args.runs))
    checkpoint = run.checkpoint(args.checkpoint)
    policy = load_policy(checkpoint, network_to_play(args.network, run))
    env = env_to_play(policy, f"run {run.path.name}", args.env)
    began_s = time.monotonic()
    # The result may go to standard output as JSON.
    with stdout_to_stderr(), messages_to(run.log("eval")):
        target = target_to_play(env, run, policy, args.env is not None)
        check_fits(policy, target, env)
        found = evaluate_policy(target, policy.spec, policy.greedy_action, args.episodes, args.seed)
    facts = {
        "run": str(run.path),
        "env": env,
        "checkpoint": checkpoint.name,
        "episodes": args.episodes,
        "mean": found.mean,
        "std": found.std,
        "min": found.min,
        "max": found.max,
        "mean_length": found.mean_length,
        "broken": found.broken,
        "returns": found.returns,
        "info": found.info,
        "seconds": time.monotonic() - began_s,
    }
    if args.json is not None:
        write_json(facts, args.json)
    if args.json != "-":
        played = f"{env}, {plural(args.episodes, 'episode')} with checkpoint {checkpoint.name} of {run.path}"
        print(plain(played))
        numbers = {name: getattr(found, name) for name in ("mean", "std", "min", "max")}
        print("  ".join(f"{name} {short(value)}" for name, value in numbers.items()))
        if found.info:
            said = "  ".join(f"{name} {short(value)}" for name, value in found.info.items())
            print(plain(f"at the ends of episodes: {said}"))
        if found.broken:
            print(f"{found.broken} of them gave NaN or infinity and are not counted")
    return 0
