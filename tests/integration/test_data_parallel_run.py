"""A whole run on two ranks: it learns, resumes, repeats, and is back when its learner is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import fakes
import spreeze
from user_runs import gone_within, learning, read, training, wait_for

SMALL: dict[str, Any] = {
    "algo.hidden": (32, 32),
    "learner.batch_size": 64,
    "learner.compile": False,
    "replay.capacity": 10_000,
    "tuner.off": True,
}
DEVICES = ["cpu+cpu", *(["cuda:0+cuda:0"] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("device", DEVICES)
def test_a_run_on_two_ranks_learns_and_resumes(device: str, runs: str) -> None:
    knobs = {"device": device, "learner.same_device": True, **SMALL}
    until = {"target": -0.003, "time": "80s"}
    done = spreeze.train(fakes.ReachEnv, runs=runs, name="first", **until, **knobs)
    assert done.summary["reason"] == "target", done.summary
    assert done.summary["device"] == device
    state = load_file(done.path / "checkpoints" / "last" / "train.safetensors")
    assert state["updates"] == done.summary["updates"]
    # One device continues where two have stopped.
    more = {"steps": str(done.summary["env_steps"] + 2000), "device": "cpu"}
    onward = spreeze.train(fakes.ReachEnv, runs=runs, resume="first", **more)
    assert onward.summary["updates"] > done.summary["updates"]


def test_serial_runs_on_two_ranks_are_bit_equal(runs: str) -> None:
    states = []
    for name in ("a", "b"):
        knobs = {"serial": True, "device": "cpu+cpu", "steps": "2000", **SMALL}
        run = spreeze.train(fakes.ReachEnv, runs=runs, name=name, seed=1, **knobs)
        states.append(load_file(run.path / "checkpoints" / "last" / "train.safetensors"))
    for name, tensor in states[0].items():
        np.testing.assert_array_equal(tensor, states[1][name])


def test_ranks_that_are_killed_are_back_and_end_with_the_run(tmp_path: Path) -> None:
    flags = (
        "--device=cpu+cpu",
        "--no-dashboard",
        "--learner.no-compile",
        "--checkpoint.every-s=0.3",
    )
    with training(tmp_path, "Pendulum-v1", "--tuner.off", *flags) as process:
        pids, log = learning(tmp_path), tmp_path / "runs" / "r" / "logs" / "learner-0.log"
        wait_for((tmp_path / "runs" / "r" / "checkpoints" / "last").exists)
        os.kill(pids["learner-0"], signal.SIGKILL)
        wait_for(lambda: "continues from" in log.read_text())
        reached = read(tmp_path, "status")["progress"]["updates"]
        wait_for(lambda: read(tmp_path, "status")["progress"]["updates"] > reached + 50)
        pids = read(tmp_path, "status")["pids"]
        process.kill()
        gone_within(pids, 5)
    assert log.read_text().count("2 ranks share each batch: cpu, cpu") == 2
