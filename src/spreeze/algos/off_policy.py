"""Knobs that several off-policy algorithms share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from spreeze.algos.base import AlgoConfig
from spreeze.algos.schedules import Schedule, scheduled
from spreeze.knobs import Auto, Effect, knob
from spreeze.policy import Head, LastingNoise
from spreeze.rows import RowFormat
from spreeze.spec import LARGEST_RETURN, Floats

if TYPE_CHECKING:
    from spreeze.spec import EnvSpec


def evenly(first: float, last: float, num: int) -> Floats:
    """`num` values from `first` to `last`; a single one lies in the middle."""
    if num == 1:
        return np.full(1, (first + last) / 2, np.float32)
    return np.linspace(first, last, num, dtype=np.float32)


@dataclass(frozen=True, kw_only=True)
class OffPolicyConfig(AlgoConfig):
    """Knobs of algorithms that learn from transitions of any age."""

    usual_n_step: ClassVar[int] = 1
    """What auto means unless rewards are known to be rare."""

    n_step: int | Auto = knob(
        "auto",
        "Env steps per transition, for n-step returns. Auto: more where random actions find no reward.",
        low=1,
        high=100,
        effect=Effect.DATA,
    )
    tau: float | Auto = knob(
        "auto",
        "Share of the online network mixed into its target at each update. Auto: follows the network width.",
        low=1e-8,
        high=1,
        effect=Effect.RATE,
    )
    exploration_schedule: Schedule = knob(
        "constant",
        "How a factor on exploration noise (DQN: on epsilon) gets from 1 to --algo.exploration-end, "
        "over the run's --steps or --time.",
        effect=Effect.DATA,
    )
    exploration_end: float = knob(
        0.1, "That factor at the end of its schedule.", low=0, high=100, effect=Effect.DATA
    )
    policy_delay: int = knob(1, "Critic updates per actor update.", low=1, high=64)
    priority: float = knob(
        0.0,
        "Prioritised replay: draw rows by their error to this power. 0: uniformly.",
        low=0,
        high=4,
    )
    priority_correction: float = knob(
        0.4, "How much of the bias of prioritised replay is corrected.", low=0, high=1
    )

    shift: int | Auto = knob(
        "auto",
        "Shift images by up to so many pixels in updates, at random (DrQ). Auto: 4 for continuous actions, else 0.",
        low=0,
        high=64,
    )

    def row_format(self) -> RowFormat:
        """Transitions of n steps."""
        n_step = self.usual_n_step if self.n_step == "auto" else self.n_step
        return replace(super().row_format(), n_step=n_step)

    def rates(self) -> tuple[float, float]:
        """Learning rate and tau."""
        lr, _ = super().rates()
        assert self.tau != "auto", "settings.auto.resolve replaces it"
        return lr, self.tau

    def exploration_at(self, share: float) -> float:
        """From 1 to the knob."""
        return scheduled(self.exploration_schedule, 1.0, self.exploration_end, share)

    def critic_updates(self) -> int:
        """The policy delay."""
        return self.policy_delay

    def image_shift(self) -> int:
        """From the knob."""
        assert self.shift != "auto", "settings.auto.resolve replaces it"
        return self.shift

    def priorities(self) -> tuple[float, float]:
        """From the knobs."""
        return self.priority, self.priority_correction


@dataclass(frozen=True, kw_only=True)
class NoisyConfig(OffPolicyConfig):
    """Knobs of algorithms that explore with normal noise."""

    lasting_noise: LastingNoise = knob(
        "flat",
        "When half of the environments act by lasting noise alone. flat: if the first episodes return "
        "about the same, until returns are lower there.",
        effect=Effect.DATA,
    )
    noise_colour: float = knob(
        1.0,
        "Colour of noise that lasts. 1: pink, pushes in one direction for a while, on all time scales; 2: brown, longer.",
        low=0,
        high=2,
        effect=Effect.DATA,
    )

    def lasting_noise_when(self) -> tuple[LastingNoise, float]:
        """As the knobs say."""
        return self.lasting_noise, self.noise_colour

    def explore_more(self) -> str:
        """Noise that lasts, whatever it costs, or that lasts longer."""
        lasts = self.lasting_noise == "always"
        return "--algo.noise-colour 2" if lasts else "--algo.lasting-noise always"


@dataclass(frozen=True, kw_only=True)
class DeterministicConfig(NoisyConfig):
    """Knobs of algorithms whose policy is deterministic; samplers add noise to its actions."""

    noise: tuple[float, float] = knob(
        (0.05, 0.5),
        "Standard deviation of exploration noise, in the least and in the most exploring environment.",
        low=0,
        high=10,
        effect=Effect.DATA,
    )

    def head(self, spec: EnvSpec) -> Head:
        """The action itself."""
        return "tanh"

    def exploration(self, num_envs: int) -> Floats:
        """Evenly from the smallest to the largest noise."""
        return evenly(*self.noise, num_envs)


@dataclass(frozen=True, kw_only=True)
class SoftConfig(NoisyConfig):
    """Knobs of algorithms with a learned temperature, as in SAC."""

    init_alpha: float = knob(0.2, "Initial temperature.", low=1e-8, high=1000, effect=Effect.DATA)
    target_entropy_per_action: float = knob(
        -1.0, "Target entropy per action dimension.", low=-100, high=100
    )
    target_entropy_schedule: Schedule = knob(
        "constant",
        "How the target entropy gets to --algo.target-entropy-end, over the run's --steps or --time.",
        effect=Effect.RATE,
    )
    target_entropy_end: float = knob(
        -2.0,
        "Target entropy per action dimension at the end of its schedule.",
        low=-100,
        high=100,
        effect=Effect.RATE,
    )

    def entropy_shift_at(self, share: float) -> float:
        """Per action dimension."""
        first, last = self.target_entropy_per_action, self.target_entropy_end
        return scheduled(self.target_entropy_schedule, first, last, share) - first


@dataclass(frozen=True, kw_only=True)
class CategoricalConfig(OffPolicyConfig):
    """Knobs of algorithms with categorical critics, and the defaults that go with them."""

    lr: float | Auto = 3e-4
    beta2: float = 0.95
    policy_delay: int = 2
    layer_norm: bool = True
    normalise_obs: bool = True
    normalise_reward: bool = True
    num_atoms: int = knob(
        101,
        "Atoms of the critics' return distribution.",
        low=2,
        high=10_001,
        effect=Effect.NETWORK,
    )

    def problems(self) -> list[str]:
        """Refuse rewards whose returns would leave the range of the atoms."""
        why = f"the critics only represent returns from -{LARGEST_RETURN:g} to {LARGEST_RETURN:g}"
        problems = super().problems()
        if not self.normalise_reward:
            problems.append(f"--algo.no-normalise-reward: {why}.")
        if self.reward_scale > 1:
            problems.append(f"--algo.reward-scale {self.reward_scale:g}: at most 1, because {why}.")
        return problems
