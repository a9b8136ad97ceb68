"""One compilation on its way: started in another process, loaded when it is ready."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch

from spreeze.learning.compiled.key import CompileKey, draft_path
from spreeze.learning.compiled.load import load, loads_instantly
from spreeze.learning.update import StepFunction
from spreeze.machine.affinity import other_cores
from spreeze.machine.facts import compiler

SWITCH_S = 0.0005
"""How long a thread that loads keeps Python to itself while another one learns."""


class Compilation:
    """One compiled update on its way: `poll` it now and then."""

    def __init__(self, key: CompileKey, log: Path, wait_s: float = 0) -> None:
        """Take it from the cache at once; or `poll` starts to compile in the background, after `wait_s`."""
        self.key = key
        self.step: StepFunction | None = None
        """The compiled form, when it is ready and loaded."""
        self.problem: str | None = None
        """Why there will be none, in words for the user."""
        self.path = key.path()
        """Where it lies."""
        self.digest = ""
        """Of the file that `step` came from: another run may replace it."""
        self._start_s: float | None = None
        """When to start compiling, until that is done."""
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._log = log
        if self.path.exists():
            if loads_instantly(self.path):
                self._load()
            else:
                self._load_aside()
        else:
            if key.device == "cpu" and compiler() is None:
                self.problem = "no C++ compiler was found (Debian: apt install g++)"
                return
            self._start_s = time.monotonic() + wait_s

    def poll(self) -> bool:
        """Whether it is settled: `step` or `problem` is there."""
        if self.step is not None or self.problem is not None:
            return True
        if self._start_s is not None:
            if time.monotonic() < self._start_s:
                return False
            self._start_s = None
            if not self.path.exists():  # another run may have compiled it meanwhile
                try:
                    self._process = self._start()
                except OSError as error:
                    self.problem = f"compilation could not be started ({error})"
                    return True
        if self._process is not None:
            code = self._process.poll()
            if code is None:
                return False
            draft = draft_path(self.path, self._process.pid)
            self._process = None
            if code != 0 or not self.path.exists():
                draft.unlink(missing_ok=True)
                self.problem = f"compilation failed; {self._log} says why"
                return True
        if self._thread is None:
            self._load_aside()
        return False

    def close(self) -> None:
        """Give up what is still going on, or has not begun."""
        self._start_s = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._thread is not None:
            self._thread.join()

    def _start(self) -> subprocess.Popen[bytes]:
        cores = ",".join(map(str, other_cores()))
        command = [
            sys.executable,
            "-m",
            "spreeze.learning.compiled.compiler",
            str(os.getpid()),
            cores,
        ]
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)
        assert process.stdin is not None
        process.stdin.write(json.dumps(dataclasses.asdict(self.key)).encode())
        process.stdin.close()
        return process

    def _load_aside(self) -> None:
        def load_on_other_cores() -> None:
            os.sched_setaffinity(0, other_cores())  # of this thread alone
            self._load()

        self._thread = threading.Thread(
            target=load_on_other_cores, name="load compiled", daemon=True
        )
        self._thread.start()

    def _load(self) -> None:
        before_s = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_S)
        try:
            content = self.path.read_bytes()
            self.step = load(self.path, torch.device(self.key.device))
            if self.path.read_bytes() == content:
                self.digest = hashlib.sha256(content).hexdigest()
        except Exception as error:  # whatever is wrong with it: the plain way works
            self.path.unlink(missing_ok=True)
            self.problem = (
                f"the compiled form could not be loaded ({type(error).__name__}: {error})"
            )
        finally:
            sys.setswitchinterval(before_s)
