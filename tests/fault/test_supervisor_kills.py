"""A supervisor that is killed at any moment leaves nothing behind.

SPREEZE_SUPERVISOR_KILLS sets how often; a few times by default.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import psutil
import pytest

from user_runs import gone_within, training

KILLS = int(os.environ.get("SPREEZE_SUPERVISOR_KILLS", "4"))
LONGEST_S = 5.0
"""A run of the environment below learns after two to three seconds."""


@pytest.mark.fault("F07")
@pytest.mark.fault("F08")
@pytest.mark.fault("F47")
@pytest.mark.timeout(30 + 15 * KILLS)
def test_nothing_outlives_a_supervisor_killed_at_any_moment(tmp_path: Path) -> None:
    moments = random.Random(KILLS)
    shared = set(os.listdir("/dev/shm"))
    for i in range(KILLS):
        folder = tmp_path / str(i)
        folder.mkdir()
        with training(folder, "fakes:DetachedEnv", "--evaluator.processes", "2") as process:
            time.sleep(moments.uniform(0.05, LONGEST_S))
            family = psutil.Process(process.pid).children(recursive=True)
            process.kill()
            process.communicate()
            gone_within({str(member.pid): member.pid for member in family}, 5.0)
        assert not _started_below(folder), "also those that came after the list was made"
    assert set(os.listdir("/dev/shm")) == shared


def _started_below(folder: Path) -> list[str]:
    """Processes that work in this folder, as all those of a run do."""
    found = []
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline:
        found = [
            f"{process.info['pid']} {process.info['name']}"
            for process in psutil.process_iter(["pid", "name", "cwd", "status"])
            if process.info["cwd"] == str(folder) and process.info["status"] != psutil.STATUS_ZOMBIE
        ]
        if not found:
            break
        time.sleep(0.05)
    return found
