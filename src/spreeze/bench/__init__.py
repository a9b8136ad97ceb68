"""Benchmarks, each against a reference in the same run: `commands/` holds the commands, the other modules measure.

Imported by `cli` only.
"""

from __future__ import annotations

from spreeze.spec import EnvSpec

HALF_CHEETAH = EnvSpec(
    id="HalfCheetah-v5",
    obs_shape=(17,),
    action_shape=(6,),
    action_low=(-1.0,) * 6,
    action_high=(1.0,) * 6,
)
"""The environment whose sizes are measured by default. It is not made."""
