"""Suites: packages that bring environments. Each is an optional extra, imported only when you ask for one of its ids."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from importlib.util import find_spec

from spreeze.errors import UsageError

EXTRAS = {
    "mujoco": "mujoco",
    "classic": "pygame",
    "box2d": "Box2D",
    "atari": "ale_py",
    "dmc": "dm_control",
    "robotics": "gymnasium_robotics",
    "bullet": "pybullet_envs_gymnasium",
    "envpool": "envpool",
}
"""Each extra, and a module that tells whether it is installed."""

REGISTERED_BY = {
    r"ALE/.+": ("atari", "ale_py"),
    r"dm_control/.+": ("dmc", "shimmy"),
    r"(Fetch(Reach|Push|Slide|PickAndPlace)|Hand(Reach|Manipulate)|AdroitHand|PointMaze_|AntMaze_|FrankaKitchen)\w*-v\d+": (
        "robotics",
        "gymnasium_robotics",
    ),
    r"\w+BulletEnv-v\d+": ("bullet", "pybullet_envs_gymnasium"),
}
"""Patterns of ids, the extra that has them, and the module that registers them when it is imported."""


def suite_of(env_id: str) -> tuple[str, str] | None:
    """The extra that has `env_id`, and the module to import for it; None if it belongs to no suite."""
    found = (suite for pattern, suite in REGISTERED_BY.items() if re.fullmatch(pattern, env_id))
    return next(found, None)


def register_suite(env_id: str) -> None:
    """Import the suite that registers `env_id`, if there is one; UsageError if it is not installed."""
    if (suite := suite_of(env_id)) is not None:
        extra, module = suite
        if find_spec(module) is None or find_spec(EXTRAS[extra]) is None:
            raise UsageError([missing(env_id, extra)])
        import_module(module)


def missing(env_id: str, extra: str) -> str:
    """The message when an environment needs an extra that is not installed."""
    return f"env {env_id} needs a package that is missing. {advice(extra)}"


def advice(extra: str) -> str:
    """How to install an extra."""
    if extra == "bullet" and sys.version_info >= (3, 12):
        return "PyBullet has no wheels for Python 3.12 or newer: use Python 3.11."
    return f'Install it with: pip install "spreeze[{extra}]"'
