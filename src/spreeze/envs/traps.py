"""Traps: what an environment offers and training silently disregards, and what to do about it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import gymnasium as gym
from gymnasium.vector import VectorEnv

from spreeze.spec import Trap

SEVERAL_AGENTS = (
    *("possible_agents", "agent_iter", "get_agent_ids", "_agent_ids"),
    *("raw_env", "parallel_env"),
)
"""What only environments of several agents have, in PettingZoo and in RLlib; the last two in PettingZoo's modules."""
GOAL_KEYS = {"achieved_goal", "desired_goal"}


class Advice(NamedTuple):
    """A trap in words."""

    found: str
    what_to_do: str


ADVICE = {
    Trap.ACTION_MASK: Advice(
        "action masks are not used, so forbidden actions reach step()",
        "Let it ignore or punish them.",
    ),
    Trap.GOALS: Advice(
        "goals are only part of the observation, without hindsight replay (HER)",
        "Use dense rewards if you can.",
    ),
    Trap.NO_REWARD: Advice(
        "random actions found no reward",
        "Learning starts when exploration finds one; denser rewards help.",
    ),
}


def describe_trap(trap: Trap) -> str:
    """The trap and what to do, in one line."""
    return f"{ADVICE[trap].found}. {ADVICE[trap].what_to_do}"


def find_traps(env: Any, info: Collection[str], found_reward: bool) -> Iterator[Trap]:
    """What the user should know before the run; `info` has the names that reset and step told."""
    space = env.single_observation_space if isinstance(env, VectorEnv) else env.observation_space
    keys = set(space.keys()) if isinstance(space, gym.spaces.Dict) else set()
    if "action_mask" in {*info, *keys} or _has(env, "action_masks"):
        yield Trap.ACTION_MASK
    if keys >= GOAL_KEYS:
        yield Trap.GOALS
    if not found_reward:
        yield Trap.NO_REWARD


def has_several_agents(made: Any) -> bool:
    """Whether what was made is an environment of several agents; those of RLlib are a gymnasium.Env too."""
    innermost = getattr(made, "unwrapped", made)
    return any(hasattr(innermost, name) for name in SEVERAL_AGENTS)


def several_agents_problem(name: str) -> str:
    """Why an environment of several agents is refused, and what to do."""
    return (
        f"env {name}: it has several agents, and Spreeze trains one. Wrap it as a gymnasium.Env in which "
        "you control one agent; the others may follow a policy from spreeze.load."
    )


def _has(env: Any, name: str) -> bool:
    """Whether an environment or one of its wrappers has an attribute."""
    layer = env
    while layer is not None and not hasattr(layer, name):
        layer = vars(layer).get("env")
    return layer is not None
