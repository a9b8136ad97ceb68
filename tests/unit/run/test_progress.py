"""What the supervisor makes of the numbers on the control wire."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spreeze.rows import PLACEMENTS
from spreeze.run.bottleneck import Bottleneck, Limit, find_bottleneck
from spreeze.run.controller import BATCH, SAMPLERS, Change, Decision, Rates
from spreeze.run.cpu_meter import CpuUse
from spreeze.run.outcome import FAILED, INTERRUPTED, EndReason, Outcome, RunState
from spreeze.run.progress import Progress
from spreeze.run.snapshot import Snapshot
from spreeze.run.start_up import Milestone, StartUp
from spreeze.run.warnings import env_error_warnings
from spreeze.run.wording import NOISE_LASTS, describe_bottleneck
from spreeze.settings.defaults import config_with, default_config
from spreeze.store.metrics import Recorder
from spreeze.wires.arena import Arena
from spreeze.wires.control import CompileState, Control, control_blocks

NUM_SAMPLERS = 3
FINISHED = Outcome(RunState.FINISHED, EndReason.TIME)


class Stage:
    """A control wire that the test writes, a clock that it moves, and the progress that looks at both."""

    def __init__(self, folder: Path, **knobs: Any) -> None:
        self.arena = Arena.create(control_blocks(NUM_SAMPLERS))
        self.control = Control(self.arena)
        self.control.supervisor["active_samplers"] = NUM_SAMPLERS
        self.file = folder / "supervisor-0.jsonl"
        self.recorder = Recorder(self.file)
        self.seconds = 1000.0
        given = {"device": "cpu", "sampler.processes": NUM_SAMPLERS, "learner.batch_size": 256}
        given |= {"sampler.envs_per_process": 4, "replay.placement": "host"}
        self.config = config_with(default_config(env="x"), given)
        self.config = config_with(self.config, knobs)
        self.progress = Progress(
            self.config,
            self.control,
            StartUp(self.seconds),
            self.recorder,
            lambda: self.seconds,
        )

    def learn(self) -> None:
        """The first update has begun."""
        self.control.learner["first_update_s"] = self.progress.elapsed_s or 0.001

    def after(self, seconds: float, **learner: float) -> Snapshot:
        """What is seen some seconds later, with these new words of the learner."""
        self.seconds += seconds
        for word, value in learner.items():
            self.control.learner[word] = value
        return self.progress.look()

    def step(self, num: int) -> None:
        """Every sampler makes this many env steps."""
        self.control.samplers["env_steps"] += num

    def wait(self, role: str, seconds: float) -> None:
        """A role has waited so long."""
        getattr(self.control, role)["waited_s"] += seconds

    def evaluate(self, mean: float, best: float | None = None) -> None:
        """The evaluator reports, in its own order: the count last."""
        words = self.control.evaluator
        words["return_mean"], words["best_return"] = mean, mean if best is None else best
        words["evaluations"] += 1

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.file.read_text().splitlines()]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Any]:
    made: list[Stage] = []

    def make(**knobs: Any) -> Stage:
        made.append(Stage(tmp_path, **knobs))
        return made[-1]

    yield make
    for each in made:
        each.recorder.close()
        each.arena.close()


def test_updates_of_the_resumed_run_do_not_count_as_speed(stage: Any) -> None:
    made = stage()
    counted = [(0, 0), (99_300, 0), (99_400, 2), (99_500, 2), (99_600, 2)]
    rates = [made.after(1, updates=n, first_update_s=s).update_hz for n, s in counted]
    assert rates == [0, 0, 0, 100, 100]
    assert made.progress.snapshot.updates == 99_600
    assert made.progress.snapshot.update_frame_hz == 100 * 256
    assert made.progress.summary(FINISHED)["update_hz"] == 100


def test_rates_use_the_batch_size_that_the_learner_has(stage: Any) -> None:
    made = stage()
    made.learn()
    made.after(0, updates=0, batch_size=512)
    assert made.after(1, updates=10).update_frame_hz == 10 * 512
    assert made.progress.summary(FINISHED)["batch_size"] == 512


def test_env_steps_and_episodes_are_summed_over_the_samplers(stage: Any) -> None:
    made = stage()
    assert made.after(0).rollout_return is None
    made.step(100)
    made.control.samplers["episodes"][:2] = 4, 2
    made.control.samplers["return_mean"][:2] = -30.0, -10.0
    snap = made.after(1)
    assert (snap.env_steps, snap.episodes, snap.sample_hz) == (300, 6, 300)
    assert snap.rollout_return == -20, "samplers without an episode do not count"


def test_before_the_first_update_a_run_is_starting_then_collecting(stage: Any) -> None:
    made = stage()
    assert made.after(0).bottleneck == Bottleneck(Limit.STARTING)
    made.step(10)
    made.wait("samplers", 1.0)
    assert made.after(1).bottleneck == Bottleneck(Limit.COLLECTING)


@pytest.mark.parametrize(
    ("samplers_s", "learner_s", "kind", "percent"),
    [
        (0.0, 0.3, Limit.SAMPLERS, 30.0),
        (0.2, 0.3, Limit.SAMPLERS, 30.0),
        (0.3, 0.0, Limit.LEARNER, 30.0),
        (0.3, 0.2, Limit.LEARNER, 30.0),
        (0.05, 0.08, Limit.NOBODY_WAITS, 0.0),
        (0.0, 7.0, Limit.SAMPLERS, 100.0),
    ],
)
def test_the_bottleneck_is_the_side_that_the_other_one_waits_for(
    stage: Any, samplers_s: float, learner_s: float, kind: Limit, percent: float
) -> None:
    made = stage()
    made.learn()
    made.after(0)
    for _ in range(4):
        made.wait("samplers", samplers_s)
        made.wait("learner", learner_s)
        found = made.after(1).bottleneck
    assert found.kind == kind
    assert found.waiting_percent == pytest.approx(percent)
    progress = made.progress.status(RunState.RUNNING)["progress"]
    assert progress["bottleneck_kind"] == kind.value
    assert progress["waiting_percent"] == pytest.approx(percent)


def test_what_a_start_waits_for_is_known(stage: Any) -> None:
    made = stage()
    seen = [made.after(1).awaited, made.after(1, up_s=1).awaited, made.after(1, ready_s=1).awaited]
    made.step(1)
    seen += [made.after(1).awaited, made.after(1, first_update_s=4).awaited]
    expected = [Milestone.LEARNER, Milestone.NETWORKS, Milestone.SAMPLING, Milestone.WARM_UP]
    assert seen == [*expected, Milestone.UPDATE]
    assert made.after(1, first_updated_s=5).awaited is None


def test_a_serial_run_does_not_wait_for_processes(stage: Any) -> None:
    """Its clock stands still until there are env steps."""
    assert stage(serial=True).after(1).awaited is Milestone.SAMPLING


def test_training_counts_from_the_start_of_the_roles(stage: Any) -> None:
    made = stage()
    assert made.after(7).training_s == 0
    made.progress.begin_training()
    made.after(2)
    made.progress.begin_training()
    snap = made.after(1)
    assert (snap.time_s, snap.training_s) == (10, 3)
    assert made.control.supervisor["training_began_s"] == 7, "schedules count from there"
    summary = made.progress.summary(FINISHED)
    assert (summary["wall_s"], summary["before_training_s"]) == (10, 7)


@pytest.mark.parametrize(
    ("run", "others", "is_limit"),
    [(0.9, 1.1, True), (0.9, 0.6, False), (1.7, 0.2, False), (1.5, 0.4, True)],
)
def test_other_programs_are_the_limit_if_they_use_much_and_no_core_is_idle(
    run: float, others: float, is_limit: bool
) -> None:
    found = find_bottleneck(0.0, 40.0, CpuUse({"learner": run}, others, cores=2, cpus=2))
    assert (found.kind is Limit.OTHERS) == is_limit
    if is_limit:
        assert (found.other_cores, found.cores) == (others, 2)
        assert describe_bottleneck(found, "cpu") == f"other programs use {others} of 2 cores"


def test_samplers_that_are_switched_off_do_not_wait(stage: Any) -> None:
    made = stage()
    made.control.supervisor["active_samplers"] = 1
    made.learn()
    made.after(0)
    made.control.samplers["waited_s"][1:] += 1.0
    snap = made.after(1)
    assert snap.stall_percent["samplers"] == 0
    assert snap.bottleneck.kind == Limit.NOBODY_WAITS


def test_a_healthy_run_has_no_warnings(stage: Any) -> None:
    made = stage()
    made.learn()
    made.step(1)
    made.evaluate(-5.0)
    assert made.after(1, compiled=CompileState.COMPILED).warnings == []


@pytest.mark.parametrize(
    ("table", "word", "value", "said"),
    [
        ("learner", "rows_lost", 7, "7 transitions were overwritten"),
        ("samplers", "rejected", 2, "6 env steps gave NaN, infinity or numbers beyond"),
        ("evaluator", "broken_episodes", 4, "4 evaluation episodes broke off"),
        ("learner", "rollbacks", 1, "Lower --algo.lr"),
        ("samplers", "simulation_resets", 1, "3 env steps made MuJoCo diverge"),
        ("learner", "checkpoints_refused", 2, "2 checkpoints are damaged and were passed over"),
        ("learner", "detour", 1, "copies go through host memory"),
        ("learner", "compiled", CompileState.NO_CPP_COMPILER, "no C++ compiler"),
        ("learner", "compiled", CompileState.REFUSED, "see logs/learner-0.log"),
        ("learner", "saves_failed", 3, "3 checkpoints could not be written"),
        ("evaluator", "saves_failed", 1, "1 checkpoints could not be written"),
    ],
)
def test_each_counter_of_trouble_has_its_warning(
    stage: Any, table: str, word: str, value: int, said: str
) -> None:
    made = stage()
    getattr(made.control, table)[word] = value
    (warning,) = made.after(1).warnings
    assert said in warning
    assert made.progress.status(RunState.RUNNING)["warnings"] == [warning]


def test_a_run_without_any_evaluation_is_warned_of_after_two_minutes(stage: Any) -> None:
    made = stage()
    assert made.after(500).warnings == [], "two minutes of updates, not of starting"
    made.learn()
    assert made.after(120).warnings == []
    assert "--env.max-episode-steps" in made.after(1).warnings[0]
    made.evaluate(-5.0)
    assert made.after(1).warnings == []


def test_noise_that_lasts_is_told_once(stage: Any) -> None:
    made = stage()
    assert made.after(1).warnings == []
    made.control.samplers["noise_lasts"][1] = 1
    assert len(made.after(1).warnings) == 1
    made.control.samplers["noise_lasts"][1] = 0
    assert made.after(1).warnings == [NOISE_LASTS]


def test_a_role_without_a_heartbeat_is_named_if_it_has_a_process(stage: Any) -> None:
    made = stage()
    made.progress.pids = {"sampler-1": 2**30, "learner-0": 2**30 + 1}
    made.after(0)
    for _ in range(4):
        made.control.learner["beats"] += 1
        snap = made.after(10)
    assert snap.warnings == ["sampler-1 has made no progress for 40 s"]
    made.control.samplers["beats"][1] += 1
    assert made.after(1).warnings == []


def test_a_note_comes_first_and_is_an_event_in_the_metrics(stage: Any) -> None:
    made = stage()
    made.after(2, rows_lost=1)
    made.progress.note("sampler-0 was ended by signal 9 and started again")
    first, second = made.after(0).warnings
    assert first == "sampler-0 was ended by signal 9 and started again"
    assert "overwritten" in second
    assert next(line for line in made.records() if line.get("event") == first)["time_s"] == 2


def test_memory_that_ran_out_is_said_now_and_in_the_summary(stage: Any) -> None:
    made = stage()
    assert made.progress.summary(FINISHED)["out_of_memory"] is None
    place = PLACEMENTS.index("pinned")
    (warning,) = made.after(1, out_of_memory=2, replay_placement=place, batch_size=64).warnings
    assert warning == "out of GPU memory: went on with replay.placement pinned and batches of 64"
    assert made.progress.summary(FINISHED)["out_of_memory"] == warning


def test_evaluations_between_two_looks_are_counted(stage: Any) -> None:
    made = stage()
    made.after(1)
    made.evaluate(-9.0)
    assert made.after(1).evaluations == [(2.0, -9.0)]
    made.evaluate(-8.0)
    made.evaluate(-7.0, best=-6.0)
    snap = made.after(1)
    assert snap.evaluations == [(2.0, -9.0), (3.0, -7.0), (3.0, -7.0)]
    assert (snap.eval_return, snap.best_return) == (-7.0, -6.0)
    assert made.after(1).evaluations == snap.evaluations


def test_no_best_return_is_none_and_not_nan(stage: Any) -> None:
    made = stage()
    made.evaluate(-9.0, best=float("nan"))
    assert made.after(1).best_return is None
    assert made.progress.summary(FINISHED)["best_return"] is None


@pytest.mark.parametrize(("serial", "seconds"), [(False, 4.5), (True, 6.0)])
def test_the_time_to_the_target_is_the_evaluators(stage: Any, serial: bool, seconds: float) -> None:
    """Except in serial mode, where its clock counts env steps."""
    made = stage(serial=serial)
    made.after(5)
    assert made.progress.target_reached_s is None
    made.control.evaluator["target_time_s"] = 4.5
    made.after(1)
    made.after(9)
    assert made.progress.target_reached_s == seconds
    assert made.progress.summary(FINISHED)["time_to_target_s"] == seconds


def test_the_replay_is_as_old_as_its_median_transition(stage: Any) -> None:
    made = stage()
    for _ in range(10):
        made.step(100)
        made.after(1, replay_rows=0)
    assert "replay/age_s" not in made.records()[-1], "it is empty"
    made.after(1, replay_rows=3000)
    assert made.records()[-1]["replay/age_s"] == pytest.approx(6), "1,500 of 3,000 after 5 s"
    made.after(1, replay_rows=600)
    assert made.records()[-1]["replay/age_s"] == pytest.approx(3), "only the newest are kept"


def test_metrics_are_written_once_a_second(stage: Any) -> None:
    made = stage()
    for _ in range(12):
        made.after(0.25)
    assert [line["time_s"] for line in made.records()] == [0.25, 1.25, 2.25]
    assert made.records()[0]["async/stall_percent/learner"] == 0


def test_rates_of_the_summary_begin_with_the_first_update(stage: Any) -> None:
    made = stage()
    made.step(1000)
    made.after(10, updates=0)
    made.learn()
    made.after(0)
    made.step(500)
    made.after(5, updates=200, rows_learned=200 * 256, policy_lag=1.0)
    made.after(5, policy_lag=2.0)
    summary = made.progress.summary(Outcome(RunState.FINISHED, EndReason.STEPS))
    assert (summary["sample_hz"], summary["update_hz"]) == (150, 20)
    assert summary["update_frame_hz"] == 20 * 256
    assert summary["first_update_s"] == 10
    assert summary["wall_s"] == 20
    assert summary["env_steps"] == 4500
    assert summary["updates_per_step"] == round(200 / 4500, 6)
    assert summary["policy_lag_mean"] == 1.5, "none from before the first update"


@pytest.mark.parametrize(
    ("outcome", "state", "reason"),
    [
        (FINISHED, "finished", "time"),
        (INTERRUPTED, "interrupted", "stopped"),
        (FAILED, "failed", "error"),
    ],
)
def test_the_summary_says_how_a_run_ended(
    stage: Any, outcome: Outcome, state: str, reason: str
) -> None:
    summary = stage().progress.summary(outcome)
    assert type(summary["state"]) is type(summary["reason"]) is str
    assert (summary["state"], summary["reason"]) == (state, reason)
    json.dumps(summary, allow_nan=False)


def test_a_run_that_never_learned_has_a_summary(stage: Any) -> None:
    made = stage()
    made.after(3)
    summary = made.progress.summary(FAILED)
    assert (summary["sample_hz"], summary["update_hz"], summary["update_frame_hz"]) == (0, 0, 0)
    unknown = ("first_update_s", "time_to_target_s", "all_sampling_s", "policy_lag_mean")
    assert [summary[name] for name in unknown] == [None] * 4
    assert summary["replay_placement"] == "host", "as planned"


@pytest.mark.parametrize("state", CompileState)
def test_the_summary_says_which_form_of_the_update_ran(stage: Any, state: CompileState) -> None:
    made = stage()
    made.after(1, compiled=state)
    summary = made.progress.summary(FINISHED)
    assert summary["update_form"] == state.name.lower()
    assert summary["prepared"] is False
    made.after(1, prepared=1)
    assert made.progress.summary(FINISHED)["prepared"] is True


@pytest.mark.parametrize(("device", "age"), [("cpu", None), ("cpu,cpu", 3.0)])
def test_the_age_of_exchanged_networks_is_known_with_two_devices(
    stage: Any, device: str, age: float | None
) -> None:
    made = stage(device=device)
    made.learn()
    made.after(1, exchange_age=2.0)
    made.after(1, exchange_age=4.0)
    assert made.progress.summary(FINISHED)["exchange_age_mean"] == age


def test_the_summary_adds_up_what_went_wrong(stage: Any) -> None:
    made = stage()
    made.step(1)
    made.control.samplers["rejected"] = 2
    made.progress.restarts += 2
    made.after(7, rows_lost=5)
    summary = made.progress.summary(FINISHED)
    wanted = {"restarts": 2, "rows_lost": 5, "steps_rejected": 6, "all_sampling_s": 7}
    assert {name: summary[name] for name in wanted} == wanted


def test_the_status_is_what_readers_of_the_file_know(stage: Any) -> None:
    made = stage()
    made.learn()
    made.progress.pids = {"supervisor": 1}
    made.evaluate(-9.0, best=float("nan"))
    made.after(2)
    status = made.progress.status(RunState.RUNNING)
    assert list(status) == ["state", "pids", "progress", "warnings", "open_warnings", "diagnosis"]
    assert status["state"] == "running"
    assert status["diagnosis"] is None
    assert status["pids"] == {"supervisor": 1}
    assert status["progress"] == {
        "time_s": 2,
        "training_s": 0,
        "env_steps": 0,
        "updates": 0,
        "sample_hz": 0,
        "update_hz": 0,
        "eval_return": -9,
        "best_return": None,
        "bottleneck": "learner's CPU and the samplers' cores: nobody waits",
        "bottleneck_kind": "nobody_waits",
        "waiting_percent": 0,
        "other_cores": 0,
        "cores": 0,
    }
    json.dumps(status, allow_nan=False)


def test_a_decision_is_shown_and_written_to_the_metrics(stage: Any) -> None:
    made = stage()
    made.control.supervisor["batch_size"] = 512
    changes = (Change(SAMPLERS, 8, 6), Change(BATCH, 256, 512))
    decision = Decision(Rates(1234.0, 56_789.0, 256), changes, 0.125, kept=True)
    made.progress.record_decision(decision)
    assert made.progress.snapshot.decision == decision
    assert {k: v for k, v in made.records()[-1].items() if k.startswith("tuner/")} == {
        "tuner/seen": "1,234 updates/s of 256, 56,789 steps/s",
        "tuner/change": "samplers 8 -> 6, batch 256 -> 512",
        "tuner/gain": 0.125,
        "tuner/kept": 1,
        "tuner/active_samplers": NUM_SAMPLERS,
        "tuner/batch_size": 512,
        "tuner/min_updates_per_step": 0.0,
    }


@pytest.mark.fault("F42")
def test_exceptions_of_environments_are_shown_with_the_newest_one(stage: Any) -> None:
    made = stage()
    assert env_error_warnings(made.control, {}) == []
    made.control.samplers["env_errors"][1] = 3
    made.control.evaluator["env_errors"] = 1
    (warning,) = env_error_warnings(made.control, {"sampler-1": "RuntimeError: the arm fell off"})
    assert warning.startswith("environments raised 4 times; their episodes ended there")
    assert "RuntimeError: the arm fell off (traceback: logs/sampler-1.error)" in warning
