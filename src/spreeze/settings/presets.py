"""Presets: learning settings for known environments, as values. What the machine decides is not here.

A preset is taken without being asked for where the environment fits; `--preset none` switches that
off. Under each algorithm are knobs by their command-line name; the first algorithm is the one that
`--algo auto` takes, unless another is named for GPUs. Where a value comes from is said in docs/experiments.md.
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
    on_gpu: str | None = None
    """Another algorithm that `--algo auto` takes on a GPU: with thousands of large updates a second."""

    def algorithm(self, gpu: bool) -> str:
        """What `--algo auto` takes."""
        return self.on_gpu if gpu and self.on_gpu else next(iter(self.algos))


SMALL, WIDE = (64, 64), (256, 256)


def _locomotion(lr: float, **fastsac: Any) -> dict[str, dict[str, Any]]:
    """FastSAC, and SAC with the step size that suits the task: the best ones are an order apart."""
    return {
        "fastsac": {"algo.hidden": WIDE, **fastsac},
        "sac": {"algo.hidden": WIDE, "algo.lr": lr, "algo.tau": 0.01},
    }


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
                "algo.init_alpha": 1.0,
            }
        },
    ),
    # Classic control
    "pendulum": Preset(
        envs=("Pendulum-v1",),
        why="small networks, fast target",
        algos={
            "sac": {"algo.hidden": SMALL, "algo.lr": 1e-3, "algo.tau": 0.02},
            "td3": {"algo.hidden": SMALL, "algo.lr": 1e-3, "algo.tau": 0.02},
            "ddpg": {"algo.hidden": SMALL, "algo.lr": 1e-3, "algo.tau": 0.02},
        },
    ),
    "cart-pole": Preset(
        envs=("CartPole-v*",),
        why="PPO needs the fewest updates here",
        algos={
            "ppo": {"algo.hidden": SMALL, "algo.lr": 1e-3},
            "dqn": {"algo.hidden": SMALL, "algo.lr": 1e-3},
        },
    ),
    "acrobot": Preset(
        envs=("Acrobot-v*",),
        why="first successes are rare: Q-learning does not forget them",
        algos={"dqn": {"algo.hidden": SMALL, "algo.lr": 1e-3}},
    ),
    # Box2D
    "lunar-lander": Preset(
        envs=("LunarLander-v*", "LunarLanderContinuous-v*"),
        why="PPO needs the fewest updates here, with wide networks and long segments fewer still",
        algos={"ppo": {"algo.hidden": WIDE, "algo.lr": 1e-3, "algo.segment": 64}},
    ),
    "bipedal-walker": Preset(
        envs=("BipedalWalker-v*", "BipedalWalkerHardcore-v*"),
        why="a nearer horizon and a faster target",
        algos={
            "sac": {"algo.hidden": WIDE, "algo.lr": 7.3e-4, "algo.gamma": 0.98, "algo.tau": 0.02}
        },
    ),
    # MuJoCo
    "half-cheetah": Preset(
        envs=("HalfCheetah-v*",),
        why="never falls: SAC with a large step; on a GPU categorical critics, all normalised",
        algos={
            "sac": {"algo.hidden": WIDE, "algo.lr": 1e-3, "algo.tau": 0.01},
            "fastsac": {"algo.hidden": WIDE},
        },
        on_gpu="fastsac",
    ),
    "walker2d": Preset(
        envs=("Walker2d-v*",),
        why="it falls: categorical critics, all normalised",
        algos=_locomotion(8e-4),
    ),
    "hopper": Preset(
        envs=("Hopper-v*",),
        why="it hops faster until it falls: categorical critics, all normalised, and a farther horizon",
        algos=_locomotion(5e-4, **{"algo.gamma": 0.995}),
    ),
    "ant": Preset(
        envs=("Ant-v*",),
        why="it falls, which must cost more than gamma shows: categorical critics, all normalised; a small step for SAC",
        algos=_locomotion(3e-4, **{"algo.termination_cost": 500.0}),
    ),
    "humanoid": Preset(
        envs=("Humanoid-v*", "HumanoidStandup-v*"),
        why="observations of very mixed scale: categorical critics, all normalised",
        algos=_locomotion(3e-4),
    ),
    "swimmer": Preset(
        envs=("Swimmer-v*",),
        why="far horizon: what a stroke gains is seen late",
        algos={"sac": {"algo.hidden": WIDE, "algo.lr": 3e-4, "algo.gamma": 0.9999}},
    ),
    "reach": Preset(
        envs=("Reacher-v*", "Pusher-v*"),
        why="short episodes: a nearer horizon",
        algos={"sac": {"algo.hidden": WIDE, "algo.gamma": 0.98}},
    ),
    "inverted-pendulum": Preset(
        envs=("InvertedPendulum-v*", "InvertedDoublePendulum-v*"),
        why="small task: small networks",
        algos={"ppo": {"algo.hidden": SMALL}, "sac": {"algo.hidden": SMALL, "algo.tau": 0.02}},
    ),
    # DeepMind Control: rewards from 0 to 1, no ends but that of time
    "dm-control": Preset(
        envs=(
            *("dm_control/walker-*", "dm_control/cheetah-*"),
            *("dm_control/hopper-*", "dm_control/humanoid*"),
        ),
        why="rewards are small and episodes long: returns are scaled",
        algos=_locomotion(5e-4, **{"algo.spread": (0.5, 2.0)}),
    ),
}


def preset_for(env: str, algo: str) -> str | None:
    """The name of the environment's own preset, if there is one with values for this algorithm."""
    versioned = env if "-v" in env else f"{env}-v1"  # Gymnasium takes the newest then
    for name, preset in PRESETS.items():
        if any(fnmatch(versioned, pattern) for pattern in preset.envs):
            return name if algo == "auto" or algo in preset.algos else None
    return None
