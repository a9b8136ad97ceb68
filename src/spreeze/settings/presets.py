"""Presets: learning settings for known environments. What depends on the machine is not here.

An environment's preset is used unless you say `--preset none`. Knobs are listed per algorithm, by name.
`--algo auto` takes the first algorithm. docs/experiments.md says where the values come from.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Settings for some environments."""

    envs: tuple[str, ...] = ()
    """Environments that it is for, with * as wildcard; empty: only used when asked for."""
    why: str
    """Why these values, in a few words."""
    algos: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Knobs and their values, by algorithm."""

    @property
    def algorithm(self) -> str:
        """What `--algo auto` takes."""
        return next(iter(self.algos))


SMALL, WIDE = (64, 64), (256, 256)


def _locomotion(lr: float, **fastsac: Any) -> dict[str, dict[str, Any]]:
    """FastSAC, and SAC with a learning rate per task: the best ones differ by an order of magnitude."""
    return {
        "fastsac": {"algo.hidden": WIDE, **fastsac},
        "sac": {"algo.hidden": WIDE, "algo.lr": lr, "algo.tau": 0.01},
    }


PRESETS: dict[str, Preset] = {
    "sb3": Preset(
        why="the settings of Stable-Baselines3's SAC: for comparisons, not for speed",
        algos={
            "sac": {
                "learner.batch_size": 256,
                "learner.updates_per_step": 1.0,
                "learner.warmup_rows": 100,
                "sampler.random_steps": 100,
                "algo.hidden": (256, 256),
                "algo.lr": 3e-4,
                "algo.tau": 0.005,
                "algo.init_alpha": 1.0,
            }
        },
    ),
    # Classic control
    "acrobot": Preset(
        envs=("Acrobot-v*",),
        why="small networks are enough",
        algos={"dqn": {"algo.hidden": SMALL, "algo.lr": 1e-3}},
    ),
    # Box2D
    "bipedal-walker": Preset(
        envs=("BipedalWalker-v*", "BipedalWalkerHardcore-v*"),
        why="a shorter horizon and a faster target network",
        algos={
            "sac": {"algo.hidden": WIDE, "algo.lr": 7.3e-4, "algo.gamma": 0.98, "algo.tau": 0.02}
        },
    ),
    # MuJoCo
    "hopper": Preset(
        envs=("Hopper-v*",),
        why="falls end episodes: FastSAC with a longer horizon, so that it does not hop too fast",
        algos=_locomotion(5e-4, **{"algo.gamma": 0.995}),
    ),
    "ant": Preset(
        envs=("Ant-v*",),
        why="falls must cost more than discounting shows: FastSAC with a termination cost",
        algos=_locomotion(3e-4, **{"algo.termination_cost": 500.0}),
    ),
    "humanoid-standup": Preset(
        envs=("HumanoidStandup-v*",),
        why="observations differ in scale: FastSAC normalises them",
        algos=_locomotion(3e-4),
    ),
    "swimmer": Preset(
        envs=("Swimmer-v*",),
        why="long horizon: a stroke pays off late",
        algos={"sac": {"algo.hidden": WIDE, "algo.lr": 3e-4, "algo.gamma": 0.9999}},
    ),
    "reach": Preset(
        envs=("Reacher-v*", "Pusher-v*"),
        why="short episodes: a shorter horizon",
        algos={"sac": {"algo.hidden": WIDE, "algo.gamma": 0.98}},
    ),
    # DeepMind Control: rewards from 0 to 1, episodes end by time only
    "dm-control": Preset(
        envs=(
            *("dm_control/walker-*", "dm_control/cheetah-*"),
            *("dm_control/hopper-*", "dm_control/humanoid*"),
        ),
        why="rewards are small and episodes long: FastSAC scales returns",
        algos=_locomotion(5e-4, **{"algo.spread": (0.5, 2.0)}),
    ),
}


def preset_for(env: str, algo: str) -> str | None:
    """The environment's preset, if it has one with values for this algorithm."""
    versioned = env if "-v" in env else f"{env}-v1"  # Gymnasium then takes the newest
    for name, preset in PRESETS.items():
        if any(fnmatch(versioned, pattern) for pattern in preset.envs):
            return name if algo == "auto" or algo in preset.algos else None
    return None
