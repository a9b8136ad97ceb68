"""Finishes the compilation that a short run could not: the next run of the task starts with it.

This module is also the program of the process that does so. That process outlives the command, so it is
polite and bounded: it only gets time that nothing else wants, and ends after `LIMIT_S` at the latest.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import setproctitle

from spreeze.machine.cache import cache_folder
from spreeze.settings.config import Config, resolved
from spreeze.settings.defaults import config_from_json
from spreeze.spec import EnvSpec
from spreeze.store.rundir import RunDir
from spreeze.user_code import allow, allowed

LIMIT_S = 180
TITLE = "spreeze compiler"
"""Its name in lists of processes."""
LOCK = "finishing.lock"
"""The file in the cache folder that it locks while it compiles."""


def background_allowed() -> bool:
    """Whether a process may outlive the command: SPREEZE_BACKGROUND=0 forbids it."""
    return os.environ.get("SPREEZE_BACKGROUND") != "0"


def start(run: RunDir, algo: str, limit_s: int = LIMIT_S) -> int | None:
    """Compile the update of a run in a process of this pid; None if the system did not allow one.

    `algo` is what the command line named: a stored run alone never names code.
    """
    module = "spreeze.run.finish_compiling"
    command = [sys.executable, "-P", "-m", module, str(run.path.absolute()), algo, str(limit_s)]
    try:
        with run.log("compiler").open("ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
            )
            assert process.stdin is not None
            with process.stdin:
                process.stdin.write(json.dumps(allowed()).encode())
    except OSError:
        return None
    process.returncode = 0  # nobody waits for it
    return process.pid


def main(path: Path, algo: str, limit_s: int) -> None:
    """Compile what the run in `path` learns with, unless the cache has it."""
    signal.signal(signal.SIGALRM, _end_all)
    signal.alarm(limit_s)
    setproctitle.setproctitle(TITLE)
    allow(json.load(sys.stdin))
    os.nice(19)
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with (cache_folder() / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one at a time, however many runs have ended
        _compile(*_stored(RunDir(path), algo))


def _compile(config: Config, spec: EnvSpec) -> None:
    # Imported here, because torch comes with them: whoever calls `start` needs none.
    from spreeze.learning.compiled.compiler import compile_step
    from spreeze.roles.learner.compile_key import compile_keys

    for key in compile_keys(config, spec, resolved(config.learner.batch_size)):
        if not key.path().exists():
            compile_step(key)


def _stored(run: RunDir, algo: str) -> tuple[Config, EnvSpec]:
    """What the run that has just ended wrote at its start."""
    stored = run.read("config")
    return config_from_json(stored["config"], algo), EnvSpec.from_json(stored["env_spec"])


def _end_all(*_: object) -> None:
    """Time is up: end the compilers that were started, too."""
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
