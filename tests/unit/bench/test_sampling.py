"""`spreeze bench sampling`: the reference repeats what the sampler did."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fakes
from spreeze.bench.commands import main
from spreeze.bench.sampling_worker import SamplerBench, Side, Timing
from spreeze.envs.inspect import inspect_env
from spreeze.errors import RunFailed
from spreeze.machine.facts import detect_machine
from spreeze.roles.context import Job, join
from spreeze.roles.pacing import NO_LIMIT
from spreeze.run.plan import make_plan
from spreeze.settings.defaults import config_with, default_config
from spreeze.wires.arena import Arena
from spreeze.wires.control import Control
from spreeze.wires.weights import Weights


@pytest.mark.parametrize("algo", ["sac", "ppo"])
def test_the_bare_simulator_takes_the_same_path(algo: str, tmp_path: Path) -> None:
    """Rows may be single steps (sac) or segments (ppo)."""
    target: Any = fakes.Recorded
    fakes.Recorded.seen.clear()
    spec = inspect_env(target, "Recorded")
    knobs = {
        "device": "cpu",
        "sampler.random_steps": 0,
        "sampler.processes": 1,
        "algo.hidden": (8,),
    }
    knobs |= {"sampler.envs_per_process": 3}
    plan = make_plan(config_with(default_config(algo, "Recorded"), knobs), spec, detect_machine())
    arena = Arena.create(plan.blocks)
    try:
        Control(arena).supervisor["active_samplers"] = 1
        Control(arena).learner["allowed_steps"] = NO_LIMIT
        weights = Weights(arena)
        weights.publish(np.full(weights.size, 0.1, np.float32), 0, 0)
        (tmp_path / "metrics").mkdir()
        job = Job("sampler", 0, plan.config, spec, target, tmp_path, time.monotonic())
        ctx = join(job, arena, time.monotonic, time.sleep)
        bench = SamplerBench(ctx)
        fakes.Recorded.seen.clear()
        bench.run_sampler(0.2, Timing())
        sampler = dict(fakes.Recorded.seen)
        bench.prepare_references()
        fakes.Recorded.seen.clear()
        timing = Timing()
        bench.take_turn(Side.SAME_ACTIONS, 0.01, timing)
        assert timing.steps >= 3 * 17, "more than a segment"
        assert fakes.Recorded.seen
        for seed, steps in fakes.Recorded.seen.items():
            np.testing.assert_allclose(steps, sampler[seed][: len(steps)], rtol=1e-6)
        ctx.recorder.close()
    finally:
        del ctx, bench
        arena.close()


def test_an_environment_that_breaks_is_shown_with_its_own_traceback() -> None:
    with pytest.raises(RunFailed) as caught:
        main(["sampling", "fakes:raising_env", "--processes", "1", "--seconds", "1"], 0.0)
    assert "could not be measured" in str(caught.value)
    assert "in step" in str(caught.value)
    assert "the arm fell off" in str(caught.value)


@pytest.mark.parametrize("env", ["Pendulum-v1", "CartPole-v1"])
def test_the_command_reports_rates_parts_and_memory(
    env: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With rows of single steps (Pendulum) and of segments (CartPole)."""
    file = tmp_path / "out.json"
    arguments = ["--processes", "1", "--seconds", "1", "--json", str(file)]
    assert main(["sampling", env, *arguments], 0.0) == 0
    facts = json.loads(file.read_text())
    assert 0 < facts["ratio"] < 1.5
    assert facts["sample_hz"] > 1000
    assert set(facts["us_per_step"]) == {"simulate", "act", "write", "rest"}
    assert 0 < facts["sampler_pss_mb"] < 80
    assert "of the bare simulator" in capsys.readouterr().out
