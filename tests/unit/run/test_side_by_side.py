"""How many runs train at a time."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from functools import partial

import pytest

from spreeze.machine.facts import Gpu, Machine
from spreeze.run.side_by_side import RunCommand, SideBySide, runs_at_once, share_cores
from spreeze.settings.config import Config

GIB = 1 << 30
GPU, SMALL_GPU = Gpu("big", 80 * GIB), Gpu("small", 12 * GIB)


@pytest.mark.parametrize(
    ("config", "machine", "runs", "reason"),
    [
        (Config(), Machine(2, 64 * GIB, ()), 1, "2 cores, 4 for each"),
        (Config(), Machine(16, 64 * GIB, ()), 4, "16 cores"),
        (Config(), Machine(64, 128 * GIB, ()), 5, "64 cores"),
        (Config(), Machine(64, 20 * GIB, ()), 2, "20 GiB of free memory, 8 GiB for each"),
        (Config(serial=True), Machine(3, 64 * GIB, ()), 3, "3 cores, 1 for each"),
        (Config(), Machine(64, 256 * GIB, (GPU,)), 5, "GPU memory"),
        (Config(), Machine(64, 256 * GIB, (GPU, SMALL_GPU)), 1, "12 GiB of free GPU memory"),
        (Config(device="cpu"), Machine(64, 256 * GIB, (SMALL_GPU,)), 5, "64 cores"),
    ],
)
def test_the_scarcest_resource_decides_and_is_named(
    config: Config, machine: Machine, runs: int, reason: str
) -> None:
    at_once, why = runs_at_once(config, 5, machine)
    assert at_once == runs
    assert reason in why


def test_each_run_has_cores_of_its_own() -> None:
    assert share_cores([0, 2, 4, 6, 8], 2) == [[0, 2], [4, 6, 8]]
    assert share_cores([3, 5], 2) == [[3], [5]]


def test_the_next_command_is_asked_for_when_a_run_has_ended() -> None:
    events: list[object] = []

    def commands() -> Iterator[RunCommand]:
        for label, month in (("good", "1"), ("bad", "13")):
            events.append(f"asked for {label}")
            yield RunCommand(label, ["calendar", "2024", month])

    runs = SideBySide(
        partial(next, commands(), None),
        1,
        lambda label, line: events.append((label, line.strip())),
    )
    for ended in runs.train():
        events.append((ended.command.label, ended.code != 0))
    assert ("good", "January 2024") in events
    order = [x for x in events if x in ("asked for bad", ("good", False), ("bad", True))]
    assert order == [("good", False), "asked for bad", ("bad", True)]
    assert runs.signal is None


def test_a_run_is_asked_to_stop_while_the_others_go_on() -> None:
    long = [
        "timeit",
        "-n",
        "1",
        "-r",
        "1",
        "import time; print('here', flush=True); time.sleep(60)",
    ]
    commands = iter([RunCommand("long", long), RunCommand("short", ["calendar", "2024", "1"])])
    said: list[str] = []

    def look() -> None:
        if "here" in said:
            runs.stop("long")

    runs = SideBySide(partial(next, commands, None), 1, lambda _, line: said.append(line), look)
    ended = {one.command.label: one.code for one in runs.train()}
    assert ended == {"long": -signal.SIGTERM, "short": 0}
    assert runs.signal is None
