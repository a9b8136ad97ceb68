"""Children of real fork servers: none is forgotten, none leaves programs behind, and calls say what went wrong."""

from __future__ import annotations

import errno
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator

import cloudpickle
import psutil
import pytest

from pool_children import end_at_once, fork_only, sleep, start_programs, start_short_programs
from spreeze.errors import EnvBroken
from spreeze.run.processes import forkserver
from spreeze.run.processes.call import (
    KEPT_OUTPUT,
    MOST_OUTPUT,
    CallFailed,
    CallKilled,
    CallTooLate,
    call,
)
from spreeze.run.processes.call_result import Raised
from spreeze.run.processes.pool import Child, Processes, StartFailed
from spreeze.run.processes.servers import ForkServers, Server
from user_runs import gone_within, still_there, wait_for


@pytest.fixture
def processes() -> Iterator[Processes]:
    server = Server(())
    processes = Processes(ForkServers(server, server))
    yield processes
    processes.close()


def start(processes: Processes, function: Callable[..., int], name: str = "x") -> Child:
    """Run a function of `pool_children` in a child."""
    with open(os.devnull, "w") as nowhere:
        return processes.start(
            name, f"{function.__module__}:{function.__name__}", b"", nowhere.fileno()
        )


def pids_of(processes: Processes, child: Child, number: int) -> dict[str, int]:
    """The processes that a child says it has started."""

    def pids() -> list[bytes]:
        processes.poll()
        return child.report.split() if child.report.count(b" ") == number else []

    return {pid.decode(): int(pid) for pid in wait_for(pids)}


def programs_of(processes: Processes, child: Child) -> dict[str, int]:
    """The programs that a child of `start_programs` has started."""
    found = pids_of(processes, child, 2)
    assert all(psutil.Process(pid).name() == "sleep" for pid in found.values())
    return found


@pytest.mark.fault("F47")
def test_processes_that_were_only_forked_end_with_their_role_and_with_no_other(
    processes: Processes,
) -> None:
    other = start(processes, fork_only)
    kept = pids_of(processes, other, 4)
    for _ in range(3):
        child = start(processes, fork_only)
        forked = pids_of(processes, child, 4)
        child.kill()
        gone_within(forked | {"child": child.pid}, 5)
        assert len(still_there(kept)) == 4
    other.kill()
    gone_within(kept, 5)


@pytest.mark.fault("F02")
def test_a_child_that_ends_while_others_are_started_is_not_forgotten(processes: Processes) -> None:
    children = [start(processes, end_at_once) for _ in range(20)]
    first = start(processes, sleep)
    for child in children:
        gone_within({"child": child.pid}, 10)
    second = start(processes, sleep)  # receives the news about those that have ended
    ended: list[Child] = []
    wait_for(lambda: ended.extend(processes.poll(0.05)) or len(ended) == 20)
    assert {child.pid for child in ended} == {child.pid for child in children}
    assert {child.exit_code for child in ended} == {3}
    assert first.exit_code is second.exit_code is None


@pytest.mark.fault("F47")
def test_programs_end_with_the_child_that_started_them_and_with_no_other(
    processes: Processes,
) -> None:
    other = start(processes, start_programs)
    kept = programs_of(processes, other)
    for _ in range(3):
        child = start(processes, start_programs)
        programs = programs_of(processes, child)
        child.kill()
        gone_within(programs, 5)
    assert all(psutil.pid_exists(pid) for pid in kept.values())
    processes.close()
    gone_within(kept, 5)


@pytest.mark.fault("F47")
@pytest.mark.fault("F07")
def test_programs_end_with_a_run_that_is_gone(processes: Processes) -> None:
    programs = programs_of(processes, start(processes, start_programs))
    for server in processes._servers.all:
        server.socket.close()  # as the kernel does when it ends the supervisor
    gone_within(programs, 5)


@pytest.mark.fault("F47")
def test_programs_that_end_alone_leave_no_zombies_and_others_can_be_waited_for(
    processes: Processes,
) -> None:
    child = start(processes, start_short_programs)

    def reports(number: int) -> list[bytes]:
        processes.poll()
        return child.report.split(b";") if child.report.count(b";") == number else []

    pids = [int(pid) for pid in wait_for(lambda: reports(1))[0].split()]
    assert len(pids) == 10
    wait_for(lambda: not any(psutil.pid_exists(pid) for pid in pids), 10)
    assert wait_for(lambda: reports(2))[1] == b"7"
    assert child.exit_code is None


def large(size: int) -> bytes:
    return bytes(size)


def kill_itself(number: int = signal.SIGKILL) -> None:
    os.kill(os.getpid(), number)


def raises() -> None:
    raise ValueError("no robot is connected")


def test_an_answer_larger_than_the_pipe_arrives_at_once(processes: Processes) -> None:
    began = time.monotonic()
    assert len(call(processes, large, 5_000_000, limit_s=60)) == 5_000_000
    assert time.monotonic() - began < 50, "it did not wait for its limit"


def test_a_call_that_fails_says_how(processes: Processes) -> None:
    with pytest.raises(CallFailed, match="no robot") as failed:
        call(processes, raises)
    assert failed.value.cause == "ValueError: no robot is connected"
    with pytest.raises(CallTooLate, match=r"not return within 0 s"):
        call(processes, time.sleep, 600, limit_s=0.3)
    with pytest.raises(CallKilled, match="signal 9: probably there was not enough memory"):
        call(processes, kill_itself)
    with pytest.raises(CallFailed, match="ended by signal 11"):
        call(processes, kill_itself, signal.SIGSEGV)
    assert processes.poll() == [], "nobody else hears of these children"


@pytest.mark.parametrize(
    ("number", "message"),
    [(errno.EAGAIN, r"too many processes.*ulimit -u"), (errno.ENOMEM, "not enough memory")],
)
def test_a_process_that_the_system_refuses_is_said_to_be_refused(
    processes: Processes, monkeypatch: pytest.MonkeyPatch, number: int, message: str
) -> None:
    def refuse() -> int:
        raise OSError(number, os.strerror(number))

    (server,) = processes._servers.all
    wait_for(lambda: processes.poll(0.05) or processes.ready(False))
    real, (ours, theirs) = server.socket, socket.socketpair()
    monkeypatch.setattr(os, "fork", refuse)
    with ours, theirs:
        request = forkserver.Request("module:function", b"", [], {})
        forkserver._fork(theirs, {}, "1.0", request, [])
        server.socket = ours
        with pytest.raises(StartFailed, match=message):
            start(processes, sleep)
        server.socket = real
    monkeypatch.undo()
    assert call(processes, large, 3) == bytes(3), "the next one may start"


def test_what_a_process_reports_is_short_and_has_a_type() -> None:
    error = ValueError("first line\nsecond line")
    raised = Raised.from_exception(error, "x" * 1_000_000)
    assert raised.cause == "ValueError: first line"
    assert len(raised.traceback) < 60_000
    assert not raised.is_final
    broken = Raised.from_exception(EnvBroken("too many errors", "their traceback"), "ours")
    assert broken == Raised("their traceback", "too many errors", is_final=True)


def test_half_a_report_is_no_report() -> None:
    child = Child("x", 1, -1)
    assert child.error is None
    child.report = cloudpickle.dumps(Raised("trace", "cause"))
    assert child.error == Raised("trace", "cause")
    child.report = child.report[:-5]
    assert child.error is None


def print_much(num_bytes: int) -> None:
    for _ in range(num_bytes >> 20):
        os.write(1, b"x" * (1 << 20))
        time.sleep(0.002)
    os.write(1, b"the end")
    os._exit(3)


@pytest.mark.fault("F48")
def test_of_what_a_call_prints_without_end_the_end_is_kept(processes: Processes) -> None:
    with pytest.raises(CallFailed, match="exit code 3") as failed:
        call(processes, print_much, 3 * MOST_OUTPUT)
    assert "the end" in str(failed.value)
    assert len(str(failed.value)) < KEPT_OUTPUT + 1000
