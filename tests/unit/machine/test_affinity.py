"""Processes that keep to their cores."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

SCRIPT = """
import json, os, sys
from spreeze.machine.affinity import keep_to_cores, other_cores
keep_to_cores(sys.argv[1] == "learner", int(sys.argv[2]))
print(json.dumps([sorted(os.sched_getaffinity(0)), other_cores()]))
"""


def cores_of(role: str, num_learner_cores: int) -> list[list[int]]:
    """The cores of a process with this role, and those that it knows to be of others."""
    command = [sys.executable, "-c", SCRIPT, role, str(num_learner_cores)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    cores: list[list[int]] = json.loads(done.stdout)
    return cores


def test_the_learner_and_the_others_share_out_the_cores() -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("one core cannot be shared out")
    assert cores_of("learner", 1) == [cores[:1], cores[1:]]
    assert cores_of("sampler", 1) == [cores[1:], cores[1:]]


def test_a_learner_that_would_need_every_core_shares_them() -> None:
    cores = sorted(os.sched_getaffinity(0))
    assert cores_of("learner", len(cores)) == [cores, cores]
