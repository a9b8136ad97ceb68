"""A whole run on two devices: it learns, reports the age of its copies, resumes, repeats, fails with a cause."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import fakes
import spreeze
from spreeze.bench import commands as bench
from spreeze.learning.compiled.job import compile_and_wait
from spreeze.learning.two_devices.critic_actor import ActorUpdater
from spreeze.roles.learner.compile_key import compile_keys
from spreeze.settings.defaults import config_from_json
from spreeze.spec import EnvSpec
from spreeze.store.rundir import RunDir
from spreeze.wires.control import CompileState
from user_runs import records

SMALL: dict[str, Any] = {
    "algo.hidden": (32, 32),
    "learner.batch_size": 64,
    "learner.compile": False,
    "replay.capacity": 10_000,
    "tuner.off": True,
}
DEVICES = ["cpu,cpu", *(["cuda,cpu", "cuda:0,cuda:0"] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("device", DEVICES)
def test_a_run_on_two_devices_learns_and_resumes(device: str, runs: str) -> None:
    knobs = {"device": device, "learner.same_device": True, **SMALL}
    until = {"target": -0.003, "time": "80s"}
    done = spreeze.train(fakes.ReachEnv, runs=runs, name="first", **until, **knobs)
    assert done.summary["reason"] == "target", done.summary
    assert done.summary["device"] == device
    ages = [line["async/exchange_age"] for line in records(done.path, "learner-0")]
    bounds = {line["async/exchange_bound"] for line in records(done.path, "learner-0")}
    assert len(bounds) == 1
    assert max(ages) <= max(bounds)
    state = load_file(done.path / "checkpoints" / "last" / "train.safetensors")
    assert state["updates"] == done.summary["updates"]
    # One device continues where two have stopped.
    more = {"steps": str(done.summary["env_steps"] + 2000), "device": "cpu"}
    onward = spreeze.train(fakes.ReachEnv, runs=runs, resume="first", **more)
    assert onward.summary["updates"] > done.summary["updates"]
    assert onward.summary["exchange_age_mean"] is None


def test_serial_runs_on_two_devices_are_bit_equal(runs: str) -> None:
    states = []
    for name in ("a", "b"):
        knobs = {"serial": True, "device": "cpu,cpu", "steps": "3000", **SMALL}
        run = spreeze.train(fakes.ReachEnv, runs=runs, name=name, seed=1, **knobs)
        assert {line["async/exchange_age"] for line in records(run.path, "learner-0")} <= {0}
        states.append(load_file(run.path / "checkpoints" / "last" / "train.safetensors"))
    for name, tensor in states[0].items():
        np.testing.assert_array_equal(tensor, states[1][name])


def test_a_crash_in_the_actors_thread_ends_the_run_with_its_cause(
    runs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: ActorUpdater) -> None:
        raise ZeroDivisionError("the actor fell over")

    monkeypatch.setattr(ActorUpdater, "run", fail)
    with pytest.raises(RuntimeError, match="ZeroDivisionError: the actor fell over"):
        spreeze.train(
            fakes.ReachEnv, runs=runs, serial=True, device="cpu,cpu", steps="9000", **SMALL
        )


@pytest.mark.learning
@pytest.mark.parametrize("device", DEVICES)
def test_both_parts_are_compiled_and_installed(device: str, runs: str) -> None:
    knobs = {**SMALL, "device": device, "learner.same_device": True}
    first = spreeze.train(fakes.ReachEnv, runs=runs, steps="3000", **knobs)
    stored = RunDir(first.path).read("config")
    config = config_from_json(stored["config"])
    spec = EnvSpec.from_json(stored["env_spec"])
    for key in compile_keys(config, spec, 64):
        compile_and_wait(key)
    knobs["learner.compile"] = True
    run = spreeze.train(fakes.ReachEnv, runs=runs, time="8s", **knobs)
    assert run.summary["best_return"] > -0.01
    assert records(run.path, "learner-0")[-1]["perf/compiled"] == CompileState.COMPILED
    assert not (run.path / "logs" / "compiler.log").exists(), "nothing was compiled again"


@pytest.mark.learning
@pytest.mark.parametrize("devices", DEVICES)
def test_the_bench_has_both_forms_in_one_run(devices: str, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    arguments = ["learner", "--devices", devices, "--seconds", "3", "--json", str(file)]
    assert bench.main([*arguments, "--threads", "1", "--algo", "td3"], 0.0) == 0
    result = json.loads(file.read_text())
    one, two = result["one_device"], result["two_devices"]
    assert result["devices"] == devices.split(",")
    assert two["actor_update_hz"] == pytest.approx(two["update_hz"] / 2), "its policy is delayed"
    assert result["speedup"] == pytest.approx(two["update_hz"] / one["update_hz"])
    assert 0 <= two["exchange_age"] <= two["exchange_age_max"] <= two["exchange_age_bound"]
    assert 0 < two["critic_busy"] <= 1.01
    assert 0 < two["actor_busy"] <= 1.01
    assert two["one_physical_gpu"] is (devices == "cuda:0,cuda:0")
    assert bool(result["model"]["links"]) is (devices == "cuda:0,cuda:0")
    assert result["model"]["assumptions"]
