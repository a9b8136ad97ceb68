"""The screen: a page on a terminal that can redraw, elsewhere a line every few seconds.

A thread draws what the supervisor hands over.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import IO, BinaryIO, cast

from rich.console import Console
from rich.live import Live
from rich.text import Text

from spreeze.cli import silence
from spreeze.cli.drawing import line, page, print_choices
from spreeze.run.plan import Plan
from spreeze.run.snapshot import Snapshot
from spreeze.run.start_up import Milestone
from spreeze.run.wording import describe_awaited
from spreeze.settings.config import Config
from spreeze.store.rundir import RunDir

LINE_EVERY_S = 5.0
PATIENCE_S = 1.0
"""Without a page, what a start does is said if it takes longer."""
BLOCKED_S = 1.0
"""A terminal that takes this long for a redraw is blocked: those that follow are refused."""
LAST_LOOK_S = 1.0
"""How long the end of a run waits for a terminal that takes nothing."""


class Terminal(Console):
    """Standard error. If it is a pipe that nobody reads any more, it falls silent."""

    def __init__(self) -> None:
        """As rich detects it, but on a separate stream, so that a blocked terminal blocks nothing else."""
        file: IO[str] | None = None
        self._own = type(sys.stderr) is io.TextIOWrapper  # not a notebook's
        if self._own:
            raw = io.FileIO(os.dup(sys.stderr.fileno()), "w")
            file = io.TextIOWrapper(
                cast(BinaryIO, raw), "utf-8", "backslashreplace", write_through=True
            )
        super().__init__(file=file, stderr=file is None, highlight=False)

    def close(self) -> None:
        """Close the separate stream, if there is one."""
        if self._own:
            with contextlib.suppress(OSError):
                self.file.close()

    def on_broken_pipe(self) -> None:
        """Rich would end the program."""
        self.quiet = True
        silence(self.file)


class Screen:
    """Shows a run on a console.

    Its thread draws, because a terminal that is paused or a pipe that is full blocks whoever writes to it.
    """

    def __init__(self, console: Console | None = None) -> None:
        """A page that is redrawn if the console is a terminal that can do so, otherwise lines."""
        self.console = console or Terminal()
        redraws = self.console.is_terminal and not self.console.is_dumb_terminal
        self._live = (
            Live(
                console=self.console,
                auto_refresh=False,
                redirect_stdout=False,
                redirect_stderr=False,
                transient=True,  # until there is a page
            )
            if redraws and self.console.file.isatty()
            else None
        )
        self._said_s = 0.0
        self._announced: deque[Plan | Milestone | str] = deque()
        self._next: tuple[Snapshot, RunDir, Config] | None = None
        self._unsaid: str | None = None
        """What a start does; not said yet."""
        self._drawing_s: float | None = None
        """Since when the terminal is taking what is drawn now."""
        self._failed = self._skipped = self._told = 0
        """Redraws that raised, those of which none was tried, and how many of all the caller knows of."""
        self._skipped_s = 0.0
        self._wake, self._closing = threading.Event(), False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._draw_all, name="screen", daemon=True)

    def __enter__(self) -> Screen:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing = True
        self._wake.set()
        self._thread.join(LAST_LOOK_S)

    def announce(self, what: Plan | Milestone | str) -> None:
        """Before the start: say what is done until a milestone, print a text or the settings that were chosen."""
        self._announced.append(what)
        self._wake.set()

    def __call__(self, snap: Snapshot, run: RunDir, config: Config) -> int:
        """Show the run as it is now, as soon as the terminal takes it. Raises what went wrong before.

        Returns how many redraws the terminal has refused since the last call.
        """
        if self._error is not None:
            raise self._error
        began_s, now_s = self._drawing_s, time.monotonic()
        if began_s is not None and now_s - began_s >= BLOCKED_S:
            every_s = 0.0 if self._live else LINE_EVERY_S
            if now_s - self._skipped_s >= every_s:
                self._skipped, self._skipped_s = self._skipped + 1, now_s
        self._next = replace(snap, evaluations=[*snap.evaluations]), run, config
        self._wake.set()
        refused = self._failed + self._skipped - self._told
        self._told += refused
        return refused

    def _draw_all(self) -> None:
        """Print what is announced and draw the newest snapshot, until the end."""
        try:
            if self._live:
                self._try(self._live.start)
            closing = False
            while not closing:
                if not self._wake.wait(None if self._unsaid is None else PATIENCE_S):
                    self._announced.appendleft(str(self._unsaid))
                self._wake.clear()
                closing, scene, self._next = self._closing, self._next, None
                if self._announced or scene is not None:  # it is over
                    self._unsaid = None
                while self._announced:
                    what = self._announced.popleft()
                    self._try(lambda what=what: self._print(what))  # type: ignore[misc]
                if scene is not None and self._is_due():
                    self._try(lambda scene=scene: self._draw(*scene))  # type: ignore[misc]
            if self._live:
                self._try(self._live.stop)
        except Exception as error:
            self._error = error
        finally:
            if isinstance(self.console, Terminal):
                self.console.close()

    def _try(self, draw: Callable[[], None]) -> None:
        """Draw something. What the terminal refuses is counted; the next redraw may work."""
        self._drawing_s = time.monotonic()
        try:
            draw()
            self._failed += self.console.quiet
        except OSError:
            self._failed += 1
            # Or rich would keep it for the next time.
            with contextlib.suppress(OSError), self.console.capture():
                pass
        self._drawing_s = None

    def _is_due(self) -> bool:
        """Whether to draw now: a page is always drawn, a line now and then."""
        return bool(self._live) or time.monotonic() - self._said_s >= LINE_EVERY_S

    def _print(self, what: Plan | Milestone | str) -> None:
        if isinstance(what, Plan):
            print_choices(self.console, what)
        elif isinstance(what, str):
            self.console.print(what, markup=False, soft_wrap=True)
        elif self._live:  # the page takes its place
            doing = Text(f"{describe_awaited(what)} ...", style="dim")
            self._live.update(doing, refresh=True)
        else:
            self._unsaid = f"{describe_awaited(what)} ..."

    def _draw(self, snap: Snapshot, run: RunDir, config: Config) -> None:
        if self._live:
            self._live.transient = False
            self._live.update(page(snap, run, config, self.console.width), refresh=True)
        else:
            if snap.page and not self._said_s:  # the token must not end up in a log file
                address, _, _ = snap.page.partition("?")
                where = run.short_path / "dashboard.token"
                self.console.print(
                    f"live page: {address}?token=...  (the token is in {where})", soft_wrap=True
                )
            self._said_s = time.monotonic()
            self.console.print(line(snap, config), soft_wrap=True)
