"""An environment that stalls delays its own sampler and nothing else."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

import fakes
import spreeze
from user_runs import records

KNOBS: dict[str, Any] = {
    "algo.hidden": (16, 16),
    "learner.batch_size": 32,
    "learner.compile": False,
    "replay.capacity": 10_000,
    "sampler.processes": 3,
    "sampler.envs_per_process": 2,
    "learner.ratio_bounds": (0.0, 1000.0),
    "learner.warmup_rows": 64,  # sampled before the learner is up, so it never waits for them
    "evaluator.episodes": 2,
}
RUN_S = 7.0


def went_on(run: Path, role: str, count: str) -> bool:
    """Whether it still made progress long after the stall began, to the end of the run."""
    lines = records(run, role)
    middle, last = lines[len(lines) // 2], lines[-1]
    return last["time_s"] > RUN_S - 3 and last[count] > middle[count]


@pytest.mark.timeout(60)
def test_a_stalled_environment_slows_no_other_role_and_the_run_ends_in_time(runs: str) -> None:
    run = spreeze.train(partial(fakes.StallEnv, 50), runs=runs, time=f"{RUN_S:.0f}s", **KNOBS)
    assert run.summary["state"] == "finished"
    assert run.summary["restarts"] == 0
    # Sampler 0 stood still for most of the run; the others never waited.
    assert all(line["time_s"] < RUN_S - 3 for line in records(run.path, "sampler-0"))
    for i in (1, 2):
        assert went_on(run.path, f"sampler-{i}", "rollout/episodes")
    assert went_on(run.path, "learner-0", "updates")
    assert went_on(run.path, "evaluator-0", "updates")
    for line in records(run.path, "supervisor-0"):
        for role in ("samplers", "learner"):
            assert line[f"async/stall_percent/{role}"] == 0
    assert (run.path / "checkpoints" / "last").exists()
