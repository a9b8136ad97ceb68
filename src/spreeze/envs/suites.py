"""Packages that bring environments: the extra of each, registered when one of their ids is asked for."""

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
    "dmc": "dm_control",
    "bullet": "pybullet_envs_gymnasium",
    "envpool": "envpool",
}
"""Each extra, and a module that is there if it is installed."""

REGISTERED_BY = {
    r"dm_control/.+": ("dmc", "shimmy"),
    r"\w+BulletEnv-v\d+": ("bullet", "pybullet_envs_gymnasium"),
}
"""Ids, the extra that has them, and the module whose import registers them."""


def register_suite(env_id: str) -> None:
    """Import what registers `env_id`, if it is an id of a suite; UsageError if that is not installed."""
    for pattern, (extra, module) in REGISTERED_BY.items():
        if re.fullmatch(pattern, env_id):
            if find_spec(module) is None or find_spec(EXTRAS[extra]) is None:
                raise UsageError([missing(env_id, extra)])
            import_module(module)


def missing(env_id: str, extra: str) -> str:
    """What to tell a user who lacks an extra."""
    return f"env {env_id} needs a package that is missing. {advice(extra)}"


def advice(extra: str) -> str:
    """How to get an extra."""
    if extra == "bullet" and sys.version_info >= (3, 12):
        return "PyBullet has no wheels for Python 3.12 or newer: use Python 3.11."
    return f'Install it with: pip install "spreeze[{extra}]"'
