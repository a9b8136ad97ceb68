"""One compilation: fused in a thread or compiled in another process, then loaded."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from spreeze.learning.compiled.key import CompileKey, draft_path
from spreeze.learning.compiled.load import CompiledUpdate, load_compiled, loads_instantly
from spreeze.learning.fusion.fuse import fuse
from spreeze.learning.step import StepFunction
from spreeze.machine.affinity import other_cores
from spreeze.machine.facts import compiler
from spreeze.networks import unfused_arithmetic
from spreeze.user_code import allowed

SWITCH_S = 0.0005
"""Python's switch interval while a thread loads: the learner's thread must get its turns."""
POLL_S = 0.02


class RefusalReason(Enum):
    """Why there is no compiled update."""

    NO_CPP_COMPILER = auto()
    NOT_STARTED = auto()
    """The compiler process could not be started."""
    COMPILATION_FAILED = auto()
    NOT_LOADED = auto()
    """The compiled file could not be loaded."""
    MISMATCH = auto()
    """It computes other numbers than the plain update."""


@dataclass(frozen=True)
class Refusal:
    """Why there is no compiled update, and the details for the log."""

    reason: RefusalReason
    detail: str


class _Phase(Enum):
    WAITING = auto()
    FUSING = auto()
    """In a thread, which then loads the result."""
    COMPILING = auto()
    """In another process."""
    LOADING = auto()
    DONE = auto()


class Compilation:
    """Gets one compiled update: from the cache, or by compiling it.

    Our own compiler (`learning.fusion`) takes a second and mostly lets go of Python's lock, so it runs in
    a thread. Torch's takes half a minute and runs in a separate process.

    WAITING -> FUSING -> DONE or WAITING -> COMPILING -> LOADING -> DONE, or straight to LOADING if the cache
    has it. A refusal leads to DONE from every phase. Call `poll` from time to time to advance it.
    """

    def __init__(self, key: CompileKey, log: Path, wait_s: float = 0) -> None:
        """Load it if the cache has it. Otherwise `poll` starts to compile after `wait_s`."""
        self.key = key
        self._result: CompiledUpdate | Refusal | None = None
        self._log = log
        self._start_s = time.monotonic() + wait_s
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._phase = _Phase.WAITING
        try:
            self._path = key.path()
        except OSError as error:  # no folder for a cache
            detail = f"compilation could not be started ({error})"
            self._finish(Refusal(RefusalReason.NOT_STARTED, detail))
            return
        if self._path.exists():
            self._phase = _Phase.LOADING
            if loads_instantly(self._path):
                self._load()
            else:
                self._load_in_thread()
        elif key.device == "cpu" and compiler() is None:
            detail = "no C++ compiler was found (Debian: apt install g++)"
            self._finish(Refusal(RefusalReason.NO_CPP_COMPILER, detail))

    @property
    def is_compiling(self) -> bool:
        """Whether it compiles now; loading takes a moment only."""
        return self._phase in (_Phase.FUSING, _Phase.COMPILING)

    def poll(self) -> CompiledUpdate | Refusal | None:
        """Advance if possible. Returns the result, or None as long as there is none."""
        if self._phase is _Phase.WAITING and time.monotonic() >= self._start_s:
            if self._path.exists():  # another run has compiled it meanwhile
                self._load_in_thread()
            else:
                self._start()
        elif self._phase is _Phase.COMPILING:
            self._check_process()
        return self._result

    def close(self) -> None:
        """Give up whatever is still under way."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._thread is not None:
            self._thread.join()
        self._phase = _Phase.DONE

    def _finish(self, result: CompiledUpdate | Refusal) -> None:
        self._result, self._phase = result, _Phase.DONE

    def _start(self) -> None:
        """Start to compile."""
        if self.key.fused:
            self._load_in_thread(_Phase.FUSING)
            return
        try:
            self._process, self._phase = self._start_process(), _Phase.COMPILING
        except OSError as error:
            detail = f"compilation could not be started ({error})"
            self._finish(Refusal(RefusalReason.NOT_STARTED, detail))

    def _start_process(self) -> subprocess.Popen[bytes]:
        cores = ",".join(map(str, other_cores()))
        module = "spreeze.learning.compiled.compiler"
        command = [sys.executable, "-P", "-m", module, str(os.getpid()), cores]
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)
        assert process.stdin is not None
        job = {"key": dataclasses.asdict(self.key), "user_code": allowed()}
        process.stdin.write(json.dumps(job).encode())
        process.stdin.close()
        return process

    def _check_process(self) -> None:
        """Load the result when the compiler's process has ended."""
        assert self._process is not None
        code = self._process.poll()
        if code is None:
            return
        draft = draft_path(self._path, self._process.pid)
        self._process = None
        if code == 0 and self._path.exists():
            self._load_in_thread()
            return
        draft.unlink(missing_ok=True)
        detail = f"compilation failed; see {self._log}"
        self._finish(Refusal(RefusalReason.COMPILATION_FAILED, detail))

    def _load_in_thread(self, phase: _Phase = _Phase.LOADING) -> None:
        def load_on_other_cores() -> None:
            os.sched_setaffinity(0, other_cores())  # of this thread only
            self._load()

        self._phase = phase
        self._thread = threading.Thread(
            target=load_on_other_cores, name="load compiled", daemon=True
        )
        self._thread.start()

    def _load(self) -> None:
        before_s = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_S)
        try:
            self._finish(self._loaded())
        finally:
            sys.setswitchinterval(before_s)

    def _loaded(self) -> CompiledUpdate | Refusal:
        """What is at the path, after our own compiler has made it if it must. The plain update always works."""
        try:
            if self.key.fused and not self._path.exists():
                fuse_step(self.key)
        except Exception as error:
            detail = f"compilation failed ({type(error).__name__}: {error})"
            return Refusal(RefusalReason.COMPILATION_FAILED, detail)
        try:
            return load_compiled(self.key, self._path)
        except Exception as error:  # whatever is wrong with the file
            self._path.unlink(missing_ok=True)
            detail = f"the compiled update could not be loaded ({type(error).__name__}: {error})"
            return Refusal(RefusalReason.NOT_LOADED, detail)


def fuse_step(key: CompileKey) -> None:
    """Make and store the fused form of an update; raises RuntimeError if there is none."""
    path = key.path()
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = draft_path(path, os.getpid())
    updater = key.updater(unfused_arithmetic(key.precision), shape_only=True)
    inputs = updater.inputs(key.batch_size)
    fuse(updater.plain, inputs, torch.device(key.device), draft, key.threads)
    draft.replace(path)


def compile_and_wait(key: CompileKey) -> StepFunction:
    """The compiled update, built in another process as in a run. Raises RuntimeError if there is none."""
    with TemporaryDirectory() as folder:
        log = Path(folder) / "compiler.log"
        compilation = Compilation(key, log)
        while (result := compilation.poll()) is None:
            time.sleep(POLL_S)
        compilation.close()
        if isinstance(result, Refusal):
            printed = log.read_text() if log.exists() else ""
            raise RuntimeError(f"{printed}\n{result.detail}")
        return result.step
