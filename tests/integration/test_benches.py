"""The benchmarks that run whole processes: wires, and time to a score."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from spreeze.bench import peer, time_to_score, wires
from spreeze.bench.commands import main
from spreeze.bench.time_to_score import check_frameworks, usual_target
from spreeze.errors import UsageError


def test_wires_are_measured_against_queue_pipe_and_file(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    assert main(["wires", "--seconds", "3", "--json", str(file)], 0.0) == 0
    facts = json.loads(file.read_text())
    assert facts["torn_reads"] == 0
    assert facts["bytes_hz"] == pytest.approx(facts["rows_hz"] * facts["row_bytes"])
    names = ("rows_hz", "queue_rows_hz", "pipe_rows_hz")
    assert all(facts[name] > 0 for name in names)
    assert all(facts[name] > 0 for name in ("latency_us", "file_latency_us", "queue_latency_us"))


def test_a_torn_read_would_be_seen() -> None:
    assert wires._num_torn(np.array([[1, 1, 1], [1, 1, 2], [2, 1, 1]], np.float32)) == 2


@pytest.mark.learning
def test_time_to_score_of_both_on_one_machine(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    arguments = ["Pendulum-v1", "--target", "-1900", "--seconds", "40", "--seeds", "1"]
    code = main(
        ["time-to-score", *arguments, "--frameworks", "spreeze,sb3", "--json", str(file)], 0.0
    )
    assert code == 0
    facts = json.loads(file.read_text())
    for name in ("spreeze", "sb3"):
        (seconds,) = facts["wall_s"][name]
        assert 0 < seconds < 40
        assert facts["iqm_s"][name] == pytest.approx([seconds] * 3)
        assert facts["curves"][name][0][-1][3] >= -1900


def test_what_others_need_for_evaluations_is_not_taken_from_their_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that evaluates as often as it may is not killed before its own time is up."""
    now, limit_s = 5.0, 1000.0
    monkeypatch.setattr(peer, "time", SimpleNamespace(monotonic=lambda: now))
    schedule, evaluations = peer.Schedule(began_s=0.0), 0
    while schedule.trained_s() < limit_s:
        now += 0.25
        if schedule.due():
            with schedule.evaluation():
                now += 7.0
            evaluations += 1
    assert evaluations > 50
    assert now == pytest.approx(limit_s + 7.0 * evaluations, abs=0.25), "only evaluations are extra"
    assert limit_s < now < time_to_score.peer_timeout_s(limit_s)


def test_what_cannot_be_compared_is_refused() -> None:
    assert usual_target("Pendulum-v1") == -200
    assert usual_target("CartPole-v1") == 475
    with pytest.raises(UsageError, match="no threshold for Humanoid-v5"):
        usual_target("Humanoid-v5")
    with pytest.raises(UsageError, match="must be one of spreeze, sb3, sbx"):
        check_frameworks("spreeze,sb4")
