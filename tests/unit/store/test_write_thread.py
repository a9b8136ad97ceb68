"""A thread that writes: in order, for a disk that may hang, and nobody waits for it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from spreeze.store.write_thread import MAX_BYTES, MAX_WRITES, WriteThread
from user_runs import wait_for


class Disk:
    """What was written, to a disk that a test can stop."""

    def __init__(self) -> None:
        self.written: list[int] = []
        self.lost: list[int] = []
        self.answers = threading.Event()
        self.answers.set()

    def write(self, number: int) -> None:
        self.answers.wait()
        self.written.append(number)


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def thread(disk: Disk) -> Iterator[WriteThread]:
    thread = WriteThread("writes", lambda: disk.lost.append(1))
    thread.start()
    yield thread
    disk.answers.set()
    thread.close(60)


def test_writes_are_made_in_order_and_all_of_them_before_the_end(
    thread: WriteThread, disk: Disk
) -> None:
    for number in range(200):
        thread.hand_over(lambda number=number: disk.write(number))  # type: ignore[misc]
    thread.close(60)
    assert not thread.is_alive()
    assert disk.written == list(range(200))
    assert disk.lost == []


def test_a_write_that_somebody_waits_for_is_made_when_the_call_returns(
    thread: WriteThread, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spreeze.store.write_thread.PATIENCE_S", 60.0)
    for number in range(20):
        thread.write(lambda number=number: disk.write(number), 10)  # type: ignore[misc]
        assert disk.written[-1] == number


@pytest.mark.fault("F65")
def test_while_the_disk_hangs_nobody_waits_and_what_is_too_much_is_counted(
    thread: WriteThread, disk: Disk
) -> None:
    disk.answers.clear()
    for number in range(MAX_WRITES + 8):  # one of them is under way
        thread.hand_over(lambda number=number: disk.write(number))  # type: ignore[misc]
        if number == 0:
            wait_for(lambda: not thread._waiting)
    assert len(disk.lost) == 7
    thread.close(0.0)
    assert thread.is_alive(), "the end does not wait either"
    disk.answers.set()
    thread.join(30)
    assert disk.written == list(range(MAX_WRITES + 1))


@pytest.mark.fault("F65")
def test_what_waits_is_bounded_in_bytes(
    thread: WriteThread, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spreeze.store.write_thread.PATIENCE_S", 0.0)
    disk.answers.clear()
    thread.write(lambda: disk.write(0), 1)
    wait_for(lambda: not thread._waiting)
    for number in range(1, 5):
        thread.write(lambda number=number: disk.write(number), MAX_BYTES // 2)  # type: ignore[misc]
    assert len(disk.lost) == 2
    disk.answers.set()
    wait_for(lambda: disk.written == [0, 1, 2])
    wait_for(lambda: not thread._hangs)
    thread.write(lambda: disk.write(5), 4 * MAX_BYTES)
    wait_for(lambda: disk.written == [0, 1, 2, 5])


def test_a_write_that_fails_is_counted_and_the_next_one_is_made(
    thread: WriteThread, disk: Disk
) -> None:
    def fail() -> None:
        raise OSError("No space left on device")

    thread.hand_over(fail)
    thread.hand_over(lambda: disk.write(1))
    thread.close(60)
    assert (disk.lost, disk.written) == ([1], [1])


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_process_has_no_thread_and_writes_itself(thread: WriteThread) -> None:
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        thread.write(lambda: os.write(writing, b"forked") and None, 6)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.read(reading, 100) == b"forked"
    assert status == 0
    os.close(reading)
    os.close(writing)


def test_a_thread_that_has_ended_leaves_the_write_to_its_caller(
    thread: WriteThread, disk: Disk
) -> None:
    thread.close(60)
    thread.write(lambda: disk.write(1), 1)
    assert disk.written == [1]
