"""FaultEnv fails where, when and how it is told to, and is a sound environment otherwise."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from spreeze.testing import EnvFault, FaultEnv

ACTION = np.zeros(1, np.float32)


def steps(env: FaultEnv, num: int) -> list[Any]:
    """The results of steps; an episode that ends is followed by another."""
    env.reset(seed=0)
    out = []
    for _ in range(num):
        out.append(env.step(ACTION))
        if out[-1][2] or out[-1][3]:
            env.reset()
    return out


def test_without_arguments_nothing_is_wrong() -> None:
    check_env(FaultEnv(), skip_render_check=True)


def test_walking_to_the_goal_is_rewarded() -> None:
    env = FaultEnv()
    obs, _ = env.reset(seed=1)
    terminated, rewards = False, []
    while not terminated:
        obs, reward, terminated, truncated, _ = env.step(np.clip(obs[2:] / 0.3, -1, 1))
        rewards.append(reward)
        assert not truncated
    assert rewards == sorted(rewards)


def test_a_fault_at_the_nth_call_happens_once_per_instance() -> None:
    env = FaultEnv(fault="nan", at=3)
    assert [bool(np.isnan(obs).any()) for obs, *_ in steps(env, 6)] == [False] * 2 + [
        True,
        *[False] * 3,
    ]


def test_probability_is_seeded_and_instances_differ() -> None:
    def faults(seed: int) -> list[bool]:
        env = FaultEnv(fault="nan", part="reward", probability=0.1, seed=seed)
        return [bool(np.isnan(reward)) for _, reward, *_ in steps(env, 400)]

    first, second = faults(1), faults(1)
    assert 10 < sum(first) < 90
    assert first != second


@pytest.mark.parametrize(
    ("fault", "part", "broken"),
    [
        ("nan", "obs", lambda x: np.isnan(x).all()),
        ("inf", "reward", np.isinf),
        ("huge", "obs", lambda x: (x > 1e29).all()),
        ("bad_shape", "obs", lambda x: x.shape == (1,)),
        ("bad_shape", "reward", lambda x: x.shape == (2,)),
        ("bad_dtype", "terminated", lambda x: x.dtype.kind == "U"),
    ],
)
def test_values_are_spoilt(fault: str, part: Any, broken: Any) -> None:
    (obs, reward, terminated, *_), *_ = steps(FaultEnv(fault=fault, part=part), 1)
    assert broken({"obs": obs, "reward": reward, "terminated": terminated}[part])


@pytest.mark.parametrize("where", ["construct", "reset", "step"])
def test_it_fails_where_it_is_told_to(where: Any) -> None:
    with pytest.raises(RuntimeError, match="the arm fell off"):
        steps(FaultEnv(fault="raise", where=where), 1)


def test_once_means_once_in_all_processes(tmp_path: Path) -> None:
    mark = str(tmp_path / "done")
    with pytest.raises(SystemExit):
        FaultEnv(fault="sys_exit", where="construct", once=mark)
    FaultEnv(fault="sys_exit", where="construct", once=mark)


def test_another_role_is_spared() -> None:
    FaultEnv(fault="raise", where="construct", role="no such process")


def ended(fault: str, more: str = "") -> subprocess.CompletedProcess[str]:
    """How a process ends that makes one step with this fault."""
    code = (
        f"from spreeze.testing import FaultEnv\nenv = FaultEnv(fault={fault!r}, seconds=1)\n"
        f"env.reset(seed=0)\nenv.step([0.0])\n{more}"
    )
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )


def test_faults_that_end_the_process() -> None:
    assert ended("exit").returncode == 7
    assert ended("kill").returncode == -signal.SIGKILL
    assert ended("segfault").returncode == -signal.SIGSEGV


def test_faults_that_harm_the_process() -> None:
    assert len(ended("print").stdout) > 1_000_000
    assert ended("chdir", "import os; print(os.getcwd())").stdout == "/\n"
    assert ended("close_stdout", "import os; os.write(1, b'')").returncode == 1
    assert ended("signals", "import os; os.kill(os.getpid(), 15)").returncode == 0


def test_a_hang_in_c_keeps_other_threads_from_running() -> None:
    more = "import threading, time\nran = []\n"
    thread = "t = threading.Thread(target=lambda: ran.append(time.monotonic()))\n"
    hang = "import sys; sys.setswitchinterval(1e-6)\nt.start(); began = time.monotonic(); env.step([0.0]); t.join()\n"
    answer = ended("hang_gil", more + thread + hang + "print(time.monotonic() - began >= 1)")
    assert answer.stdout == "True\n", answer.stderr


@pytest.mark.parametrize("fault", ["children", "daemons"])
def test_programs_outlive_their_environment(fault: str) -> None:
    more = "import psutil; child, = psutil.Process().children(); print(child.pid, __import__('os').getsid(child.pid))"
    answer = subprocess.run(
        [
            sys.executable,
            "-c",
            f"from spreeze.testing import FaultEnv\nFaultEnv(fault={fault!r}, where='construct').close()\n{more}",
        ],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        start_new_session=True,
        timeout=60,
    )
    pid, session = map(int, answer.stdout.split())
    os.kill(pid, signal.SIGKILL)
    assert (session == pid) == (fault == "daemons")


def test_leaks_grow() -> None:
    env = FaultEnv(fault=EnvFault.LEAK, num_bytes=10)
    steps(env, 5)
    assert len(env._kept) == 5
