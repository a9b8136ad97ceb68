"""Sampler: when it acts, what it writes to its lane, and what it counts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fakes
from spreeze.envs.episodes import MAX_NAMES
from spreeze.roles.acting import Exploration
from spreeze.run.warnings import warnings_from
from stage import EPISODE_STEPS, Stage


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Any]:
    made: list[Stage] = []

    def make(**knobs: Any) -> Stage:
        made.append(Stage(tmp_path, **knobs))
        return made[-1]

    yield make
    for each in made:
        each.close()


def rows_of(stage: Stage, sampler: int = 0) -> Any:
    """The rows in a sampler's lane."""
    context, _ = stage.samplers[sampler]
    reader = context.experience.readers()[sampler]
    return reader.drain(np.zeros(1000, context.layout.dtype))


def work(stage: Stage, units: int, sampler: int = 0) -> None:
    for _ in range(units):
        next(stage.samplers[sampler][1])


def test_each_step_becomes_a_row_in_the_samplers_own_lane(stage: Any) -> None:
    made = stage(**{"algo.n_step": 1})
    work(made, 12)
    rows = rows_of(made)
    # obs is [episode, step, last action]; episodes have five steps.
    assert rows["obs"][:, 1].tolist() == [t % EPISODE_STEPS for t in range(12)]
    assert rows["next_obs"][:, 1].tolist() == [t % EPISODE_STEPS + 1 for t in range(12)]
    assert made.control.samplers["env_steps"].tolist() == [12, 0, 0]
    assert len(rows_of(made, sampler=1)) == 0


def test_exploration_follows_its_schedule_over_the_steps(stage: Any) -> None:
    made = stage(
        **{
            "steps": "1000",
            "algo.exploration_schedule": "linear",
            "algo.exploration_end": 0.5,
        }
    )
    context, _ = made.samplers[0]
    exploration = Exploration(context, 0)
    for steps, factor in ((0, 1.0), (500, 0.75), (1000, 0.5), (1200, 0.5)):
        made.control.samplers["env_steps"][0] = steps
        exploration.follow()
        assert exploration.policy._scales == (None if factor == 1 else pytest.approx(factor))


def test_a_schedule_over_the_time_begins_with_the_training(stage: Any) -> None:
    made = stage(
        **{"time": "100s", "algo.exploration_schedule": "linear", "algo.exploration_end": 0.5}
    )
    context, _ = made.samplers[0]
    made.seconds = 30.0  # imports, the probe and the start of processes
    assert context.share_done == 0
    made.control.supervisor["training_began_s"] = 30.0
    shares = []
    for made.seconds in (30.0, 80.0, 130.0, 140.0):
        shares.append(context.share_done)
    assert shares == [0, 0.5, 1, 1], "it ends when the run does"


@pytest.mark.fault("F31")
def test_rows_have_the_version_of_the_policy_that_acted(stage: Any) -> None:
    made = stage(**{"algo.n_step": 1, "sampler.random_steps": 0})
    work(made, 5)
    made.publish(1)
    made.seconds += 1
    work(made, 5)
    assert rows_of(made)["version"].tolist() == [0] * 5 + [1] * 5
    assert made.control.samplers["version"][0] == 1


def test_finished_episodes_are_counted_with_their_means(stage: Any) -> None:
    made = stage()
    work(made, 2 * EPISODE_STEPS)
    counters = made.control.samplers[0]
    returns = [sum(100 * episode + k for k in range(1, 6)) for episode in (1, 2)]
    assert counters["episodes"] == 2
    assert counters["return_mean"] == np.mean(returns)
    assert counters["length_mean"] == EPISODE_STEPS


def test_what_environments_say_at_the_ends_of_episodes_is_reported(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = fakes.CountEnv.step
    monkeypatch.setattr(
        fakes.CountEnv, "step", lambda env, a: (*step(env, a)[:4], {"episode": env.episode})
    )
    made = stage()
    work(made, EPISODE_STEPS, sampler=0)
    work(made, 3 * EPISODE_STEPS, sampler=1)
    made.seconds += 10
    for sampler in (0, 1):
        work(made, 1, sampler)
    reports = made.evaluator.episode_reports()
    assert reports.means() == {"rollout/info/episode": np.mean([1, 1, 2, 3])}
    work(made, 40 * EPISODE_STEPS, sampler=1)
    made.seconds += 10
    work(made, 1, sampler=1)
    # Each of three samplers has 34 of the newest hundred episodes.
    newest = [1, *range(43 - 33, 44)]
    assert reports.means() == {"rollout/info/episode": pytest.approx(np.mean(newest))}


def test_many_long_names_in_info_do_not_end_a_sampler(
    stage: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    step = fakes.CountEnv.step

    def talk(env: Any, action: Any) -> Any:
        said = {f"{env.episode:02}{i:03}{'🤖' * 55}": 1 / 3 for i in range(60)}
        return (*step(env, action)[:4], said | {"is_success": True})

    monkeypatch.setattr(fakes.CountEnv, "step", talk)
    made = stage()
    work(made, 3 * EPISODE_STEPS)
    made.seconds += 10
    work(made, 1)
    means = made.evaluator.episode_reports().means()
    assert len(means) == MAX_NAMES + 1, "a success has two names"
    assert made.control.samplers["names_left_out"][0] == 81
    assert capsys.readouterr().out.count("left out: ") == 1
    (warning,) = [text for text in warnings_from(made.control, 32) if "info" in text]
    assert warning.startswith("info has 81 numbers beside the first 100")


def test_samplers_hold_while_they_are_ahead_of_the_updates(stage: Any) -> None:
    made = stage()
    made.control.learner["allowed_steps"] = 2
    assert made.who_steps() == [True, True, True]
    assert made.who_steps() == [False, False, False]
    assert (made.control.samplers["waited_s"] > 0).all()
    made.control.learner["allowed_steps"] = 100
    assert made.who_steps() == [True, True, True]


def test_inactive_samplers_hold(stage: Any) -> None:
    made = stage()
    made.control.supervisor["active_samplers"] = 1
    assert made.who_steps() == [True, False, False]


def test_a_restarted_sampler_continues_its_count(stage: Any) -> None:
    made = stage()
    work(made, 7)
    made.samplers[0][1].close()
    made.samplers[0] = made.role("sampler", 0)
    work(made, 3)
    assert made.control.samplers["env_steps"][0] == 10


@pytest.mark.fault("F65")
def test_a_sampler_does_not_wait_for_a_disk_that_hangs(
    stage: Any, hanging_disk: threading.Event, tmp_path: Path
) -> None:
    made = stage(threads=True)
    context, _ = made.samplers[0]
    for _ in range(3):
        work(made, EPISODE_STEPS)
        made.seconds += 10
        context.note("an episode")
        context._keep_env_error("ValueError: the arm fell off")
    assert made.control.samplers["env_steps"][0] == 3 * EPISODE_STEPS
    assert (tmp_path / "metrics" / "sampler-0.jsonl").read_text() == ""
    hanging_disk.set()
    context.close()
    records = (tmp_path / "metrics" / "sampler-0.jsonl").read_text().splitlines()
    assert len(records) == 2
    assert "arm" in (tmp_path / "logs" / "sampler-0.error").read_text()
