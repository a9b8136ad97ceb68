"""The screen: a page on a terminal, lines elsewhere."""

from __future__ import annotations

import errno
import io
import os
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from spreeze.cli.drawing import bar, line, page, sparkline
from spreeze.cli.screen import Screen
from spreeze.run.bottleneck import Bottleneck, Limit
from spreeze.run.controller import BATCH, Change, Decision, Rates
from spreeze.run.cpu_meter import CpuUse
from spreeze.run.snapshot import Snapshot
from spreeze.run.start_up import Milestone
from spreeze.settings.defaults import config_with, default_config
from spreeze.store.rundir import RunDir
from user_runs import wait_for

ROLES = ("learner", "sampler", "evaluator", "visualizer", "dashboard", "supervisor", "tracker")


def test_a_sparkline_rises_with_its_values() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert len(sparkline(list(range(1000)), 20)) == 20
    assert sparkline([5.0], 10) == "▁"
    assert sparkline([], 10) == ""


@pytest.mark.parametrize("width", [30, 60, 80, 120, 200])
def test_the_page_fits_the_terminal(width: int, tmp_path: Path) -> None:
    config = config_with(
        default_config(env="Pendulum-v1"), {"time": "60s", "target": -200.0, "steps": "1e6"}
    )
    snap = Snapshot(
        time_s=30.0,
        env_steps=10**6,
        updates=5000,
        eval_return=-300.0,
        best_return=-250.0,
        evaluations=[(float(i), -1500.0 + 12 * i) for i in range(100)],
        cpu=CpuUse(dict.fromkeys(ROLES, 0.1), 1.1, cores=2, cpus=2),
        gpu_percent=80.0,
        bottleneck=Bottleneck(Limit.SAMPLERS, 31.2),
        compiling=True,
        decision=Decision(Rates(100.0, 1000.0, 256), (Change(BATCH, 256, 512),), 0.12, True),
        page="http://127.0.0.1:43303/?token=eYY8FF0yCj_jEO7mh2vU9A",
        warnings=["a warning " * 20] * 9,
    )
    console = Console(width=width, file=io.StringIO(), force_terminal=True)
    lines = console.render_lines(page(snap, RunDir(tmp_path), config, width))
    text = ["".join(segment.text for segment in line) for line in lines]
    assert len(lines) <= 24
    assert all(Text(line.rstrip()).cell_len <= width - len("^C") for line in text), (
        "room for Ctrl-C"
    )
    if width >= 120:
        assert "…" not in "".join(text), "nothing is cut"


@pytest.mark.parametrize(
    ("share", "drawn"), [(-1.0, "░░░░"), (0.5, "██░░"), (0.99, "████"), (7.0, "████")]
)
def test_a_bar_reads_without_colour(share: float, drawn: str) -> None:
    assert "".join(part for part, _ in bar(share, 4)) == drawn


def drawn(snap: Snapshot, folder: Path, **knobs: object) -> str:
    """The page as plain text, 100 columns wide."""
    console = Console(width=100, file=io.StringIO(), color_system=None)
    console.print(page(snap, RunDir(folder), config_with(default_config(), knobs), 100))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_page_says_of_how_many_cores_what_is_used(tmp_path: Path) -> None:
    use = CpuUse({"sampler": 0.52, "learner": 0.98, "tracker": 0.01}, 0.4, cores=2, cpus=2)
    shown = drawn(Snapshot(cpu=use), tmp_path)
    assert "1.5 of 2 cores  learner 1.0, sampler 0.5, other programs 0.4" in shown
    assert "tracker" not in shown


def test_a_start_says_what_it_waits_for(tmp_path: Path) -> None:
    snap = Snapshot(awaited=Milestone.WARM_UP, replay_rows=312, cpu=None)
    config = config_with(default_config(), {"learner.warmup_rows": 1000})
    said = "collecting the first transitions, 312 of 1,000"
    assert said in drawn(snap, tmp_path, **{"learner.warmup_rows": 1000})
    assert line(snap, config).split("starting: ")[1] == said


def test_the_page_tells_compilation_and_a_long_start(tmp_path: Path) -> None:
    assert "compiling" not in drawn(Snapshot(), tmp_path)
    assert "compiling a faster form" in drawn(Snapshot(compiling=True), tmp_path)
    assert "compiling a faster form" in line(Snapshot(compiling=True), default_config())
    snap = Snapshot(time_s=39.0, training_s=30.0)
    assert "30 s of 1:00 (start took 9 s)" in drawn(snap, tmp_path, time="60s")


def test_without_a_terminal_the_screen_is_a_line_now_and_then(tmp_path: Path) -> None:
    out = io.StringIO()
    with Screen(Console(file=out, width=80)) as screen:
        for _ in range(10):
            screen(Snapshot(time_s=3.0, env_steps=5), RunDir(tmp_path), default_config())
    assert len(out.getvalue().splitlines()) == 1
    assert "\x1b" not in out.getvalue()


@pytest.mark.parametrize(
    ("bottleneck", "device", "said"),
    [
        (Bottleneck(Limit.STARTING), "cpu", "limit: starting"),
        (Bottleneck(Limit.COLLECTING), "cpu", "limit: starting: collecting the first transitions"),
        (Bottleneck(Limit.SAMPLERS, 31.2), "cpu", "limit: samplers (the learner waits 31 %"),
        (Bottleneck(Limit.LEARNER, 42.0), "cpu", "limit: learner (the samplers wait 42 %"),
        (Bottleneck(Limit.NOBODY_WAITS), "cuda:0", "limit: learner's GPU and the samplers' cores"),
        (Bottleneck(Limit.NOBODY_WAITS), "cpu", "limit: learner's CPU and the samplers' cores"),
    ],
)
def test_a_line_says_what_limits_the_run(bottleneck: Bottleneck, device: str, said: str) -> None:
    config = config_with(default_config(), {"device": device})
    assert said in line(Snapshot(bottleneck=bottleneck), config)


@pytest.mark.parametrize(
    ("kept", "said"), [(True, "batch 256 -> 512: +12 % (kept)"), (False, "+12 % (undone)")]
)
def test_a_line_says_what_the_tuner_did_last(kept: bool, said: str) -> None:
    decision = Decision(Rates(100.0, 1000.0, 256), (Change(BATCH, 256, 512),), 0.12, kept)
    assert said in line(Snapshot(decision=decision), default_config())


def test_the_token_is_shown_on_a_terminal_only(tmp_path: Path) -> None:
    snap = Snapshot(page="http://127.0.0.1:1/?token=secret")
    out = io.StringIO()
    with Screen(Console(file=out, width=80)) as screen:
        screen(snap, RunDir(tmp_path), default_config())
    assert "http://127.0.0.1:1/" in out.getvalue()
    assert "secret" not in out.getvalue()
    console = Console(width=80, file=io.StringIO(), force_terminal=True)
    lines = console.render_lines(page(snap, RunDir(tmp_path), default_config(), 80))
    assert "token=secret" in "".join(segment.text for row in lines for segment in row)


class Tty(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def test_a_dumb_terminal_gets_the_lines_that_a_pipe_gets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spreeze.cli.screen.PATIENCE_S", 0.0)
    seen = []
    for term, out in (("dumb", Tty()), ("xterm", io.StringIO()), ("xterm", Tty())):
        monkeypatch.setenv("TERM", term)
        with Screen(Console(file=out, width=80)) as screen:
            screen.announce(Milestone.ENVIRONMENT)
            while not out.getvalue():
                time.sleep(0.001)
            screen(Snapshot(time_s=3.0), RunDir(tmp_path), default_config())
        seen.append(out.getvalue())
    dumb, pipe, terminal = seen
    assert dumb == pipe
    assert dumb.startswith("trying the environment out ...\n")
    assert "\x1b" in terminal


def test_what_takes_a_moment_only_is_not_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that errors in the user's flags stand alone."""
    monkeypatch.setattr("spreeze.cli.screen.PATIENCE_S", 60.0)
    out = io.StringIO()
    with Screen(Console(file=out, width=80)) as screen:
        screen.announce(Milestone.ENVIRONMENT)
        screen.announce("a note")
        screen.announce(Milestone.ROLES)
    assert out.getvalue() == "a note\n"


class Stuck(io.StringIO):
    """A terminal that is paused, or a pipe that is full."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = threading.Event()

    def write(self, text: str) -> int:
        self.goes_on.wait()
        return super().write(text)


def test_a_terminal_that_takes_nothing_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spreeze.cli.screen.LAST_LOOK_S", 0.05)
    out = Stuck()
    with Screen(Console(file=out, width=80)) as screen:
        for _ in range(1000):
            screen(Snapshot(time_s=3.0), RunDir(tmp_path), default_config())
        thread = screen._thread
    assert thread.is_alive()
    out.goes_on.set()
    thread.join()
    assert "3 s" in out.getvalue()


def test_a_screen_leaves_no_file_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may train a thousand times."""
    with (tmp_path / "err").open("w") as err:
        monkeypatch.setattr("sys.stderr", err)
        before = len(list(Path("/proc/self/fd").iterdir()))
        with Screen() as screen:
            screen.announce("it begins")
        assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert (tmp_path / "err").read_text() == "it begins\n"


class Full(io.StringIO):
    """A file on a disk that is full until there is room."""

    room = False

    def write(self, text: str) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(text)


def test_the_screen_comes_back_when_its_file_can_be_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spreeze.cli.screen.LINE_EVERY_S", 0.0)
    out = Full()
    with Screen(Console(file=out, width=80)) as screen:
        screen.announce("a line")
        screen(Snapshot(time_s=3.0), RunDir(tmp_path), default_config())
        out.room = True
        screen(Snapshot(time_s=4.0), RunDir(tmp_path), default_config())
    assert "4 s" in out.getvalue()


class FullTty(Full, Tty):
    """A terminal on a disk that is full until there is room."""


@pytest.mark.fault("F64")
@pytest.mark.parametrize("out", [Full(), FullTty()])
def test_redraws_that_are_refused_are_counted_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: Full
) -> None:
    monkeypatch.setattr("spreeze.cli.screen.LINE_EVERY_S", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    refused, out.room = 0, True
    with Screen(Console(file=out, width=80, force_terminal=out.isatty())) as screen:
        show(screen, tmp_path, 1.0)
        out.room = False
        for second in range(3):
            show(screen, tmp_path, 1000.0 + second)
            refused += wait_for(lambda: screen(Snapshot(), RunDir(tmp_path), default_config()))
        wait_for(lambda: screen._next is None and screen._drawing_s is None)
        out.room = True
        show(screen, tmp_path, 2000.0)
    assert refused >= 3
    assert "33:20" in out.getvalue()
    assert "16:4" not in out.getvalue()


@pytest.mark.parametrize("is_terminal", [True, False])
def test_redraws_that_a_blocked_terminal_does_not_take_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    monkeypatch.setattr("spreeze.cli.screen.LAST_LOOK_S", 0.05)
    monkeypatch.setattr("spreeze.cli.screen.BLOCKED_S", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    out = Stuck()
    monkeypatch.setattr(out, "isatty", lambda: is_terminal)
    with Screen(Console(file=out, width=80, force_terminal=is_terminal)) as screen:
        screen(Snapshot(), RunDir(tmp_path), default_config())
        wait_for(lambda: screen._drawing_s is not None)
        refused = [screen(Snapshot(), RunDir(tmp_path), default_config()) for _ in range(50)]
    out.goes_on.set()
    screen._thread.join()
    # Without a page there would have been one line in this time.
    assert sum(refused) == (50 if is_terminal else 1)


def test_a_pipe_that_was_closed_counts_each_redraw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spreeze.cli.screen.LINE_EVERY_S", 0.0)
    reading, writing = os.pipe()
    with open(writing, "w") as pipe:
        monkeypatch.setattr("sys.stderr", pipe)
        os.close(reading)
        with Screen() as screen:
            for _ in range(3):
                show(screen, tmp_path, 3.0)
                assert wait_for(lambda: screen(Snapshot(), RunDir(tmp_path), default_config()))


def show(screen: Screen, folder: Path, time_s: float) -> None:
    """Let the screen draw, and wait until it has tried."""
    screen(Snapshot(time_s=time_s), RunDir(folder), default_config())
    wait_for(lambda: screen._next is None and screen._drawing_s is None)


def test_what_goes_wrong_on_the_screen_is_raised_to_its_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> str:
        raise ZeroDivisionError("a mistake of ours")

    monkeypatch.setattr("spreeze.cli.screen.line", broken)
    with Screen(Console(file=io.StringIO(), width=80)) as screen:
        screen(Snapshot(), RunDir(tmp_path), default_config())
        screen._thread.join()
        with pytest.raises(ZeroDivisionError):
            screen(Snapshot(), RunDir(tmp_path), default_config())
