"""Presets: learning settings for known environments, as values. What the machine decides is not here.

A preset is taken without being asked for where the environment fits; `--preset none` switches that
off. Under each algorithm are knobs by their command-line name; the first algorithm is the one that
`--algo auto` takes. Where a value comes from is said in docs/experiments.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Settings for some environments."""

    envs: tuple[str, ...] = ()
    """Environments that it is for, with * for any letters; none: only when it is asked for."""
    why: str
    """What it does, in a few words."""
    algos: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By algorithm: knobs and their values."""


PRESETS: dict[str, Preset] = {
    "sb3": Preset(
        why="what Stable-Baselines3's SAC does: for comparisons, not for speed",
        algos={
            "sac": {
                "learner.batch_size": 256,
                "learner.updates_per_step": 1.0,
                "learner.warmup_rows": 100,
                "sampler.random_steps": 100,
                "algo.hidden": (256, 256),
                "algo.lr": 3e-4,
                "algo.tau": 0.005,
            }
        },
    ),
}


def preset_for(env: str, algo: str) -> str | None:
    """The name of the environment's own preset, if there is one with values for this algorithm."""
    for name, preset in PRESETS.items():
        if any(fnmatch(env, pattern) for pattern in preset.envs):
            return name if algo == "auto" or algo in preset.algos else None
    return None
