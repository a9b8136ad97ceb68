"""Spreeze: reinforcement learning at full speed on one desktop."""

from __future__ import annotations

from spreeze.errors import RunFailed, UsageError

# No other import here: `python -m spreeze` gets here with the working folder first on its import path.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    from spreeze.policy import Policy
    from spreeze.run.supervisor import Run

__version__ = "0.1.0"
__all__ = ["RunFailed", "UsageError", "__version__", "load", "train"]


def train(env: str | Callable[..., Any], **knobs: Any) -> Run:
    """Train on an environment id, class or factory; knobs have the same names as on the command line.

    `spreeze.train("Pendulum-v1", time="60s", seed=1, **{"learner.batch_size": 512})`. Ctrl-C ends
    the run cleanly and returns it, with `run.summary["state"] == "interrupted"`. Wrong knobs raise
    UsageError before anything starts; a run that fails raises RunFailed with the cause.
    """
    from spreeze.cli.screen import Screen
    from spreeze.envs.targets import target_name
    from spreeze.run.launch import launch
    from spreeze.settings.build import build_config

    # A program that calls a library does not expect an open port.
    config = build_config(target_name(env), {"dashboard": False, **knobs})
    with Screen() as screen:
        return launch(config, env, screen, announce=screen.announce)


def load(run: str | Path, *, runs: str | Path = "runs") -> Policy:
    """The best policy of a run, or its last one if none was evaluated. Needs numpy only."""
    from pathlib import Path

    from spreeze.policy.load import load_policy
    from spreeze.store.rundir import find_run

    path = Path(run)
    if (path / "policy.safetensors").exists():
        return load_policy(path)
    return load_policy(find_run(str(run), Path(runs)).checkpoint())
