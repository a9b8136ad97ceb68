"""The benchmarks that run whole processes: wires, and time to a score."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from spreeze.bench import wires
from spreeze.bench.ablations import run_facts
from spreeze.bench.commands import main
from spreeze.bench.time_to_score import usual_target
from spreeze.errors import RunFailed, UsageError


def test_wires_are_measured_against_queue_pipe_and_file(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    assert main(["wires", "--seconds", "3", "--json", str(file)], 0.0) == 0
    facts = json.loads(file.read_text())
    assert facts["torn_reads"] == 0
    assert facts["bytes_hz"] == pytest.approx(facts["rows_hz"] * facts["row_bytes"])
    for means in ("", "queue_", "pipe_", "file_"):
        assert facts[f"{means}rows_hz"] > 0
        assert facts[f"{means}latency_us"] > 0


def test_too_short_a_time_is_told_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other programs may hold the sender up until its turn is over."""
    monkeypatch.setattr(wires, "_policy_by_file", lambda _seconds: wires.Latencies([]))
    with pytest.raises(RunFailed, match=r"no weights arrived by file .*longer --seconds"):
        main(["wires", "--seconds", "1"], 0.0)


def test_a_run_is_measured_with_its_rates_and_its_use_of_the_machine() -> None:
    facts = run_facts("Pendulum-v1", 4.0)
    assert facts["transition_hz"] > facts["update_hz"] > 0
    assert facts["sample_hz"] > 0
    assert facts["cpu_percent"] >= facts["cpu_percent/learner"] > 0


def test_rows_of_several_steps_are_counted_as_so_many_transitions() -> None:
    """PPO learns from segments."""
    facts = run_facts("CartPole-v1", 3.0)
    assert facts["algo"] == "ppo"
    per_update = facts["transition_hz"] / facts["update_hz"]
    assert per_update == pytest.approx(64 * facts["batch_size"], rel=0.2)


def test_a_torn_read_would_be_seen() -> None:
    assert wires._num_torn(np.array([[1, 1, 1], [1, 1, 2], [2, 1, 1]], np.float32)) == 2


@pytest.mark.learning
def test_time_to_score_of_two_on_one_machine(tmp_path: Path) -> None:
    """Both are judged from outside. Stable-Baselines3 is installed for the tests, so it needs no environment."""
    file = tmp_path / "out.json"
    arguments = ["Pendulum-v1", "--target", "-1900", "--seconds", "40", "--seeds", "1", "--here"]
    code = main(["time-to-score", *arguments, "--against", "sb3", "--json", str(file)], 0.0)
    assert code == 0
    facts = json.loads(file.read_text())
    assert set(facts["wall_s"]) == {"spreeze", "sb3", "sb3, 4 environments"}
    for name, (seconds,) in facts["wall_s"].items():
        assert 0 < seconds <= facts["held_s"][name][0] < 40
        assert facts["iqm_s"][name] == pytest.approx([seconds] * 3)
        assert facts["curves"][name][0][-1][3] >= -1900
        assert facts["trials"][name][0]["confirmed"] is not None


def test_what_cannot_be_compared_is_refused() -> None:
    assert usual_target("Pendulum-v1") == -200
    assert usual_target("CartPole-v1") == 475
    with pytest.raises(UsageError, match="no threshold for Humanoid-v5"):
        usual_target("Humanoid-v5")
    with pytest.raises(UsageError, match=r"--against sb4: must be one of .*Did you mean sb"):
        main(["time-to-score", "Pendulum-v1", "--against", "sb4"], 0.0)
    with pytest.raises(UsageError, match=r"--every 0.0: must be from 0\.1"):
        main(["time-to-score", "Pendulum-v1", "--every", "0.0"], 0.0)
