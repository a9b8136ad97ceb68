"""Observers: the live page and a tracker, processes that know only the run's directory.

Training does not depend on them. Each gets the reading end of a pipe; the supervisor closes the
other end once everything is written, and they may finish. (The visualizer observes too, but it is
a role: it reads the weights from their wire.)
"""

from __future__ import annotations

import contextlib
import os
import socket
from importlib.util import find_spec

import cloudpickle

from spreeze.dashboard.access import Access
from spreeze.dashboard.token import TokenFile, new_token
from spreeze.envs.suites import advice
from spreeze.run.processes.pool import Observer
from spreeze.settings.config import Config
from spreeze.store.rundir import RunDir

TOKEN_FILE = "dashboard.token"  # noqa: S105


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
        self._socket: socket.socket | None = None
        self._token: TokenFile | None = None
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
        if find_spec("starlette") is None or find_spec("uvicorn") is None:
            self.notes.append(f"no live page. {advice('dashboard')}")
            return
        try:
            listening = socket.create_server(("127.0.0.1", 0))
        except OSError as error:
            self.notes.append(f"no live page: cannot open a local port ({error})")
            return
        self._socket = listening
        port, token = listening.getsockname()[1], new_token()
        self._show_token(token)
        self.status = {"url": f"http://127.0.0.1:{port}/"}
        self.page = f"http://127.0.0.1:{port}/?token={token}"
        access = Access(port=port, token=token)
        payload = cloudpickle.dumps((self._run_dir.path, access, self._learner_cores))
        function = "spreeze.dashboard.server:observer_main"
        fds = (self._end_reader, listening.fileno())
        self.all.append(Observer("dashboard", function, payload, fds))

    def _show_token(self, token: str) -> None:
        """Link the token into the run directory, for programs of this user."""
        self._token = TokenFile(token)
        try:
            (self._run_dir.path / TOKEN_FILE).symlink_to(self._token.path)
        except OSError as error:  # not every file system has links
            self.notes.append(
                f"there is no {TOKEN_FILE} ({error.strerror}): read {self._token.path}"
            )

    def announce_end(self) -> None:
        """Tell them that everything is written; the token is deleted."""
        if self._end_writer >= 0:
            os.close(self._end_writer)
            self._end_writer = -1
            self.status = {}
            if self._token is not None:
                self._token.close()
                with contextlib.suppress(OSError):  # such as a disk that is read-only by now
                    (self._run_dir.path / TOKEN_FILE).unlink(missing_ok=True)

    def close(self) -> None:
        """Free the port."""
        self.announce_end()
        os.close(self._end_reader)
        if self._socket is not None:
            self._socket.close()
