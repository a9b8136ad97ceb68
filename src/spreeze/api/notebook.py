"""The screen of a notebook: one output of the cell, which is replaced while the run goes on."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

from spreeze.api import html
from spreeze.cli.drawing import choices, describe_start
from spreeze.run.plan import Plan
from spreeze.run.snapshot import Snapshot
from spreeze.run.start_up import Milestone
from spreeze.run.wording import COMPILING, describe_awaited, describe_bottleneck
from spreeze.settings.config import Config
from spreeze.store.rundir import RunDir
from spreeze.text import clock, short

UPDATE_EVERY_S = 1.0


def in_notebook() -> bool:
    """Whether this program runs in a notebook's kernel, and not in a terminal."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


class NotebookScreen:
    """Shows a run in the output of a cell."""

    def __init__(self) -> None:
        """Show nothing yet."""
        self._handle: Any = None
        self._notes: list[str] = []
        self._doing: list[str] = []  # what the start does
        self._choices: dict[str, str] = {}
        self._last: tuple[Snapshot, RunDir, Config] | None = None
        self._shown_s = 0.0

    def __enter__(self) -> NotebookScreen:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._doing = []
        if self._last is not None or self._handle is not None:
            # The page has ended, and the token in its address must not stay in the notebook's file.
            self._show(ended=True)

    def announce(self, what: Plan | Milestone | str) -> None:
        """Before the start: what is done until a milestone, a line of text, or the settings that were chosen."""
        if isinstance(what, str):
            self._notes.append(what)
        elif isinstance(what, Milestone):
            self._doing = [f"{describe_awaited(what)} ..."]
        else:
            self._choices = {name: f"{value} ({why})" for name, value, why in choices(what)}
        self._show()

    def __call__(self, snap: Snapshot, run: RunDir, config: Config) -> None:
        """Show the run as it is now, at most once a second."""
        self._last = snap, run, config
        if time.monotonic() - self._shown_s >= UPDATE_EVERY_S:
            self._show()

    def _show(self, ended: bool = False) -> None:
        """Replace the output of the cell."""
        from IPython.display import HTML, display

        self._shown_s = time.monotonic()
        page = HTML(self._html(ended))
        if self._handle is None:
            self._handle = display(page, display_id=True)
        else:
            self._handle.update(page)

    def _html(self, ended: bool) -> str:
        parts = [html.lines(self._notes)]
        if self._last is None:
            parts.append(html.lines(self._doing))
        else:
            snap, run, config = self._last
            title = f"{config.env}  {config.algo}  seed {config.seed}  {clock(snap.time_s)}"
            parts += [html.title(title), html.table(_facts(snap, run, config))]
            parts.append(html.curve(snap.evaluations))
            if snap.page and not ended:
                parts.append(html.link(snap.page))
            parts.append(html.lines([f"! {_first_line(text)}" for text in snap.warnings[-3:]]))
        if self._choices:
            settings = html.table(self._choices)
            parts.append(f"<details><summary>Settings</summary>{settings}</details>")
        return "".join(parts)


def _facts(snap: Snapshot, run: RunDir, config: Config) -> dict[str, str]:
    """What a run does now."""
    facts = {
        "return": f"{short(snap.eval_return)}, best {short(snap.best_return)}",
        "env steps": f"{short(snap.env_steps)} at {short(snap.sample_hz)}/s",
        "updates": f"{short(snap.updates)} at {short(snap.update_hz)}/s",
    }
    if snap.awaited is not None:
        facts["start"] = describe_start(snap, snap.awaited, config)
    else:
        facts["limit"] = describe_bottleneck(snap.bottleneck, config.device)
    if snap.compiling:
        facts["update"] = COMPILING
    return facts | {"folder": str(run.short_path)}


def _first_line(text: str) -> str:
    """A warning without the traceback that may follow."""
    return text.partition("\n")[0]
