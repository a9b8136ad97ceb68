"""Entry points of child processes: a role, or a single function call."""

from __future__ import annotations

import os
import sys
import time
import traceback

import cloudpickle
import setproctitle

from spreeze.errors import UsageError
from spreeze.faults import fault_point
from spreeze.machine import shared_gpu
from spreeze.machine.affinity import keep_to_cores
from spreeze.roles.context import drive, join
from spreeze.run.processes.call_result import CallResult, Raised, Refused, Returned
from spreeze.store.logs import count_lost_prints
from spreeze.wires.arena import Arena


def role_main(payload: bytes, report_fd: int, arena_fd: int) -> int:
    """Run a role; if it raises, the traceback goes to its log and to the supervisor."""
    try:
        job, blocks = cloudpickle.loads(payload)
        setproctitle.setproctitle(f"spreeze {job.name} {job.run_path.name}")
        if job.shared_gpu is not None:
            os.environ[shared_gpu.FOLDER] = str(job.shared_gpu)
        arena = Arena(arena_fd, blocks)
        if job.config.cores == "separate":
            keep_to_cores(job.role == "learner", job.config.learner_cores)
        context = join(
            job, arena, lambda: time.monotonic() - job.started_s, time.sleep, threads=True
        )
        count_lost_prints(context.count_loss, context.thread)
        fault_point("role.joined")
        drive(context)
    except BaseException as error:  # an environment may call sys.exit
        crash = Raised.from_exception(error, traceback.format_exc())
        print(crash.traceback, file=sys.stderr)
        _report(crash, report_fd)
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
        result = Raised.from_exception(error, traceback.format_exc())
    _report(result, report_fd)
    return 0


def _report(result: CallResult, report_fd: int) -> None:
    with open(report_fd, "wb") as pipe:
        pipe.write(cloudpickle.dumps(result))
