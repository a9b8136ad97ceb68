"""Spreeze: reinforcement learning at full speed on one desktop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spreeze.errors import RunFailed, UsageError

if TYPE_CHECKING:
    from spreeze.policy import Policy
    from spreeze.run.supervisor import Run

__version__ = "0.1.0"
__all__ = ["RunFailed", "UsageError", "__version__", "load", "train"]


def train(env: str | Callable[..., Any], **knobs: Any) -> Run:
    """Train on an environment id, class or factory; knobs have the words of the command line.

    `spreeze.train("Pendulum-v1", time="60s", seed=1, **{"learner.batch_size": 512})`. Ctrl-C ends
    the run cleanly and returns it, with `run.summary["state"] == "interrupted"`. Wrong knobs raise
    UsageError before anything starts; a run that breaks, RunFailed with the cause.
    """
    from spreeze.cli.screen import Screen
    from spreeze.envs.targets import target_name
    from spreeze.run.launch import launch
    from spreeze.run.resume import resumed_config
    from spreeze.settings.config import config_with, default_config

    name, resume = target_name(env), knobs.pop("resume", None)
    if resume is None:
        asked = [knob.removeprefix("algo.") for knob in knobs if knob.startswith("algo.")]
        algo, preset = knobs.pop("algo", "auto"), knobs.pop("preset", None)
        device = str(knobs.get("device", "auto"))
        config = default_config(str(algo), name, preset, asked, device)
    else:
        runs = Path(knobs.get("runs", "runs"))
        algo, preset = knobs.pop("algo", None), knobs.pop("preset", None)
        config = resumed_config(str(resume), runs, algo, preset)
    # A program that calls a library does not expect an open port.
    config = config_with(config, {"env": name, "dashboard": False, **knobs})
    with Screen() as screen:
        return launch(config, env, screen, announce=screen.announce)


def load(run: str | Path, *, runs: str | Path = "runs") -> Policy:
    """The best policy of a run (else its last), ready to act; needs numpy only."""
    from spreeze.policy import load_policy
    from spreeze.store.rundir import find_run

    path = Path(run)
    if (path / "policy.safetensors").exists():
        return load_policy(path)
    return load_policy(find_run(str(run), Path(runs)).checkpoint())
