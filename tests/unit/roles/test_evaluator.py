"""Evaluator: what it records of an evaluation, and how many processes play."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

import fakes
from spreeze.envs.episodes import Episode, InfoNames
from spreeze.envs.inspect import inspect_env
from spreeze.policy import Policy
from spreeze.policy.load import load_policy
from spreeze.roles.evaluator import _num_processes, results
from spreeze.roles.evaluator.results import Results
from spreeze.roles.evaluator.schedule import _pause
from spreeze.settings.defaults import config_with, default_config
from spreeze.store.metrics import Recorder
from spreeze.store.rundir import RunDir
from spreeze.wires.arena import Arena
from spreeze.wires.documents import (
    EVALUATION,
    Document,
    EpisodeReports,
    document_blocks,
    episodes_of,
)
from spreeze.wires.weights import Stamp

STAMP = Stamp(version=7, updates=100, env_steps=5000)


class Counters(dict[str, float]):
    """Counters that remember the order in which they were stored."""

    def __init__(self) -> None:
        names = (
            "evaluations",
            "broken_episodes",
            "best_return",
            "return_mean",
            "updates",
            "names_left_out",
        )
        super().__init__(dict.fromkeys((*names, "target_time_s", "saves_failed"), 0))
        self.stored: list[str] = []

    def __setitem__(self, name: str, value: float) -> None:
        self.stored.append(name)
        super().__setitem__(name, value)


class Reporter:
    """An evaluator that only reports."""

    info: ClassVar[dict[str, float]] = {}
    """What the environment says at the end of every episode."""

    def __init__(self, folder: Path, target: float | None = None, **knobs: Any) -> None:
        self.run = RunDir(folder)
        self.run.checkpoints.mkdir()
        self.run.metrics.mkdir()
        self.config = config_with(
            default_config(env="x"), {"target": target, "algo.hidden": (4,), **knobs}
        )
        self.spec = inspect_env(fakes.CountEnv, "x")
        self.policy = Policy(self.spec, self.config.hyper.policy_form(self.spec))
        self.counters, self.seconds = Counters(), 0.0
        self.recorder = Recorder(self.run.metrics / "evaluator-0.jsonl")
        self.arena = Arena.create(document_blocks(1))
        self.results = Results(self, ["easy", "hard"])  # type: ignore[arg-type]

    def now(self) -> float:
        return self.seconds

    def document(self, name: str) -> Document:
        return Document(self.arena, name)

    def count_names(self, names: InfoNames) -> None:
        self.counters["names_left_out"] = len(names.left_out)

    def episode_reports(self) -> EpisodeReports:
        return EpisodeReports(self.arena, 1)

    def report(self, *returns: float) -> None:
        self.report_each(returns)

    def report_each(self, *returns: Sequence[float]) -> None:
        """Report the returns of each environment."""
        episodes = [
            [Episode(total, 10 + i, self.info) for total in env] for i, env in enumerate(returns)
        ]
        self.results.report(self.policy, STAMP, episodes, took_s=0.5)

    def recorded(self) -> list[dict[str, Any]]:
        self.recorder.close()
        lines = (self.run.metrics / "evaluator-0.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]


def test_the_result_is_stored_before_the_count_that_announces_it(tmp_path: Path) -> None:
    """The supervisor reads the result as soon as `evaluations` moves."""
    reporter = Reporter(tmp_path, target=1.0)
    reporter.report(1.0, 2.0)
    stored = reporter.counters.stored
    assert {"return_mean", "best_return", "updates", "target_time_s"} <= set(stored)
    assert stored.index("evaluations") == len(stored) - 1
    reporter.recorder.close()


def test_an_evaluation_is_recorded_with_the_stamp_of_its_weights(tmp_path: Path) -> None:
    reporter = Reporter(tmp_path)
    reporter.seconds = 12.0
    reporter.report(1.0, 3.0)
    (line,) = reporter.recorded()
    assert (line["time_s"], line["env_steps"], line["updates"]) == (12.0, 5000, 100)
    assert (line["eval/mean_reward"], line["eval/std_reward"]) == (2.0, 1.0)
    assert (line["eval/min_reward"], line["eval/max_reward"]) == (1.0, 3.0)
    assert (line["eval/mean_ep_length"], line["eval/seconds"]) == (10.0, 0.5)


def test_several_environments_count_alike_and_have_their_own_metrics(tmp_path: Path) -> None:
    reporter = Reporter(tmp_path, target=5.0)
    nan = float("nan")
    reporter.report_each([1.0, 3.0], [10.0, nan])
    assert np.isnan(reporter.counters["best_return"]), "an episode is broken"
    reporter.report_each([1.0, 3.0], [10.0, 20.0])
    assert reporter.counters["best_return"] == reporter.counters["return_mean"] == 8.5
    assert reporter.counters["broken_episodes"] == 1
    reporter.report_each([100.0, 100.0], [nan, nan])
    assert reporter.counters["evaluations"] == 2, "one environment alone is no result"
    first, line = reporter.recorded()
    assert first["eval/mean_reward"] == 6.0, "the mean of 2 and 10"
    assert (line["eval/easy/mean_reward"], line["eval/hard/mean_reward"]) == (2.0, 15.0)
    assert (line["eval/min_reward"], line["eval/hard/min_reward"]) == (1.0, 10.0)
    assert (line["eval/mean_ep_length"], line["eval/hard/mean_ep_length"]) == (10.5, 11.0)


def test_many_long_names_in_info_neither_end_the_evaluator_nor_fill_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Reporter, "info", {f"{'🤖' * 57}{i:03}": 1.0 for i in range(300)})
    reporter = Reporter(tmp_path)
    reporter.report_each([1.0], [2.0])
    assert reporter.counters["evaluations"] == 1
    assert reporter.counters["names_left_out"] == 200
    newest = reporter.document(EVALUATION)
    assert newest.refresh()
    assert newest.value["metrics"]["eval/mean_reward"] == 1.5
    assert sum("/info/" in name for name in reporter.recorded()[0]) == 3 * 100


def test_one_environment_has_no_metrics_by_name(tmp_path: Path) -> None:
    reporter = Reporter(tmp_path)
    reporter.report(1.0, 3.0)
    (line,) = reporter.recorded()
    assert not any("easy" in name for name in line)


def test_only_a_better_policy_becomes_the_best(tmp_path: Path) -> None:
    reporter = Reporter(tmp_path)
    best = reporter.run.checkpoints / "best" / "config.json"
    for returns, expected in ((-5.0, -5.0), (-7.0, -5.0), (-2.0, -2.0)):
        reporter.report(returns)
        assert reporter.counters["best_return"] == expected
        assert json.loads(best.read_text())["mean_reward"] == expected
    reporter.recorder.close()


@pytest.mark.fault("F64")
def test_a_best_policy_that_the_disk_refused_is_saved_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reporter = Reporter(tmp_path)
    reporter.policy.vector[:] = 1
    with monkeypatch.context() as full:
        full.setattr(results, "save_best", lambda *_: False)
        reporter.report(5.0)
    reporter.policy.vector[:] = 2
    reporter.report(4.0)
    assert reporter.counters["saves_failed"] == 1
    best = reporter.run.checkpoints / "best"
    assert json.loads((best / "config.json").read_text())["mean_reward"] == 5.0
    assert (load_policy(best).vector == 1).all(), "the policy of that evaluation, not the newest"
    reporter.recorder.close()


@pytest.mark.fault("F10")
def test_an_evaluator_that_was_killed_before_it_saved_the_best_policy_saves_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reporter = Reporter(tmp_path)
    reporter.report(3.0)
    with monkeypatch.context() as killed:
        killed.setattr(results, "save_best", lambda *_: False)
        reporter.report(5.0)
    reporter.results = Results(reporter, ["easy"])  # type: ignore[arg-type]
    reporter.report(4.0)
    best = reporter.run.checkpoints / "best" / "config.json"
    assert json.loads(best.read_text())["mean_reward"] == 4.0
    reporter.recorder.close()


@pytest.mark.fault("F75")
def test_an_old_run_records_fewer_evaluations_but_each_best_one(tmp_path: Path) -> None:
    reporter = Reporter(tmp_path)
    for second in range(100):
        reporter.seconds = 86_400.0 + second
        reporter.report(50.0 if second == 42 else -1.0)
    means = [line["eval/mean_reward"] for line in reporter.recorded()]
    assert 50.0 in means
    assert len(means) <= 6
    assert reporter.counters["evaluations"] == 100


def test_broken_episodes_neither_make_a_best_policy_nor_reach_the_target(tmp_path: Path) -> None:
    reporter = Reporter(tmp_path, target=3.0)
    reporter.report(5.0, float("nan"))
    assert reporter.counters["broken_episodes"] == 1
    assert reporter.counters["return_mean"] == 5.0
    assert np.isnan(reporter.counters["best_return"])
    assert reporter.counters["target_time_s"] == 0
    reporter.report(float("nan"), float("nan"))
    assert reporter.counters["evaluations"] == 1, "without a whole episode there is no result"
    reporter.recorder.close()


def test_the_time_of_the_first_success_is_kept(tmp_path: Path) -> None:
    reporter = Reporter(tmp_path, target=3.0)
    for seconds, total in ((1.0, 2.9), (2.0, 3.0), (3.0, 9.0)):
        reporter.seconds = seconds
        reporter.report(total)
    assert reporter.counters["target_time_s"] == 2.0
    reporter.recorder.close()


def test_one_process_plays_if_the_users_code_has_threads() -> None:
    """A forked worker would lack them, and might wait for them forever."""
    config = config_with(default_config(env="x"), {"evaluator.processes": 3})
    notes: list[str] = []
    ctx: Any = SimpleNamespace(config=config, note=notes.append)
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        assert _num_processes(ctx, 3) == 1
    finally:
        over.set()
        thread.join()
    assert "threads" in notes[0]


@pytest.mark.parametrize(
    ("target", "age_s", "took_s", "pause_s"),
    [
        (None, 61.0, 0.3, 3.0),  # a tenth of the time
        (None, 61.0, 1.2, 12.0),
        (9.0, 2.0, 0.5, 1.0),  # early in a run it is short anyway
        (9.0, 61.0, 1.2, 3.8),  # so that the next evaluation has ended 5 s after this one began
        (9.0, 201.0, 1.2, 8.85),  # 5 % of the run
        (9.0, 61.0, 4.0, 8.0),  # an evaluation takes too long for that
    ],
)
def test_with_a_target_evaluations_are_as_frequent_as_it_takes_to_notice_it(
    target: float | None, age_s: float, took_s: float, pause_s: float
) -> None:
    ctx: Any = SimpleNamespace(
        config=config_with(default_config(env="x"), {"target": target}),
        control=SimpleNamespace(first_update_s=1.0),
        now=lambda: age_s,
    )
    assert _pause(ctx, took_s, share=0.1) == pytest.approx(pause_s)


@pytest.mark.parametrize(
    ("metric", "reached"),
    [
        ("eval/success_rate", True),
        ("eval/info/laps", False),
        ("rollout/info/laps", True),
        ("eval/info/missing", False),
    ],
)
def test_the_target_may_be_what_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metric: str, reached: bool
) -> None:
    monkeypatch.setattr(Reporter, "info", {"is_success": 1.0, "laps": 0.5})
    reporter = Reporter(tmp_path, target=0.75, target_metric=metric)
    reporter.seconds = 3.0
    Document(reporter.arena, episodes_of(0)).write({"rollout/info/laps": (1.6, 2)})
    reporter.report(-10.0, -20.0)
    assert (reporter.counters["target_time_s"] == 3.0) == reached
    newest = reporter.document(EVALUATION)
    assert newest.refresh()
    assert newest.value["metrics"]["eval/mean_reward"] == -15.0
    assert reporter.recorded()[-1]["eval/success_rate"] == 1.0
