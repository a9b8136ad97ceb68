"""An environment that stalls holds up its own sampler and nothing else."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import fakes
import spreeze

KNOBS: dict[str, Any] = {
    "algo.hidden": (16, 16),
    "learner.batch_size": 32,
    "learner.compile": False,
    "replay.capacity": 10_000,
    "sampler.processes": 3,
    "sampler.envs_per_process": 2,
    "learner.ratio_bounds": (0.0, 1000.0),
    "evaluator.episodes": 2,
}
RUN_S = 8.0


def records(run: Path, role: str) -> list[dict[str, Any]]:
    text = (run / "metrics" / f"{role}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def episode_rate(run: Path, sampler: int) -> float:
    """Episodes per second that a sampler has finished; each is ten env steps."""
    first, *_, last = records(run, f"sampler-{sampler}")
    episodes = last["rollout/episodes"] - first["rollout/episodes"]
    return float(episodes / (last["time_s"] - first["time_s"]))


@pytest.mark.timeout(90)
def test_a_stalling_environment_slows_nobody_and_the_run_ends_in_time(runs: str) -> None:
    rates: dict[str, list[float]] = {}
    for name, stall_at in (("free", None), ("stalled", 200)):
        env = partial(fakes.StallEnv, stall_at)
        began = time.monotonic()
        run = spreeze.train(env, runs=runs, name=name, time=f"{RUN_S:.0f}s", **KNOBS)
        took_s = time.monotonic() - began
        rates[name] = [episode_rate(run.path, i) for i in (1, 2)]
    assert run.summary["state"] == "finished"
    assert run.summary["restarts"] == 0
    assert took_s < RUN_S + 8, "nobody waits for a step that takes a minute"
    for stalled, free in zip(rates["stalled"], rates["free"], strict=True):
        assert stalled > 0.8 * free
    # Sampler 0 has stood still for most of the run; learning and evaluation went on to its end.
    assert all(line["time_s"] < RUN_S - 4 for line in records(run.path, "sampler-0"))
    for role in ("learner-0", "evaluator-0"):
        lines = records(run.path, role)
        assert lines[-1]["time_s"] > RUN_S - 4
        assert lines[-1]["updates"] > lines[0]["updates"]
    assert (run.path / "checkpoints" / "last").exists()
