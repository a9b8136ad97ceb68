"""Two minutes of constant faults; `python bench/soak.py --minutes 30` is the long form."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from soaking import MIB, Samples, Soak, budget_of, growth, soak

TIMES = [float(i) for i in range(90)]


def test_noise_does_not_count_as_growth_and_a_leak_does() -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(100, 10, len(TIMES))
    assert growth(TIMES, noise.tolist(), budget=10).is_fine
    leak = growth(TIMES, (noise + 2 * np.array(TIMES)).tolist(), budget=100)
    assert not leak.is_fine
    assert leak.estimate == pytest.approx(178, rel=0.1)
    assert leak.at_least < leak.estimate
    steps = [float(i // 30) for i in range(90)]
    assert not growth(TIMES, steps, budget=1).is_fine, "a file more every half minute"
    assert growth(TIMES, [math.nan] * 90, budget=1).is_fine, "a role that was never there"
    assert budget_of("learner memory", 1800) == 18 * MIB


def test_the_verdict_names_what_is_wrong() -> None:
    leaking = Samples(TIMES, {"supervisor files": TIMES, "processes": [7.0] * 90})
    bad = Soak(90.0, samples=leaking, exit_code=1, left=["python (running)"], error="it fell off")
    bad.kills["learner-0"], bad.hangs = 40, 6
    bad.summary = {"best_return": -5.0, "faults": {"killed": 3}}
    text = "\n".join(bad.problems())
    for part in (
        "supervisor files grew",
        "3 killed, there were 40",
        "0 hung",
        "best return is -5.0",
    ):
        assert part in text
    assert "exit code 1: it fell off" in text
    assert "left behind: python" in text
    assert "processes grew" not in text
    good = Soak(90.0, samples=Samples(TIMES, {"processes": [7.0] * 90}), exit_code=0)
    good.summary = {"best_return": -0.3, "faults": {"bad_numbers": 5}}
    assert good.problems() == []
    assert json.loads(json.dumps(good.report()))["problems"] == []


@pytest.mark.timeout(300)
@pytest.mark.fault("F05")
@pytest.mark.fault("F09")
@pytest.mark.fault("F10")
@pytest.mark.fault("F26")
@pytest.mark.fault("F43")
def test_two_minutes_of_faults(tmp_path: Path) -> None:
    result = soak(tmp_path, 120.0, "--no-dashboard")
    print(json.dumps(result.report(), indent=1))
    assert sum(result.kills.values()) >= 40
    assert result.problems() == []
