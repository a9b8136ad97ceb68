"""A run among others: many viewers, slow and hungry environments, many restarts, many runs."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest
import setproctitle

import fakes
import spreeze
from user_runs import learning, read, records, training, wait_for

ALONE = ("--no-dashboard", "--learner.no-compile")
SMALL: dict[str, Any] = {
    "algo": "sac",
    "algo.hidden": (16, 16),
    "learner.batch_size": 32,
    "learner.compile": False,
    "learner.warmup_rows": 64,
    "replay.capacity": 10_000,
}


@pytest.mark.fault("F76")
@pytest.mark.fault("F77")
@pytest.mark.exhaustive
def test_viewers_that_never_read_and_a_page_that_hangs_do_not_slow_training(tmp_path: Path) -> None:
    with training(tmp_path, "Pendulum-v1", "--learner.no-compile") as process:
        pids = learning(tmp_path)
        url = read(tmp_path, "status")["dashboard"]["url"]
        port = int(url.rstrip("/").rpartition(":")[2])
        token = (tmp_path / "runs" / "r" / "dashboard.token").read_text().strip()
        request = f"GET /api/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
        with contextlib.ExitStack() as viewers:
            for _ in range(100):
                deaf = socket.create_connection(("127.0.0.1", port), 10)
                viewers.enter_context(deaf)
                with contextlib.suppress(OSError):  # more than the page serves at once
                    deaf.sendall(f"{request}\r\n".encode())
            goes_on(tmp_path)
            os.kill(pids["dashboard"], signal.SIGSTOP)
            goes_on(tmp_path)
            assert psutil.Process(pids["dashboard"]).memory_info().rss < 300 << 20
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
        assert process.returncode == 130
    assert (tmp_path / "runs" / "r" / "checkpoints" / "last").exists()


def goes_on(folder: Path) -> None:
    """Wait until sampling and learning have both gone on for a while."""
    before = read(folder, "status")["progress"]
    wait_for(lambda: read(folder, "status")["progress"]["updates"] > before["updates"] + 200)
    wait_for(lambda: read(folder, "status")["progress"]["env_steps"] > before["env_steps"] + 500)


@pytest.mark.exhaustive
@pytest.mark.fault("F52")
@pytest.mark.fault("F58")
def test_a_slow_environment_keeps_nobody_and_samplers_compute_with_one_thread_each(
    runs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four samplers, also on two cores; the environments do linear algebra, and that of sampler 0 is slow."""
    monkeypatch.delenv("OMP_NUM_THREADS")

    class Hungry(fakes.CountEnv):
        def __init__(self) -> None:
            super().__init__()
            self.total = 0

        def step(self, action: Any) -> Any:
            import numpy as np

            self.total += 1
            np.linalg.inv(np.eye(200) + self.total)
            time.sleep(0.2 if "sampler-0" in setproctitle.getproctitle() else 0.002)
            if self.total == 10:
                others = threading.active_count() - 1  # the one that writes
                print("threads:", len(os.listdir("/proc/self/task")) - others, flush=True)
            return super().step(action)

    knobs = {**SMALL, "sampler.processes": 4, "sampler.envs_per_process": 1}
    run = spreeze.train(Hungry, runs=runs, time="6s", **knobs)
    threads = Counter(
        line
        for i in range(4)
        for line in (run.path / "logs" / f"sampler-{i}.log").read_text().splitlines()
        if line.startswith("threads:")
    )
    assert threads == {"threads: 1": 4}
    episodes = [records(run.path, f"sampler-{i}")[-1]["rollout/episodes"] for i in range(4)]
    assert 0 < 10 * episodes[0] < min(episodes[1:])
    assert run.summary["updates"] > 0


def holds(pids: list[int]) -> dict[str, int]:
    """What these processes hold."""
    found = [psutil.Process(pid) for pid in pids]
    return {
        "files": sum(process.num_fds() for process in found),
        "threads": sum(process.num_threads() for process in found),
        "processes": len(psutil.Process(pids[0]).children(recursive=True)),
        "memory": sum(process.memory_info().rss for process in found),
    }


@pytest.mark.fault("F26")
def test_restarts_leave_no_file_thread_or_memory_behind(tmp_path: Path) -> None:
    """The supervisor and its fork servers are as they were before."""
    with training(tmp_path, "Pendulum-v1", *ALONE) as process:
        learning(tmp_path)
        supervisor = psutil.Process(process.pid)
        servers = [child.pid for child in supervisor.children()]
        before: dict[str, int] = {}
        for _ in range(3):
            for role in ("sampler-0", "evaluator-0"):
                pid = read(tmp_path, "status")["pids"][role]
                os.kill(pid, signal.SIGKILL)
                wait_for(lambda p=pid, r=role: read(tmp_path, "status")["pids"][r] != p)  # type: ignore[misc]
            before = before or holds([process.pid, *servers])
        goes_on(tmp_path)
        after = holds([process.pid, *servers])
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=15)
    assert read(tmp_path, "summary")["restarts"] == 6
    assert after["memory"] < 1.05 * before["memory"]
    assert {**after, "memory": 0} == {**before, "memory": 0}


@pytest.mark.fault("F26")
@pytest.mark.exhaustive
def test_runs_in_one_process_leave_no_file_behind(runs: str) -> None:
    files = []
    for _ in range(3):
        spreeze.train(fakes.ReachEnv, runs=runs, steps="500", **SMALL)
        gc.collect()  # the last arrays of the shared memory are in a cycle
        files.append(psutil.Process().num_fds())
    assert files[0] == files[1] == files[2]
