"""Companions of a run: processes that know its directory only, and that training does not notice.

The live page and a tracker. Each gets the reading end of a pipe; when the supervisor closes the
other end, everything is written and they may finish.
"""

from __future__ import annotations

import os
import socket
from importlib.util import find_spec

import cloudpickle

from spreeze.dashboard.access import Access, new_token
from spreeze.envs.suites import advice
from spreeze.run.processes.pool import Companion
from spreeze.settings.config import Config, resolved
from spreeze.store.rundir import RunDir

TOKEN_FILE = "dashboard.token"  # noqa: S105


class Companions:
    """What is to run beside this run."""

    def __init__(self, config: Config, run_dir: RunDir) -> None:
        """Open the page's port: it stays when the page's process is started anew, and so does its token."""
        self.all: list[Companion] = []
        self.notes: list[str] = []
        self.page = ""
        self.status: dict[str, str] = {}
        self._run_dir = run_dir
        self._socket: socket.socket | None = None
        self._learner_cores = resolved(config.learner.threads) if config.cores == "separate" else 0
        self._ending, self._end = os.pipe()
        if config.serial:
            return
        if config.dashboard:
            self._open_page()
        if config.track is not None:
            payload = cloudpickle.dumps((run_dir.path, config.track, self._learner_cores))
            function = "spreeze.run.tracker:companion_main"
            self.all.append(Companion("tracker", function, payload, (self._ending,)))

    def _open_page(self) -> None:
        if find_spec("starlette") is None or find_spec("uvicorn") is None:
            self.notes.append(f"no live page. {advice('dashboard')}")
            return
        try:
            listening = socket.create_server(("127.0.0.1", 0))
        except OSError as error:
            self.notes.append(f"no live page: no local port can be opened ({error})")
            return
        self._socket = listening
        port, token = listening.getsockname()[1], new_token()
        write_secret(self._run_dir, token)
        self.status = {"url": f"http://127.0.0.1:{port}/"}
        self.page = f"http://127.0.0.1:{port}/?token={token}"
        access = Access(port=port, token=token)
        payload = cloudpickle.dumps((self._run_dir.path, access, self._learner_cores))
        function = "spreeze.dashboard.server:companion_main"
        fds = (self._ending, listening.fileno())
        self.all.append(Companion("dashboard", function, payload, fds))

    def say_end(self) -> None:
        """All of the run is written."""
        if self._end >= 0:
            os.close(self._end)
            self._end = -1
            self.status = {}
            (self._run_dir.path / TOKEN_FILE).unlink(missing_ok=True)

    def close(self) -> None:
        """Give the port back."""
        self.say_end()
        os.close(self._ending)
        if self._socket is not None:
            self._socket.close()


def write_secret(run_dir: RunDir, token: str) -> None:
    """Keep the token where only this user can read it."""
    fd = os.open(run_dir.path / TOKEN_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(fd, "w") as file:
        file.write(token + "\n")
