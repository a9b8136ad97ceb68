"""What is listed of the settings that were chosen."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import fakes
from spreeze.cli.drawing import choices
from spreeze.envs.inspect import inspect_env
from spreeze.machine.facts import Machine
from spreeze.run.plan import make_plan
from spreeze.settings.auto.images import with_stack
from spreeze.settings.defaults import config_with, default_config
from spreeze.testing import FaultEnv

ABOUT_IMAGES = {"--env.stack", "--algo.encoder", "--sampler.acting"}


@pytest.mark.parametrize(
    ("env", "verbose", "listed"),
    [
        (fakes.CountEnv, False, False),
        (fakes.CountEnv, True, True),
        (partial(FaultEnv, pixels=True), False, True),
    ],
)
def test_settings_about_images_are_listed_where_they_matter(
    env: Any, verbose: bool, listed: bool
) -> None:
    spec = with_stack(inspect_env(env, "x"), "auto")
    config = config_with(default_config(env="x"), {"verbose": verbose, "device": "cpu"})
    flags = {flag for flag, *_ in choices(make_plan(config, spec, Machine(8, 8 << 30, ())))}
    assert (flags >= ABOUT_IMAGES) is listed
    assert listed or not flags & ABOUT_IMAGES
