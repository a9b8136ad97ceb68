"""Benchmarks: each measures against its reference in the same run."""

from __future__ import annotations

from spreeze.spec import EnvSpec

HALF_CHEETAH = EnvSpec(
    id="HalfCheetah-v5",
    obs_shape=(17,),
    action_shape=(6,),
    action_low=(-1.0,) * 6,
    action_high=(1.0,) * 6,
)
"""The sizes that are measured if nothing else is said."""
