"""Suites: a real task of each one trains without further setup."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spreeze
from spreeze.envs.suites import EXTRAS

KNOBS: dict[str, Any] = {
    "algo.hidden": (16, 16),
    "learner.batch_size": 32,
    "learner.compile": False,
    "learner.warmup_rows": 200,
    "replay.capacity": 10_000,
    "evaluator.episodes": 1,
    "target": -1e9,  # the first evaluation reaches it
    "time": "60s",
}


def needs(*extras: str) -> pytest.MarkDecorator:
    lacking = [extra for extra in extras if find_spec(EXTRAS[extra]) is None]
    wanted = ",".join(lacking)
    return pytest.mark.skipif(bool(lacking), reason=f'needs pip install "spreeze[{wanted}]"')


def evaluated(run: Path, episodes: int) -> dict[str, Any]:
    """The result of `spreeze eval`, whose standard output is nothing but JSON."""
    command = [sys.executable, "-m", "spreeze", "eval", str(run)]
    done = subprocess.run(
        [*command, "--episodes", str(episodes), "--json", "-"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


TASKS = [
    pytest.param("HalfCheetah-v5", "gymnasium", 17, marks=needs("mujoco")),
    pytest.param("Pendulum-v1", "gymnasium", 3, marks=needs("classic")),
    pytest.param("MountainCarContinuous-v0", "gymnasium", 2, marks=needs("classic")),
    pytest.param("BipedalWalker-v3", "gymnasium", 24, marks=needs("box2d")),
    pytest.param("LunarLanderContinuous-v3", "gymnasium", 8, marks=needs("box2d")),
    pytest.param("dm_control/cheetah-run-v0", "gymnasium", 17, marks=needs("dmc")),
    pytest.param("dm_control/humanoid-walk-v0", "gymnasium", 67, marks=needs("dmc")),
    pytest.param("HalfCheetahBulletEnv-v0", "gymnasium", 26, marks=needs("bullet")),
    pytest.param("InvertedPendulumSwingupBulletEnv-v0", "gymnasium", 5, marks=needs("bullet")),
    pytest.param("HalfCheetah-v5", "envpool", 17, marks=needs("envpool", "mujoco")),
    pytest.param("Pendulum-v1", "envpool", 3, marks=needs("envpool")),
    pytest.param("BipedalWalker-v3", "envpool", 24, marks=needs("envpool", "box2d")),
    pytest.param("CheetahRun-v1", "envpool", 17, marks=needs("envpool")),
]


@pytest.mark.parametrize(("env_id", "engine", "obs_size"), TASKS)
def test_a_task_of_each_suite_trains(env_id: str, engine: str, obs_size: int, runs: str) -> None:
    run = spreeze.train(env_id, runs=runs, **KNOBS, **{"env.engine": engine})
    summary = run.summary
    assert summary["reason"] == "target", "there was an evaluation"
    assert math.isfinite(summary["final_return"])
    assert summary["env_steps"] >= 200
    assert summary["updates"] > 0
    assert summary["steps_rejected"] == 0
    assert summary["restarts"] == 0
    policy = spreeze.load(run.path)
    assert policy.spec.obs_size == obs_size
    action, _ = policy.predict(np.zeros(obs_size), deterministic=True)
    assert action.shape == policy.spec.action_shape


@needs("dmc")
def test_the_policy_of_a_dict_task_takes_the_observations_of_its_environment(runs: str) -> None:
    env_id = "dm_control/cheetah-run-v0"
    run = spreeze.train(env_id, runs=runs, **KNOBS)
    policy = spreeze.load(run.path)
    raw = {"velocity": np.zeros(9), "position": np.ones(8)}
    flat = np.concatenate([np.ones(8), np.zeros(9)])
    (one, _), (other, _) = (policy.predict(obs, deterministic=True) for obs in (raw, flat))
    np.testing.assert_array_equal(one, other)
    assert evaluated(run.path, 1)["mean_length"] == 1000


@needs("envpool")
@pytest.mark.parametrize("env_id", ["Pendulum-v1", "PendulumSwingup-v1"])
def test_a_run_in_envpool_is_evaluated_in_the_engine_that_has_its_task(
    env_id: str, runs: str
) -> None:
    run = spreeze.train(env_id, runs=runs, **KNOBS, **{"env.engine": "envpool"})
    stored = json.loads((run.path / "config.json").read_text())["config"]
    assert stored["simulation"]["engine"] == "envpool"
    assert len(evaluated(run.path, 2)["returns"]) == 2


@needs("bullet")
def test_output_of_an_environment_does_not_corrupt_the_json(runs: str) -> None:
    run = spreeze.train("InvertedPendulumSwingupBulletEnv-v0", runs=runs, **KNOBS)
    assert len(evaluated(run.path, 2)["returns"]) == 2


@pytest.mark.parametrize(
    ("env_id", "engine", "extra"),
    [
        ("dm_control/cheetah-run-v0", "gymnasium", "dmc"),
        ("HalfCheetahBulletEnv-v0", "gymnasium", "bullet"),
        ("BipedalWalker-v3", "gymnasium", "box2d"),
        ("ALE/Pong-v5", "gymnasium", "atari"),
        ("HalfCheetah-v5", "gymnasium", "mujoco"),
        ("HalfCheetah-v5", "envpool", "envpool"),
    ],
)
def test_a_missing_suite_is_named_with_its_extra(
    env_id: str, engine: str, extra: str, runs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = {"dmc": ("shimmy", "dm_control"), "box2d": ("Box2D",), "mujoco": ("mujoco",)}
    for module in modules.get(extra, (EXTRAS[extra],)):
        for name in [n for n in sys.modules if n == module or n.startswith(f"{module}.")]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, module, None)
    for name in [n for n in sys.modules if n.startswith("gymnasium.envs.")]:
        if name.partition("gymnasium.envs.")[2].split(".")[0] in ("mujoco", "box2d"):
            monkeypatch.delitem(sys.modules, name)
    with pytest.raises(spreeze.UsageError) as caught:
        spreeze.train(env_id, runs=runs, serial=True, **{"env.engine": engine})
    (problem,) = caught.value.problems
    if extra == "bullet" and sys.version_info >= (3, 12):
        assert "no wheels for Python 3.12" in problem
    else:
        assert f'pip install "spreeze[{extra}]"' in problem


def test_no_suite_is_imported_before_one_of_its_ids_is_used() -> None:
    code = (
        "import sys\n"
        "from spreeze.envs.stepping import make_stepper\n"
        "make_stepper('Pendulum-v1', 1).close()\n"
        "assert not {'shimmy', 'dm_control', 'pybullet', 'envpool', 'ale_py'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
