"""Entry points of child processes: a role, or a single function call."""

from __future__ import annotations

import os
import sys
import time
import traceback

import cloudpickle
import setproctitle

from spreeze.errors import UsageError
from spreeze.machine.affinity import keep_to_cores
from spreeze.roles.context import drive, join
from spreeze.run.processes.call_result import CallResult, Raised, Refused, Returned
from spreeze.wires.arena import Arena

REPORT_BYTES = 60_000
MAX_CAUSE = 300


def role_main(payload: bytes, report_fd: int, arena_fd: int) -> int:
    """Run a role; if it raises, the traceback goes to its log and to the supervisor."""
    try:
        job, blocks = cloudpickle.loads(payload)
        setproctitle.setproctitle(f"spreeze {job.name} {job.run_path.name}")
        arena = Arena(arena_fd, blocks)
        if job.config.cores == "separate":
            keep_to_cores(job.role == "learner", job.config.learner_cores)
        drive(join(job, arena, lambda: time.monotonic() - job.started_s, time.sleep))
    except BaseException:  # an environment may call sys.exit
        crash = traceback.format_exc()
        print(crash, file=sys.stderr)
        os.write(report_fd, crash.encode()[-REPORT_BYTES:])
        return 1
    return 0


def call_main(payload: bytes, report_fd: int) -> int:
    """Run one function and report its result, its UsageError or its traceback."""
    result: CallResult
    try:
        function, arguments = cloudpickle.loads(payload)
        result = Returned(function(*arguments))
    except UsageError as error:
        result = Refused(error.problems)
    except BaseException as error:
        cause = f"{type(error).__name__}: {error}"[:MAX_CAUSE]
        result = Raised(traceback.format_exc()[-REPORT_BYTES // 2 :], cause)
    os.write(report_fd, cloudpickle.dumps(result))
    return 0
