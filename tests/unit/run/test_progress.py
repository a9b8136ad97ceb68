"""What the supervisor makes of the numbers on the control wire."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import fakes
from spreeze.envs.inspect import inspect_env
from spreeze.machine.facts import Machine
from spreeze.run.plan import make_plan
from spreeze.run.progress import Progress
from spreeze.settings.config import config_with, default_config
from spreeze.store.metrics import Recorder
from spreeze.wires.arena import Arena
from spreeze.wires.control import Control


def test_updates_of_the_run_that_is_resumed_count_for_no_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_with(default_config(env="x"), {"device": "cpu"})
    plan = make_plan(config, inspect_env(fakes.CountEnv, "x"), Machine(8, 8 << 30, ()))
    arena, recorder = Arena.create(plan.blocks), Recorder(tmp_path / "supervisor-0.jsonl")
    clock_s = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: clock_s)
    try:
        progress = Progress(plan.config, Control(arena), clock_s, recorder)
        words = Control(arena).learner
        rates = []
        for updates, first_update_s in [(0, 0), (99_300, 0), (99_400, 2), (99_500, 2), (99_600, 2)]:
            words["updates"], words["first_update_s"] = updates, first_update_s
            rates.append(progress.look().update_hz)
            clock_s += 1
        assert rates == [0, 0, 0, 100, 100]
    finally:
        del progress, words
        recorder.close()
        arena.close()
