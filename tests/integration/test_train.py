"""Whole runs: processes, run directory, tools, serial mode, the Python call."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import imageio_ffmpeg
import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file

import fakes
import spreeze
from spreeze.algos.sac import SACConfig
from spreeze.cli.commands.train import parse
from spreeze.policy.load import load_policy
from spreeze.roles import learner
from spreeze.run import diagnosis
from spreeze.run.launch import launch
from spreeze.run.new_folder import claim_folder
from spreeze.run.snapshot import Snapshot
from spreeze.run.start_up import Milestone
from spreeze.settings.config import Config
from spreeze.settings.defaults import config_with, default_config
from spreeze.store.rundir import RunDir
from spreeze.store.trace import Activity, read_trace
from user_runs import PATHS, records

SUMMARY = [
    "env",
    "algo",
    "seed",
    "state",
    "reason",
    "wall_s",
    "time_to_target_s",
    "env_steps",
    "updates",
    "batch_size",
    "sampler_processes",
    "envs_per_process",
    "sample_hz",
    "update_hz",
    "update_frame_hz",
    "best_return",
    "final_return",
    "policy_lag_mean",
    "restarts",
    "device",
]
FORGIVING = {"limits.env_errors": 1.0}
"""However often environments fail, the run goes on."""
SMALL = {
    "algo.hidden": (16, 16),
    "learner.batch_size": 32,
    "learner.compile": False,
    "replay.capacity": 10_000,
}


def spreeze_command(*arguments: str, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "spreeze", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=90, **kwargs
    )


def test_the_start_is_told_by_milestones(pendulum: Path) -> None:
    start = RunDir(pendulum).read("summary")["start_up"]
    assert list(start) == [milestone.value for milestone in Milestone]
    main = ("flags_read", "environment_tried", "planned", "run_folder_made", "roles_asked_for")
    learner = ("learner_process_up", "networks_ready", "first_update_begun", "first_update_done")
    for names in (main, learner, ("environment_tried", "learner_process_up")):
        assert 0 < start[names[0]] < start[names[-1]] < 60
        assert [start[name] for name in names] == sorted(start[name] for name in names)


def test_a_known_answer_is_learned(runs: str) -> None:
    run = spreeze.train(
        fakes.ReachEnv, runs=runs, time=40, target=-0.01, reproducible=True, algo__hidden=(32, 32)
    )
    assert run.summary["reason"] == "target"
    assert RunDir(run.path).read("config")["config"]["learner"]["ratio_bounds"] == [0.125, 0.125]
    assert max(run.curve()["mean_return"]) == run.summary["best_return"]
    again = spreeze.evaluate(run, episodes=20)
    assert again.mean > -0.05, "the environment is the one that this program trained on"
    with pytest.raises(spreeze.UsageError, match=r"run .* was trained on ReachEnv"):
        spreeze.evaluate(spreeze.Run(run.path))
    policy = spreeze.load(run)
    for obs in (-0.8, 0.0, 0.8):
        action, _ = policy.predict(np.array([obs]), deterministic=True)
        assert action[0] == pytest.approx(obs / 2, abs=0.25)


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the command line that solves Pendulum-v1, in its own folder; the tests below read it."""
    folder = tmp_path_factory.mktemp("user")
    done = spreeze_command(
        "train", "Pendulum-v1", "--time", "60s", "--target", "-200", "--name", "p", cwd=folder
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()  # on a GPU, a compilation that goes on has a line too
    assert "reached its target of -200" in lines[0]
    assert lines[1] == "Run:  runs/p"
    (after,) = [line for line in lines if line.startswith("Next: ")]
    assert after.endswith("spreeze eval p")
    return folder / "runs" / "p"


def test_the_summary_has_what_scripts_rely_on(pendulum: Path) -> None:
    summary = RunDir(pendulum).read("summary")
    assert set(SUMMARY) <= set(summary)
    assert summary["state"] == "finished"
    assert summary["reason"] == "target"
    assert summary["best_return"] >= -200
    assert 0 < summary["first_update_s"] < summary["time_to_target_s"] <= summary["wall_s"] < 60
    assert 0 < summary["before_training_s"] < summary["first_update_s"], "--time counts from here"
    assert summary["update_frame_hz"] == pytest.approx(
        summary["update_hz"] * summary["batch_size"], rel=0.01
    )
    assert summary["restarts"] == 0


def test_the_run_directory_is_complete(pendulum: Path) -> None:
    for name in (
        "config.json",
        "system.json",
        "status.json",
        "summary.json",
        "tensorboard",
        "logs/learner-0.log",
    ):
        assert (pendulum / name).exists(), name
    for role in ("supervisor-0", "learner-0", "sampler-0", "evaluator-0"):
        lines = records(pendulum, role)
        assert lines, role
        times = [line["time_s"] for line in lines]
        assert times == sorted(times)
        assert all({"time_s", "env_steps", "updates"} <= set(line) for line in lines)
    names = set().union(
        *(
            records(pendulum, r)[-1]
            for r in ("supervisor-0", "learner-0", "sampler-0", "evaluator-0")
        )
    )
    wanted = (
        "rollout/ep_rew_mean rollout/ep_len_mean eval/mean_reward eval/mean_ep_length train/critic_loss "
        "train/actor_loss train/ent_coef perf/sample_hz perf/update_hz perf/update_frame_hz "
        "perf/updates_per_step perf/intake_share perf/cpu_percent async/policy_lag replay/rows "
        "train/batch_size"
    )
    assert set(wanted.split()) <= names
    config = RunDir(pendulum).read("config")
    assert config["reasons"]["learner.batch_size"]
    assert RunDir(pendulum).read("status")["state"] == "finished"
    assert "learning begins" in (pendulum / "logs" / "learner-0.log").read_text()


def test_evaluations_are_stamped_with_the_weights_they_judged(pendulum: Path) -> None:
    lines = records(pendulum, "evaluator-0")
    assert all(line["eval/mean_ep_length"] == 200 for line in lines)
    for key in ("version", "updates", "env_steps"):
        values = [line[key] for line in lines]
        assert values == sorted(set(values)), f"{key} grows from evaluation to evaluation"
    best = max(line["eval/mean_reward"] for line in lines)
    kept = json.loads((pendulum / "checkpoints" / "best" / "config.json").read_text())
    assert kept["mean_reward"] == best


def test_play_films_a_policy(pendulum: Path) -> None:
    flags = ("--seconds", "7", "--size", "120x90", "--video", "p.mp4")
    folder = pendulum.parent.parent
    done = spreeze_command("play", *flags, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "when the time was up" in done.stdout.splitlines()[1], "an episode takes 6.7 s"
    frames = imageio_ffmpeg.read_frames(str(folder / "p.mp4"))
    facts = next(frames)
    frames.close()
    assert (facts["size"], facts["duration"]) == ((120, 90), 7.0)


def test_eval_runs_and_load_find_the_run(pendulum: Path) -> None:
    folder = pendulum.parent.parent
    done = spreeze_command("eval", "--episodes", "20", "--json", "-", cwd=folder)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert len(facts["returns"]) == 20
    assert facts["min"] <= facts["mean"] <= facts["max"]
    assert facts["mean"] > -350
    again = json.loads(
        spreeze_command("eval", "p", "--episodes", "20", "--json", "-", cwd=folder).stdout
    )
    assert again["returns"] == facts["returns"], "the same seed plays the same episodes"
    listed = json.loads(spreeze_command("runs", "--json", "-", cwd=folder).stdout)
    assert [(row["name"], row["state"]) for row in listed] == [("p", "finished")]
    name = "a-name-that-is-longer-than-half-of-a-narrow-terminal"
    shutil.copytree(pendulum, folder / "others" / name, symlinks=True)
    table = spreeze_command("runs", "others", cwd=folder).stdout.splitlines()
    assert [line.split()[:3] for line in table] == [
        ["run", "task", "state"],
        [name, "Pendulum-v1", "finished"],
    ]
    assert table[0].endswith("updates/s"), "a file has room for all columns"
    narrow = f"COLUMNS=70 {sys.executable} -m spreeze runs others"
    seen = subprocess.run(
        ["script", "-qec", narrow, "/dev/null"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert seen.stdout.splitlines()[1].split()[:2] == [name, "finished"]
    assert len(seen.stdout.splitlines()[1]) <= 70
    assert isinstance(spreeze.load(pendulum).predict([1.0, 0.0, 0.0])[0], np.ndarray)


def test_resuming_continues_from_the_last_checkpoint(pendulum: Path) -> None:
    before = RunDir(pendulum).read("summary")
    done = spreeze_command(
        "train",
        "--resume",
        "p",
        "--steps",
        str(before["env_steps"] + 3000),
        "--name",
        "q",
        cwd=pendulum.parent.parent,
    )
    assert done.returncode == 0, done.stderr
    resumed = RunDir(pendulum.parent / "q")
    assert resumed.read("summary")["updates"] > before["updates"]
    assert resumed.read("summary")["env_steps"] >= before["env_steps"] + 3000
    assert resumed.read("config")["config"]["env"] == "Pendulum-v1"


def test_roles_are_processes_with_titles_and_samplers_have_no_torch(runs: str) -> None:
    seen: dict[str, list[str]] = {}
    torch_users: set[str] = set()

    def look(stop: threading.Event) -> None:
        while not stop.wait(0.1):
            for child in psutil.Process().children(recursive=True):
                try:
                    title = child.cmdline()[0]
                    maps = Path(f"/proc/{child.pid}/maps").read_text()
                except (psutil.Error, OSError, IndexError):
                    continue
                if title.endswith(" titled"):
                    seen.setdefault(title, []).append(str(child.pid))
                    if "libtorch" in maps:
                        torch_users.add(title)

    stop = threading.Event()
    thread = threading.Thread(target=look, args=(stop,))
    thread.start()
    try:
        spreeze.train(
            "Pendulum-v1", runs=runs, name="titled", time="5s", **{"sampler.processes": 2}
        )
    finally:
        stop.set()
        thread.join()
    titles = {
        f"spreeze {role} titled" for role in ("learner-0", "sampler-0", "sampler-1", "evaluator-0")
    }
    assert set(seen) == titles
    assert torch_users == {"spreeze learner-0 titled"}


def parameters(run: Path) -> dict[str, Any]:
    return load_file(run / "checkpoints" / "last" / "train.safetensors")


def test_the_best_policy_is_an_average_and_learning_is_not_affected(
    runs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SACConfig, "young_updates", lambda _: 1)
    knobs = {**SMALL, "runs": runs, "serial": True, "steps": "3000", "seed": 1}
    newest, mean = (
        spreeze.train(fakes.ReachEnv, name=f"a{share}", **knobs, **{"evaluator.average": share})
        for share in (0.0, 0.9)
    )
    best, last = (
        [run.path / "checkpoints" / k for run in (newest, mean)] for k in ("best", "last")
    )
    assert not np.array_equal(*(load_policy(path).vector for path in best))
    np.testing.assert_array_equal(*(load_policy(path).vector for path in last))


def test_serial_runs_with_one_seed_are_bit_equal_with_a_trace_too(
    runs: str, capfd: pytest.CaptureFixture[str]
) -> None:
    finals, knobs = [], {**SMALL, "quiet": True}
    for name, seed, trace in (("a", 3, None), ("b", 3, "1s"), ("c", 4, None)):
        goal = {"steps": "4000", "trace": trace}
        run = spreeze.train(
            "Pendulum-v1", runs=runs, name=name, serial=True, seed=seed, **goal, **knobs
        )
        assert run.summary["reason"] == "steps"
        finals.append(parameters(run.path))
    first, second, other = finals
    assert first["updates"] > 300
    assert all(np.array_equal(first[key], second[key]) for key in first)
    assert not np.array_equal(first["actor"], other["actor"])
    lines = [records(Path(runs) / name, "evaluator-0") for name in ("a", "b")]
    assert lines[0] == lines[1], "the evaluations are equal too"
    assert lines[0]
    assert "".join(capfd.readouterr()) == "", "although roles print in this process"
    did = {
        process: {activity for _, _, activity in spans}
        for process, spans in read_trace(RunDir(Path(runs) / "b").trace).items()
    }
    assert {Activity.ACT, Activity.SIMULATE, Activity.WRITE, Activity.FETCH} <= did["sampler-0"]
    assert {Activity.DRAIN, Activity.UPDATE, Activity.PUBLISH} <= did["learner-0"]
    assert Activity.EVALUATE in did["evaluator-0"]


def test_serial_mode_raises_the_environments_own_error(runs: str) -> None:
    with pytest.raises(RuntimeError, match="the arm fell off"):
        spreeze.train(fakes.raising_env, runs=runs, serial=True, steps="10k", **SMALL)
    (run,) = Path(runs).iterdir()
    assert RunDir(run).read("summary")["state"] == "failed"


@pytest.mark.parametrize(
    ("env", "ratio", "waiting"),
    [(fakes.CountEnv, 0.02, "samplers"), (fakes.slow_env, 0.5, "learner")],
)
@pytest.mark.fault("F39")
def test_the_ratio_of_updates_to_steps_is_held_from_either_side(
    runs: str, env: Any, ratio: float, waiting: str
) -> None:
    knobs = {
        "learner.updates_per_step": ratio,
        "learner.warmup_rows": 100,
        "learner.updates_per_publish": 2,
    }
    run = spreeze.train(env, runs=runs, time="6s", algo="sac", **SMALL, **knobs)
    summary = run.summary
    counted = summary["env_steps"] - 100  # the warm-up does not count
    assert summary["updates"] > 100
    assert summary["updates"] / counted == pytest.approx(ratio, rel=0.1)
    stalls = records(run.path, "supervisor-0")[-1]
    assert stalls[f"async/stall_percent/{waiting}"] > 5


def test_a_run_shorter_than_the_learners_first_second_has_its_numbers(runs: str) -> None:
    knobs = {**SMALL, "learner.warmup_rows": 100, "serial": True, "steps": "600"}
    run = spreeze.train(fakes.ReachEnv, runs=runs, **knobs)
    lines = records(run.path, "learner-0")
    assert [line["updates"] for line in lines] == [run.summary["updates"]]


def test_a_slow_environment_does_not_stop_the_learner(runs: str) -> None:
    run = spreeze.train(
        fakes.slow_env, runs=runs, time="6s", **SMALL, **{"learner.warmup_rows": 100}
    )
    assert run.summary["updates_per_step"] > 0.5


def test_what_an_environment_prints_goes_to_its_log(
    runs: str, capfd: pytest.CaptureFixture[str]
) -> None:
    run = spreeze.train(fakes.printing_env, runs=runs, steps="3000", quiet=True, **SMALL)
    assert "noise on standard output" in (run.path / "logs" / "sampler-0.log").read_text()
    out, err = capfd.readouterr()
    assert out + err == "", "and a quiet run prints nothing itself"


@pytest.mark.fault("F43")
def test_steps_that_are_not_finite_are_dropped_and_reported(runs: str) -> None:
    run = spreeze.train(fakes.nan_env, runs=runs, steps="4000", **SMALL, **FORGIVING)
    assert run.summary["steps_rejected"] >= 1
    assert all(np.isfinite(array).all() for array in parameters(run.path).values())


def test_an_evaluation_with_a_broken_episode_is_never_the_best(runs: str) -> None:
    """A policy that breaks the simulator must not win by shorter, cheaper episodes."""
    knobs = {**SMALL, **FORGIVING, "target": -8.0, "serial": True}
    run = spreeze.train(fakes.breaking_env, runs=runs, steps="6000", **knobs)
    assert run.summary["reason"] == "steps"
    assert run.summary["best_return"] in (None, -10.0)
    found = [line["eval/mean_reward"] for line in records(run.path, "evaluator-0")]
    assert set(found) <= {-10.0}
    assert (
        "broke off (an exception, NaN or infinity) and do not count"
        in (run.path / "status.json").read_text()
    )


def test_n_step_and_vector_environments_train(runs: str) -> None:
    def vector() -> Any:
        return gym.make_vec("Pendulum-v1", num_envs=4)

    run = spreeze.train(vector, runs=runs, steps="4000", **SMALL, **{"algo.n_step": 3})
    assert run.summary["updates"] > 0
    assert math.isfinite(records(run.path, "learner-0")[-1]["train/critic_loss"])


@pytest.mark.fault("F16")
@pytest.mark.fault("F18")
def test_a_script_without_a_main_guard_runs_once(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import gymnasium as gym, spreeze\n"
        "print('script runs')\n"
        "class Mine(gym.Wrapper):\n"
        "    def __init__(self): super().__init__(gym.make('Pendulum-v1'))\n"
        "run = spreeze.train(lambda: Mine(), steps='2000', name='s')\n"
        "print(run.summary['state'])\n"
        "gym.register('Mine-v0', entry_point=Mine)\n"
        "print(spreeze.train('Mine-v0', steps='2000', name='t').summary['state'])\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["script runs", "finished", "finished"]


@pytest.mark.fault("F17")
def test_a_script_that_computes_with_torch_in_twenty_threads_trains(tmp_path: Path) -> None:
    """On a GPU where there is one: a process that was forked from such a script could not use CUDA."""
    script = tmp_path / "script.py"
    script.write_text(
        "import threading, torch, spreeze\n"
        "device = 'cuda' if torch.cuda.is_available() else 'cpu'\n"
        "stop, computed = threading.Event(), []\n"
        "def work():\n"
        "    x = torch.ones(64, 64, device=device)\n"
        "    while not stop.wait(0.05): computed.append(float((x @ x).sum()))\n"
        "threads = [threading.Thread(target=work) for _ in range(20)]\n"
        "for thread in threads: thread.start()\n"
        "try:\n"
        "    run = spreeze.train('Pendulum-v1', steps='4000', name='s', device=device)\n"
        "    before = len(computed)\n"
        "finally:\n"
        "    stop.set()\n"
        "for thread in threads: thread.join()\n"
        "print(run.summary['state'], run.summary['updates'] > 0, before > 20, set(computed) == {64.0**3})\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["finished", "True", "True", "True"]


def test_episodes_that_never_end_get_a_limit_by_flag(runs: str) -> None:
    env = partial(fakes.CountEnv, 10**9, False)
    limit = {"env.max_episode_steps": 40}
    run = spreeze.train(env, runs=runs, serial=True, steps="2500", name="l", **SMALL, **limit)
    assert {line["eval/mean_ep_length"] for line in records(run.path, "evaluator-0")} == {40}
    played = spreeze_command("eval", "l", "--runs", runs, "--env", "fakes:CountEnv", "--json", "-",
                             env=os.environ | {"PYTHONPATH": PATHS})  # fmt: skip
    assert json.loads(played.stdout)["mean_length"] == 5, "a shorter episode stays as it is"
    assert RunDir(run.path).max_episode_steps == 40


@pytest.mark.parametrize(
    ("env", "knobs", "cause"),
    [
        (fakes.FlatEnv, {}, "equal_rewards"),
        (fakes.ScaledEnv, {}, "mixed_observations"),
        (fakes.NoiseEnv, {}, "still_random"),
        (fakes.NoiseEnv, {"algo.lr": 0.3, "algo.tau": 1.0}, "critic_diverges"),
        (fakes.CostEnv, {"algo.lr": 0.003}, "does_nothing"),
        (fakes.PushEnv, {"algo.lr": 0.01, "replay.capacity": 2000}, "saturated_actions"),
    ],
)
def test_what_keeps_a_run_from_learning_is_named(
    env: Any, knobs: dict[str, Any], cause: str, runs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Environments made to have each illness. Nothing is said to one that is well."""
    monkeypatch.setattr(diagnosis, "PATIENCE_S", -math.inf)  # serial runs count steps as time
    monkeypatch.setattr(learner, "LOOK_EVERY_S", 1.0)
    run = spreeze.train(env, runs=runs, serial=True, steps="9000", algo="sac", **SMALL | knobs)
    status = RunDir(run.path).read("status")
    assert status["diagnosis"]["cause"] == cause
    assert any("not learning" in text for text in status["open_warnings"])


def test_nothing_is_named_in_a_run_that_learns(runs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "PATIENCE_S", -math.inf)
    run = spreeze.train(fakes.ReachEnv, runs=runs, serial=True, steps="9000", algo="sac", **SMALL)
    assert RunDir(run.path).read("status")["diagnosis"] is None


@pytest.mark.fault("F15")
def test_training_works_in_a_thread_as_in_a_notebook(runs: str) -> None:
    results: list[Any] = []
    thread = threading.Thread(
        target=lambda: results.append(
            spreeze.train("Pendulum-v1", runs=runs, steps="3000", **SMALL)
        )
    )
    thread.start()
    thread.join(60)
    assert results[0].summary["state"] == "finished"


@pytest.mark.fault("F19")
def test_two_runs_in_a_row_in_one_process(runs: str) -> None:
    for name in ("one", "two"):
        assert (
            spreeze.train("Pendulum-v1", runs=runs, name=name, steps="2000", **SMALL).path.name
            == name
        )
        time.sleep(0.01)
    with pytest.raises(spreeze.UsageError, match="exists already"):
        spreeze.train("Pendulum-v1", runs=runs, name="two", steps="2000", **SMALL)


def test_without_a_finite_episode_there_is_no_return_and_a_warning_says_why(runs: str) -> None:
    run = spreeze.train(fakes.nan_reward_env, runs=runs, time="5s", **SMALL, **FORGIVING)
    assert run.summary["best_return"] is None
    assert run.summary["updates"] > 0
    said = " ".join(RunDir(run.path).read("status")["warnings"])
    assert "evaluation episodes broke off (an exception, NaN or infinity) and do not count" in said


def test_a_screen_that_breaks_does_not_end_the_run(runs: str) -> None:
    def broken(*_: Any) -> None:
        raise BrokenPipeError("nobody reads any more")

    knobs = {"runs": runs, "steps": "2000", **SMALL}
    run = launch(config_with(default_config(env="Pendulum-v1"), knobs), "Pendulum-v1", broken)
    assert run.summary["state"] == "finished"
    assert "nobody reads" in RunDir(run.path).read("status")["warnings"][0]


def test_an_id_that_only_this_process_has_registered(runs: str) -> None:
    gym.register("Named-v0", entry_point="fakes:ReachEnv")
    try:
        run = spreeze.train("Named-v0", runs=runs, steps="2000", **SMALL)
    finally:
        del gym.registry["Named-v0"]
    assert run.summary["env"] == "Named-v0"


def test_a_vector_environment_may_have_any_number_of_environments(runs: str) -> None:
    def vector() -> Any:
        return gym.make_vec("Pendulum-v1", num_envs=19)

    run = spreeze.train(vector, runs=runs, steps="3000", **SMALL)
    assert run.summary["envs_per_process"] == 19


@pytest.mark.fault("F67")
def test_resuming_from_python_with_another_ratio_and_another_environment(pendulum: Path) -> None:
    folder = str(pendulum.parent)
    before = RunDir(pendulum).read("summary")
    knobs = {"learner.updates_per_step": 0.01, "steps": before["env_steps"] + 2000}
    run = spreeze.train("Pendulum-v1", resume="p", runs=folder, name="again", **knobs)
    assert run.summary["updates"] >= before["updates"]
    assert RunDir(run.path).read("config")["config"]["learner"]["ratio_bounds"] == [0.01, 0.01]
    with pytest.raises(spreeze.UsageError, match="that run trained on Pendulum-v1"):
        spreeze.train(fakes.ReachEnv, resume="p", runs=folder, steps="2000")
    with pytest.raises(spreeze.UsageError, match=r"--algo\.hidden"):
        spreeze.train("Pendulum-v1", resume="p", runs=folder, **{"algo.hidden": (8,)})
    with pytest.raises(spreeze.UsageError, match="--algo td3: run p was trained with sac"):
        spreeze.train("Pendulum-v1", resume="p", runs=folder, algo="td3")
    with pytest.raises(spreeze.UsageError, match="--preset sb3: a resumed run keeps"):
        spreeze.train("Pendulum-v1", resume="p", runs=folder, preset="sb3")
    assert parse(["--resume", "p", "--runs", folder, "--algo", "sac"]).algo == "sac"
    with pytest.raises(spreeze.UsageError, match="trained with sac"):
        parse(["--resume", "p", "--runs", folder, "--algo", "td3"])


def test_rates_count_from_the_first_update_in_every_mode(runs: str) -> None:
    began = time.monotonic()
    knobs = {"learner.warmup_rows": 4000, "steps": "6000"}
    run = spreeze.train("Pendulum-v1", runs=runs, serial=True, **SMALL, **knobs)
    took = time.monotonic() - began
    assert run.summary["wall_s"] <= took
    assert 0 < run.summary["sample_hz"] <= 2000 + 16


def test_a_run_that_could_not_learn_in_its_time_has_failed(runs: str) -> None:
    knobs = {**SMALL, "serial": True, "learner.warmup_rows": 10_000}
    few = "before its first update .*of 10,000.* or lower --learner.warmup-rows"
    with pytest.raises(spreeze.RunFailed, match=few):
        spreeze.train(fakes.ReachEnv, runs=runs, name="late", time="0.1s", **knobs)
    summary = RunDir(Path(runs) / "late").read("summary")
    assert (summary["state"], summary["reason"], summary["updates"]) == ("failed", "error", 0)
    assert "nothing was learned" in summary["stop_reason"]
    run = spreeze.train(fakes.ReachEnv, runs=runs, steps="200", **knobs)
    assert run.summary["state"] == "finished", "it has made as many steps as it was to make"
    assert "nothing was learned" in RunDir(run.path).read("status")["warnings"][0]


@pytest.mark.fault("F19")
def test_runs_that_start_in_the_same_second_have_different_names(runs: str) -> None:
    config = config_with(default_config(env="Pendulum-v1"), {"runs": runs})
    paths = {claim_folder(config) for _ in range(5)}
    assert len(paths) == 5


def test_an_error_while_an_environment_is_closed_is_only_logged(runs: str) -> None:
    run = spreeze.train(fakes.UnclosableEnv, runs=runs, steps="2000", **SMALL)
    assert run.summary["state"] == "finished"
    assert "does not want to be closed" in (run.path / "logs" / "sampler-0.log").read_text()
    command = ["sleep", fakes.UnclosableEnv.seconds]
    programs = [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == command]
    assert not [p for p in programs if p.status() != psutil.STATUS_ZOMBIE], "it went with the run"


@pytest.mark.exhaustive
def test_the_pipeline_is_measured_against_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spreeze.bench.commands import main

    monkeypatch.setattr(
        "spreeze.bench.pipeline.compile_and_wait", lambda _: None
    )  # uncompiled is enough here
    monkeypatch.setattr("spreeze.bench.pipeline.WARM_S", 0.5)
    monkeypatch.setattr("spreeze.bench.pipeline.NUM_TURNS", 2)
    file = tmp_path / "out.json"
    arguments = ["Pendulum-v1", "--seconds", "1", "--device", "cpu", "--json", str(file)]
    assert main(["pipeline", *arguments], 0.0) == 0
    facts = json.loads(file.read_text())
    for name in ("sample", "update"):
        assert facts[f"{name}_hz"] > 0
        ratio = facts[f"{name}_hz"] / facts[f"{name}_alone_hz"]
        assert facts[f"{name}_ratio"] == pytest.approx(ratio)


def test_the_learner_has_its_own_cores(runs: str) -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("needs two cores")
    found: dict[str, set[int]] = {}

    def look(snap: Snapshot, run: RunDir, config: Config) -> None:
        """Once updates run, note which process may use which cores, and stop."""
        if snap.updates > 0 and not found:
            for name, pid in RunDir(run.path).read("status")["pids"].items():
                found[name] = os.sched_getaffinity(pid)
            signal.raise_signal(signal.SIGINT)

    knobs = {"runs": runs, "time": "60s", "cores": "separate", "learner.threads": 1, **SMALL}
    launch(config_with(default_config(env="Pendulum-v1"), knobs), "Pendulum-v1", look)
    assert found["learner-0"] == {cores[0]}
    assert found["sampler-0"] == found["evaluator-0"] == set(cores[1:])
    assert os.sched_getaffinity(0) == set(cores), "the caller's own cores are not touched"


def test_a_run_without_a_policy_is_not_offered_for_evaluation(tmp_path: Path) -> None:
    from spreeze.cli.commands.train import report
    from spreeze.run.supervisor import Run

    (tmp_path / "checkpoints").mkdir()
    names = ("env_steps", "updates", "sample_hz", "update_hz", "before_training_s")
    counts = dict.fromkeys(names, 0)
    returns = {"best_return": None, "final_return": None}
    summary = {**counts, **returns, "reason": "stopped", "wall_s": 0.5, "update_form": "plain"}
    run = Run(tmp_path, {**summary, "time_to_target_s": None, "out_of_memory": None})
    config = default_config(env="Pendulum-v1")
    assert "Next:" not in report(run, config)
    few = dataclasses.replace(run, summary={**run.summary, "reason": "steps"})
    assert "there was no update: nothing was learned, after 0.5 s:" in report(few, config)
    (tmp_path / "checkpoints" / "4").mkdir()
    assert "Next:" in report(run, config)
    own = dataclasses.replace(config, env="my.module:Mine", runs="my runs")
    assert f"eval {tmp_path.name} --runs 'my runs' --env my.module:Mine" in report(run, own)


@pytest.mark.parametrize(
    ("knobs", "changed", "tip"),
    [
        ({}, {}, "tune Pendulum-v1 --compile\n"),
        ({"algo.lr": 1e-4}, {}, "tune Pendulum-v1 --compile\n"),
        ({"algo": "td3", "device": "cuda"}, {}, "--compile --algo td3 --device cuda\n"),
        ({}, {"update_form": "compiled"}, None),
        ({}, {"update_form": "refused"}, None),
        ({}, {"update_form": "plain"}, None),
        ({"algo.hidden": (32, 32)}, {}, None),
        ({"learner.batch_size": 64}, {}, None),
    ],
)
def test_a_run_that_ended_before_its_fastest_form_was_compiled_says_how_to_get_it(
    tmp_path: Path,
    knobs: dict[str, Any],
    changed: dict[str, Any],
    tip: str | None,
) -> None:
    from spreeze.cli.commands.train import report
    from spreeze.run.supervisor import Run

    (tmp_path / "checkpoints").mkdir()
    names = ("env_steps", "updates", "sample_hz", "update_hz", "wall_s", "before_training_s")
    counts = dict.fromkeys(names, 9)
    unknown = ("best_return", "final_return", "time_to_target_s", "out_of_memory")
    summary = {
        **counts,
        **dict.fromkeys(unknown),
        "reason": "time",
        "update_form": "fused",
        **changed,
    }
    algo = knobs.pop("algo", "auto")
    config = config_with(default_config(algo, "Pendulum-v1"), knobs)
    said = report(Run(tmp_path, summary), config)
    assert (tip in said) if tip else ("Tip:" not in said), said
