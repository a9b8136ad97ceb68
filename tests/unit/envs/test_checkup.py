"""The check-up of an environment finds each fault that it looks for, and nothing in a sound one."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, MultiBinary

import fakes
from spreeze.cli.commands import doctor
from spreeze.envs.checkup import Check, check_up
from spreeze.envs.checkup import checks as checkup
from spreeze.envs.checkup.checks import Grade
from spreeze.envs.traps import ADVICE
from spreeze.spec import Trap
from spreeze.testing import FaultEnv

# In the test process torch may have threads; the command has none.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")


def found(target: Any, limit_s: float = 60.0) -> dict[str, list[Check]]:
    """The findings of a check-up by what was checked."""
    out: dict[str, list[Check]] = {}
    for check in check_up(target, "x", limit_s):
        out.setdefault(check.what, []).append(check)
    return out


def test_what_training_disregards_is_named_with_what_to_do() -> None:
    masked = {"observation": Box(-1, 1, (2,)), "action_mask": MultiBinary(2)}
    checks = found(partial(fakes.SpaceEnv, obs=Dict(masked)))
    said = [(check.grade, check.found, check.advice) for check in checks["traps"]]
    assert (Grade.WARNING, *ADVICE[Trap.ACTION_MASK]) in said


def worst(checks: list[Check]) -> Grade:
    return max((check.grade for check in checks), key=list(Grade).index)


def test_a_sound_environment_passes_every_check() -> None:
    checks = found(FaultEnv)
    assert list(checks) == list(checkup.CHECKS)
    assert {name: worst(each) for name, each in checks.items()} == dict.fromkeys(
        checkup.CHECKS, Grade.OK
    ), checks


@pytest.mark.parametrize(
    ("fault", "what", "grade", "said"),
    [
        ({"fault": "raise", "where": "construct"}, "start", "problem", "the arm fell off"),
        ({"fault": "nan", "at": 1}, "start", "problem", "observations must be finite"),
        ({"fault": "hang", "where": "reset", "at": 20}, "steps", "problem", "longer than"),
        ({"fault": "segfault", "at": 300}, "steps", "problem", "-11"),
        ({"fault": "exit", "at": 300}, "steps", "problem", "ended with 7"),
        ({"fault": "raise", "at": 300}, "steps", "problem", "the arm fell off"),
        ({"fault": "sys_exit", "at": 300}, "steps", "problem", "SystemExit"),
        ({"fault": "nan", "at": 300}, "steps", "problem", "nan as observation 0"),
        ({"fault": "huge", "at": 300, "part": "reward"}, "steps", "problem", "the reward 1e+30"),
        ({"fault": "bad_shape", "at": 300}, "steps", "problem", "shape (1,)"),
        ({"fault": "leak", "num_bytes": 50_000}, "steps", "warning", "memory grew"),
        ({"fault": "leak_file", "where": "reset"}, "files", "warning", "files open"),
        ({"fault": "print", "num_bytes": 2400}, "output", "warning", "printed"),
        ({"fault": "children", "where": "construct"}, "programs", "problem", "programs run on"),
        ({"fault": "daemons", "where": "construct"}, "programs", "problem", "programs run on"),
        ({"fault": "slow", "seconds": 0.03}, "speed", "warning", "us per step"),
    ],
)
def test_each_fault_is_found(
    fault: Any, what: str, grade: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fault["fault"] == "slow":
        monkeypatch.setattr(checkup, "STEPS_S", 1.0)
        monkeypatch.setattr(checkup, "SEEDED_STEPS", 20)
    checks = found(partial(FaultEnv, **fault), 3.0 if fault["fault"] == "hang" else 60.0)
    assert worst(checks[what]) == grade, checks
    assert any(said in check.found and check.advice for check in checks[what]), checks


def test_a_leak_into_memory_that_the_process_had_before_is_found() -> None:
    pieces = [b"x" * 50_000 for _ in range(8_000)]
    top = b"x" * 50_000  # keeps what is below it from going back to the system
    del pieces
    checks = found(partial(FaultEnv, fault="leak", num_bytes=50_000))
    assert worst(checks["steps"]) is Grade.WARNING, (checks, len(top))


def test_what_cannot_be_trained_on_is_said_as_before_a_run() -> None:
    assert "look like images" not in str(found(FaultEnv))
    (problem,) = found(fakes.open_ended_env)["start"]
    assert problem.grade is Grade.PROBLEM
    assert "without bounds on both sides" in problem.found
    assert "Traceback" not in problem.found


class Unseeded(FaultEnv):
    """Ignores its seed, and leaves its space."""

    def reset(self, **_: Any) -> Any:
        obs, info = super().reset()
        return obs + np.float32(10), info


def test_seeds_that_are_ignored_and_observations_outside_their_space_are_found() -> None:
    checks = found(Unseeded)
    said = " ".join(check.found for check in checks["seeds"] if check.grade is Grade.WARNING)
    assert "the same seed gives other numbers" in said
    assert "outside their space" in said


def test_the_command_says_it_in_words_and_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out.json"
    assert doctor.main(["--env", "spreeze.testing:FaultEnv", "--json", str(file)], 0.0) == 0
    assert {entry["grade"] for entry in json.loads(file.read_text())} == {"ok"}
    assert "random steps without a bad number" in capsys.readouterr().out
    assert doctor.main(["--env", "fakes:broken_env"], 0.0) == 1
    assert "no robot is connected" in capsys.readouterr().out
