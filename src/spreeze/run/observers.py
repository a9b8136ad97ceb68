"""Observers: the live page and a tracker, processes that know only the run's directory.

Training does not depend on them. Each gets the reading end of a pipe; the supervisor closes the
other end once everything is written, and they may finish. (The visualizer observes too, but it is
a role: it reads the weights from their wire.)
"""

from __future__ import annotations

import os

import cloudpickle

from spreeze.dashboard.local_page import LocalPage, can_serve
from spreeze.envs.suites import advice
from spreeze.run.processes.pool import Observer
from spreeze.settings.config import Config
from spreeze.store.rundir import RunDir


class Observers:
    """The observers that this run's config asks for."""

    def __init__(self, config: Config, run_dir: RunDir) -> None:
        """Open the page's port here: port and token stay the same if the page's process is restarted."""
        self.all: list[Observer] = []
        self.notes: list[str] = []
        self.page = ""
        """Address of the live page with its token; empty without one."""
        self.status: dict[str, str] = {}
        """What status.json says about the page: its address without the token."""
        self._run_dir = run_dir
        self._page: LocalPage | None = None
        self._learner_cores = config.learner_cores if config.cores == "separate" else 0
        self._end_reader, self._end_writer = os.pipe()
        if config.serial:
            return
        if config.dashboard:
            self._open_page()
        if config.track is not None:
            payload = cloudpickle.dumps((run_dir.path, config.track, self._learner_cores))
            function = "spreeze.run.tracker:observer_main"
            self.all.append(Observer("tracker", function, payload, (self._end_reader,)))

    def _open_page(self) -> None:
        if not can_serve():
            self.notes.append(f"no live page. {advice('dashboard')}")
            return
        try:
            page = LocalPage(self._run_dir.path)
        except OSError as error:
            self.notes.append(f"no live page: cannot open a local port ({error})")
            return
        self._page = page
        self.page, self.status = page.address, {"url": page.url}
        self.notes += page.notes
        shown = (self._run_dir.path.parent, self._run_dir.path.name)
        payload = cloudpickle.dumps((*shown, page.access, self._learner_cores))
        function = "spreeze.dashboard.server:observer_main"
        fds = (self._end_reader, page.listening.fileno())
        self.all.append(Observer("dashboard", function, payload, fds))

    def announce_end(self) -> None:
        """Tell them that everything is written; the token is deleted."""
        if self._end_writer >= 0:
            os.close(self._end_writer)
            self._end_writer = -1
            self.status = {}
            if self._page is not None:
                self._page.forget_token()

    def close(self) -> None:
        """Free the port."""
        self.announce_end()
        os.close(self._end_reader)
        if self._page is not None:
            self._page.close()
