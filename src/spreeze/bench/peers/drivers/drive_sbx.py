"""SBX: Stable-Baselines3's interface, in JAX."""

from pathlib import Path
from typing import Any

import drive_sb3


def train(request: Any, saver: Any) -> None:
    """Train as Stable-Baselines3 would."""
    drive_sb3.train(request, saver, "sbx")


def load(policy: Path, env: Any, request: Any) -> Any:
    """A function from an observation to an action without noise."""
    return drive_sb3.load(policy, env, request, "sbx")
