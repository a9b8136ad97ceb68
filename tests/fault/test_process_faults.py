"""Processes that are interrupted, are killed or raise: what holds after each of these ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from spreeze.run.processes import forkserver
from spreeze.run.processes.servers import Server
from user_runs import gone_within, learning, read, still_there, training, wait_for

ALONE = ("--no-dashboard", "--learner.no-compile")
"""Only the roles: tests that do not need the rest are faster without it."""


@pytest.mark.fault("F12")
def test_ctrl_c_stops_cleanly(tmp_path: Path) -> None:
    with training(tmp_path, "Pendulum-v1") as process:
        pids = learning(tmp_path)
        roles = {"learner-0", "sampler-0", "evaluator-0", "visualizer-0"}
        assert set(pids) == {"supervisor", "dashboard", *roles}
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=15)
        assert process.returncode == 130, err
    assert "stopped as asked" in out
    summary = read(tmp_path, "summary")
    assert (summary["state"], summary["reason"]) == ("interrupted", "stopped")
    assert (tmp_path / "runs" / "r" / "checkpoints" / "last" / "train.safetensors").exists()
    assert not still_there(pids)


def test_a_fork_server_whose_run_is_gone_before_it_is_ready_says_nothing() -> None:
    """As after a wrong flag: the command ends while the server is still importing."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "spreeze.run.processes.forkserver"]
    server = subprocess.Popen(
        [*command, str(theirs.fileno()), str(os.getpid())],
        pass_fds=[theirs.fileno()],
        stderr=subprocess.PIPE,
        process_group=0,
    )
    theirs.close()
    ours.close()
    _, said = server.communicate(timeout=30)
    assert said == b""


def test_ctrl_c_reaches_the_whole_foreground_group_as_in_a_terminal(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "spreeze", "train", "Pendulum-v1", "--name", "r"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0
    )
    try:
        pids = learning(tmp_path)
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=15)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130
    assert (tmp_path / "runs" / "r" / "checkpoints" / "last" / "train.safetensors").exists()
    assert not still_there(pids)


@pytest.mark.fault("F12")
def test_a_second_ctrl_c_ends_it_at_once(tmp_path: Path) -> None:
    with training(tmp_path, "Pendulum-v1") as process:
        pids = learning(tmp_path)
        os.kill(pids["learner-0"], signal.SIGSTOP)  # so that the clean stop cannot finish
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=5)
        assert process.returncode == 130
    assert not still_there(pids)


@pytest.mark.fault("F11")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_all_processes_is_a_request_to_stop(tmp_path: Path, number: int) -> None:
    with training(tmp_path, "Pendulum-v1") as process:
        pids = learning(tmp_path)
        for pid in pids.values():  # as a service manager does
            os.kill(pid, number)
        process.communicate(timeout=15)
        assert process.returncode == 0
    assert read(tmp_path, "summary")["reason"] == "stopped"
    assert (tmp_path / "runs" / "r" / "checkpoints" / "last" / "train.safetensors").exists()
    assert not still_there(pids)


@pytest.mark.fault("F07")
@pytest.mark.fault("F47")
@pytest.mark.parametrize("env", ["ParentEnv", "DetachedEnv"])
def test_what_an_environment_has_started_dies_with_a_killed_supervisor(
    tmp_path: Path, env: str
) -> None:
    with training(tmp_path, f"fakes:{env}", *ALONE) as process:
        learning(tmp_path)
        family = {str(c.pid): c.pid for c in psutil.Process(process.pid).children(recursive=True)}
        assert [pid for pid in family.values() if psutil.Process(pid).name() == "sleep"]
        process.kill()
        process.communicate()
        gone_within(family, 2.0)


@pytest.mark.fault("F47")
def test_what_an_environment_has_started_ends_with_a_killed_sampler_and_with_the_run(
    tmp_path: Path,
) -> None:
    with training(
        tmp_path, "fakes:DetachedEnv", "--sampler.envs-per-process", "1", *ALONE
    ) as process:
        pids = learning(tmp_path)

        def programs(role: str) -> dict[str, int]:
            family = psutil.Process(read(tmp_path, "status")["pids"][role]).children(recursive=True)
            return {str(p.pid): p.pid for p in family if p.name() == "sleep"}

        evaluators = wait_for(lambda: programs("evaluator-0"))
        before = programs("sampler-0")
        os.kill(pids["sampler-0"], signal.SIGKILL)
        gone_within(before, 5.0)
        wait_for(lambda: read(tmp_path, "status")["pids"]["sampler-0"] != pids["sampler-0"])
        after = wait_for(lambda: programs("sampler-0"))
        assert len(after) == len(before)
        assert sorted(still_there(evaluators)) == ["sleep 987654 (sleeping)"] * len(evaluators)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=15)
        gone_within(before | after | evaluators, 2.0)


def start_a_program(_: bytes, report_fd: int) -> int:
    """What an environment may do in a role's process."""
    program = subprocess.Popen(["sleep", "987654"])
    os.write(report_fd, str(program.pid).encode())
    time.sleep(60)
    return 0


@pytest.mark.fault("F07")
@pytest.mark.fault("F47")
def test_a_fork_server_that_is_left_alone_takes_everything_with_it() -> None:
    """When a supervisor is killed, its socket closes a moment before the kernel signals its death."""
    server = Server(())
    reading, writing = os.pipe()
    request = forkserver.Request(f"{__name__}:start_a_program", b"", sys.path, {})
    with open(os.devnull, "w") as nowhere:
        forkserver.send(server.socket, request, (writing, nowhere.fileno()))
    os.close(writing)
    try:
        family = {"program": int(os.read(reading, 100)), "server": server.process.pid}
        server.socket.close()
        gone_within(family, 2.0)
    finally:
        os.close(reading)
        server.close()


@pytest.mark.fault("F07")
@pytest.mark.fault("F08")
def test_children_die_with_a_killed_supervisor(tmp_path: Path) -> None:
    with training(tmp_path, "Pendulum-v1", "--evaluator.processes", "3") as process:
        pids = learning(tmp_path)
        family = {str(c.pid): c.pid for c in psutil.Process(process.pid).children(recursive=True)}
        assert len(family) >= 6, "fork servers, roles and the evaluator's workers"
        process.kill()
        process.communicate()
        gone_within(pids | family, 2.0)
    listed = subprocess.run(
        [sys.executable, "-m", "spreeze", "runs", "--json", "-"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(listed.stdout)[0]["state"] == "killed"


@pytest.mark.parametrize("role", ["sampler-0", "learner-0"])
def test_children_die_with_a_killed_fork_server_and_the_run_fails_with_a_cause(
    tmp_path: Path, role: str
) -> None:
    with training(tmp_path, "Pendulum-v1", *ALONE) as process:
        pids = learning(tmp_path)
        server = psutil.Process(pids[role]).parent()
        assert server is not None
        assert server.ppid() == process.pid
        server.kill()
        _, err = process.communicate(timeout=20)
        assert process.returncode == 1
        assert "fork server" in err
    wait_for(lambda: not still_there(pids))
    assert read(tmp_path, "summary")["state"] == "failed"


@pytest.mark.fault("F01")
@pytest.mark.fault("F10")
@pytest.mark.parametrize("role", ["sampler-0", "evaluator-0"])
def test_a_killed_role_is_started_again_and_training_continues(tmp_path: Path, role: str) -> None:
    with training(tmp_path, "Pendulum-v1", *ALONE) as process:
        pids = learning(tmp_path)
        for _ in range(2):
            pid = read(tmp_path, "status")["pids"][role]
            os.kill(pid, signal.SIGKILL)
            wait_for(lambda old=pid: read(tmp_path, "status")["pids"][role] != old)  # type: ignore[misc]
        before = read(tmp_path, "status")["progress"]
        wait_for(lambda: read(tmp_path, "status")["progress"]["updates"] > before["updates"] + 100)
        wait_for(
            lambda: read(tmp_path, "status")["progress"]["env_steps"] > before["env_steps"] + 1000
        )
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=15)
    assert read(tmp_path, "summary")["restarts"] == 2
    assert not still_there(pids)


@pytest.mark.fault("F01")
@pytest.mark.fault("F02")
def test_samplers_killed_milliseconds_apart_all_come_back(
    tmp_path: Path, recovered: Callable[[float], None]
) -> None:
    samplers = [f"sampler-{i}" for i in range(4)]
    knobs = ("--sampler.processes", "4", "--evaluator.every-s", "60", *ALONE)
    with training(tmp_path, "Pendulum-v1", *knobs) as process:
        learning(tmp_path)
        slowest_s = 0.0
        for gap_s in (0.0, 0.003, 0.01):
            before = wait_for(
                lambda: (pids := read(tmp_path, "status")["pids"]).keys() >= set(samplers) and pids
            )
            for name in samplers:
                os.kill(before[name], signal.SIGKILL)
                time.sleep(gap_s)
            killed_s = time.monotonic()
            wait_for(lambda old=before: all(_pids(tmp_path)[n] != old[n] for n in samplers))  # type: ignore[misc]
            slowest_s = max(slowest_s, time.monotonic() - killed_s)
        steps = read(tmp_path, "status")["progress"]["env_steps"]
        wait_for(lambda: read(tmp_path, "status")["progress"]["env_steps"] > steps + 1000)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=15)
    recovered(slowest_s)
    summary = read(tmp_path, "summary")
    assert (summary["restarts"], summary["faults"]["killed"]) == (12, 12)


def _pids(folder: Path) -> dict[str, int]:
    return read(folder, "status")["pids"]  # type: ignore[no-any-return]


@pytest.mark.fault("F04")
def test_a_run_goes_on_without_a_sampler_whose_environment_is_broken(tmp_path: Path) -> None:
    with training(
        tmp_path, "fakes:broken_in_one_sampler", "--sampler.processes", "3", *ALONE
    ) as process:
        (warning,) = wait_for(lambda: read(tmp_path, "status")["open_warnings"])
        assert warning == (
            "sampler-1 was given up: three robots in a row fell over; 2 of 3 samplers go on"
        )
        learning(tmp_path)
        assert "Traceback of the robot" in "".join(read(tmp_path, "status")["warnings"])
        assert "sampler-1" not in _pids(tmp_path)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=15)
    log = tmp_path / "runs" / "r" / "logs" / "sampler-1.log"
    assert "Traceback of the robot" in log.read_text()
    summary = read(tmp_path, "summary")
    assert (summary["state"], summary["restarts"]) == ("interrupted", 0)
    assert summary["faults"] == {"raised": 1, "given_up": 1}


@pytest.mark.fault("F51")
@pytest.mark.parametrize("what", ["role.joined:kill", "role.joined:raise", "role.joined:delay"])
def test_a_role_that_fails_at_its_start_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setenv("SPREEZE_FAULTS", what)
    monkeypatch.setenv("SPREEZE_FAULTS_FOLDER", str(tmp_path))
    with training(tmp_path, "Pendulum-v1", *ALONE) as process:
        learning(tmp_path)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=15)
    assert (tmp_path / what).exists()
    kind = {"kill": {"killed": 1}, "raise": {"raised": 1}, "delay": {}}[what.partition(":")[2]]
    summary = read(tmp_path, "summary")
    assert (summary["state"], summary["faults"]) == ("interrupted", kind)


@pytest.mark.fault("F07")
@pytest.mark.parametrize("point", ["supervisor.started", "supervisor.exited", "forkserver.forked"])
def test_nothing_is_left_when_a_run_is_killed_while_it_starts_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    monkeypatch.setenv("SPREEZE_FAULTS", f"{point}:kill,role.joined:kill")
    monkeypatch.setenv("SPREEZE_FAULTS_FOLDER", str(tmp_path))
    with training(tmp_path, "Pendulum-v1", *ALONE) as process:
        process.communicate(timeout=30)
        by_server = point == "forkserver.forked"
        assert process.returncode == (1 if by_server else -signal.SIGKILL)
    gone_within({str(p.pid): p.pid for p in _working_in(tmp_path)}, 5.0)
    assert not _working_in(tmp_path)


def _working_in(folder: Path) -> list[psutil.Process]:
    found = psutil.process_iter(["cwd", "status"])
    return [
        p
        for p in found
        if p.info["cwd"] == str(folder) and p.info["status"] != psutil.STATUS_ZOMBIE
    ]


@pytest.mark.fault("F71")
def test_when_memory_runs_out_samplers_are_ended_first_and_the_learner_last(tmp_path: Path) -> None:
    with training(tmp_path, "Pendulum-v1") as process:
        pids = learning(tmp_path)
        scores = {name: _oom_score(pid) for name, pid in pids.items()}
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=15)
    order = ["sampler-0", "visualizer-0", "dashboard", "evaluator-0", "learner-0"]
    assert sorted(order, key=lambda name: -scores[name]) == order
    assert len({scores[name] for name in order}) == len(order)
    assert scores["learner-0"] == scores["supervisor"] == _oom_score(os.getpid())


def _oom_score(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


@pytest.mark.fault("F10")
def test_an_evaluator_whose_worker_is_killed_is_started_again(tmp_path: Path) -> None:
    with training(tmp_path, "Pendulum-v1", "--evaluator.processes", "2", *ALONE) as process:
        pids = learning(tmp_path)
        old = pids["evaluator-0"]
        (helper,) = psutil.Process(old).children()
        helper.kill()
        new = wait_for(
            lambda: (pid := read(tmp_path, "status")["pids"]["evaluator-0"]) != old and pid
        )
        lines = (tmp_path / "runs" / "r" / "metrics" / "evaluator-0.jsonl").read_text
        before = len(lines().splitlines())
        wait_for(lambda: len(lines().splitlines()) > before + 2)
        helpers = {str(child.pid): child.pid for child in psutil.Process(new).children()}
        assert len(helpers) == 1
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=15)
    assert read(tmp_path, "summary")["restarts"] == 1
    assert not still_there(pids | helpers)


@pytest.mark.fault("F09")
def test_a_killed_learner_continues_from_its_last_checkpoint(tmp_path: Path) -> None:
    knobs = ("--checkpoint.every-s", "1", "--learner.batch-size", "128")
    with training(tmp_path, "Pendulum-v1", *knobs, *ALONE) as process:
        pids = learning(tmp_path)
        last = tmp_path / "runs" / "r" / "checkpoints" / "last"
        wait_for(last.exists)

        def newest() -> int:
            return int(last.resolve().name.partition("-")[0])

        saved = newest()
        time.sleep(0.8)  # so that there is something to lose
        os.kill(pids["learner-0"], signal.SIGKILL)
        wait_for(lambda: read(tmp_path, "status")["pids"]["learner-0"] != pids["learner-0"])
        wait_for(lambda: newest() > saved + 200)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=15)
    summary = read(tmp_path, "summary")
    assert summary["restarts"] == 1
    frames_hz = summary["update_hz"] * summary["batch_size"]
    assert summary["update_frame_hz"] == pytest.approx(frames_hz, rel=0.01), (
        "updates lost with the learner count in neither rate"
    )


@pytest.mark.fault("F09")
def test_a_learner_killed_before_its_first_checkpoint_learns_again(
    tmp_path: Path, recovered: Callable[[float], None]
) -> None:
    with training(tmp_path, "Pendulum-v1", *ALONE) as process:
        pids = learning(tmp_path)
        assert not (tmp_path / "runs" / "r" / "checkpoints" / "last").exists()
        before = wait_for(
            lambda: (p := read(tmp_path, "status")["progress"])["updates"] > 2500 and p
        )
        os.kill(pids["learner-0"], signal.SIGKILL)
        killed_s = time.monotonic()
        lowest = wait_for(
            lambda: (
                _pids(tmp_path)["learner-0"] != pids["learner-0"]
                and 0 < (n := read(tmp_path, "status")["progress"]["updates"]) < before["updates"]
                and n
            )
        )
        recovered(time.monotonic() - killed_s)
        assert lowest < before["updates"], "the new learner counts from zero"
        assert read(tmp_path, "status")["progress"]["env_steps"] >= before["env_steps"]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=15)
    summary = read(tmp_path, "summary")
    assert (summary["state"], summary["restarts"]) == ("interrupted", 1)
    assert summary["update_hz"] >= 0
    assert summary["update_frame_hz"] >= 0
    assert (tmp_path / "runs" / "r" / "checkpoints" / "last" / "train.safetensors").exists()


@pytest.mark.fault("F03")
def test_an_environment_that_kills_its_process_again_and_again_ends_the_run(tmp_path: Path) -> None:
    import fakes
    import spreeze

    with pytest.raises(
        spreeze.RunFailed,
        match=r"sampler-0 was given up: it was ended \d+ times, last by signal 9.*sampler-0\.log",
    ):
        spreeze.train(fakes.killing_env, runs=str(tmp_path), **{"limits.restarts_per_minute": 3})
    (run,) = (folder for folder in tmp_path.iterdir())
    summary = json.loads((run / "summary.json").read_text())
    assert summary["faults"]["given_up"] == 1
    assert summary["faults"]["killed"] >= 4
    assert "sampler-0 was given up" in summary["stop_reason"]


@pytest.mark.fault("F03")
def test_an_environment_that_raises_shows_its_own_traceback(tmp_path: Path) -> None:
    with training(tmp_path, "fakes:raising_env", *ALONE) as process:
        _, err = process.communicate(timeout=30)
        assert process.returncode == 1
    assert "RuntimeError: the arm fell off" in err
    assert "fakes.py" in err
    assert "runs/r/logs/sampler-0.log" in err
    assert "the arm fell off" in (tmp_path / "runs" / "r" / "logs" / "sampler-0.log").read_text()
    summary = read(tmp_path, "summary")
    assert (summary["state"], summary["reason"]) == ("failed", "error")


def test_an_environment_that_exits_shows_where(tmp_path: Path) -> None:
    with training(tmp_path, "fakes:exiting_env", *ALONE) as process:
        _, err = process.communicate(timeout=30)
        assert process.returncode == 1
    assert "SystemExit: enough" in err
    assert "fakes.py" in err


@pytest.mark.fault("F03")
@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("broken_env", "ValueError: no robot is connected"),
        ("odd_error_env", "OddError: elbow cannot turn to 400.0"),
    ],
)
def test_an_environment_that_cannot_be_made_shows_its_own_traceback(
    tmp_path: Path, env: str, message: str
) -> None:
    with training(tmp_path, f"fakes:{env}", *ALONE) as process:
        _, err = process.communicate(timeout=30)
        assert process.returncode == 1
    assert message in err
    assert "fakes.py" in err
    log = tmp_path / "runs" / "r" / "logs" / "probe.log"
    assert str(log) in err
    assert message in log.read_text()


@pytest.mark.fault("F09")
def test_a_learner_killed_in_its_last_save_fails_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = tmp_path / "faults"
    marks.mkdir()
    monkeypatch.setenv("SPREEZE_FAULTS", "learner.saving:kill")
    monkeypatch.setenv("SPREEZE_FAULTS_FOLDER", str(marks))
    with training(tmp_path, "Pendulum-v1", "--time", "4s", *ALONE) as process:
        _, err = process.communicate(timeout=30)
        assert process.returncode == 1
    assert "the learner was ended by signal 9 before it could save a last checkpoint" in err
    summary = read(tmp_path, "summary")
    assert (summary["state"], summary["faults"]["killed"]) == ("failed", 1)
