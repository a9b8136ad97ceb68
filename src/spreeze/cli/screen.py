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

    def __call__(self, snap: Snapshot, run: RunDir, config: Config) -> None:
        """Show the run as it is now, as soon as the terminal takes it. Raises what went wrong before."""
        if self._error is not None:
            raise self._error
        self._next = replace(snap, evaluations=[*snap.evaluations]), run, config
        self._wake.set()

    def _draw_all(self) -> None:
        """Print what is announced and draw the newest snapshot, until the end."""
        try:
            if self._live:
                with contextlib.suppress(OSError):
                    self._live.start()
            closing = False
            while not closing:
                if not self._wake.wait(None if self._unsaid is None else PATIENCE_S):
                    self._announced.appendleft(str(self._unsaid))
                self._wake.clear()
                closing, scene, self._next = self._closing, self._next, None
                if self._announced or scene is not None:  # it is over
                    self._unsaid = None
                while self._announced:
                    with contextlib.suppress(OSError):
                        self._print(self._announced.popleft())
                if scene is not None:
                    with contextlib.suppress(OSError):  # such as a full disk; the next one may work
                        self._draw(*scene)
            if self._live:
                with contextlib.suppress(OSError):
                    self._live.stop()
        except Exception as error:
            self._error = error
        finally:
            if isinstance(self.console, Terminal):
                self.console.close()

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
        elif time.monotonic() - self._said_s >= LINE_EVERY_S:
            if snap.page and not self._said_s:  # the token must not end up in a log file
                address, _, _ = snap.page.partition("?")
                where = run.short_path / "dashboard.token"
                self.console.print(
                    f"live page: {address}?token=...  (the token is in {where})", soft_wrap=True
                )
            self._said_s = time.monotonic()
            self.console.print(line(snap, config), soft_wrap=True)
