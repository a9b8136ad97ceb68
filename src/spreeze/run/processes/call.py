"""A function call in a throw-away process, where prints and crashes stay."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import cloudpickle

from spreeze.errors import UsageError
from spreeze.run.processes.call_result import Raised, Refused
from spreeze.run.processes.pool import Processes

CALL_LIMIT_S, KILL_S = 120.0, 5.0
MOST_OUTPUT, KEPT_OUTPUT = 64 << 20, 1 << 20
"""When printed output is dropped, and how much of its end is kept."""


class CallFailed(RuntimeError):
    """A function raised in another process; the message is its traceback."""

    def __init__(self, traceback: str, cause: str) -> None:
        """`cause` is the problem in one line."""
        super().__init__(traceback)
        self.cause = cause


class CallTooLate(CallFailed):
    """A function did not return in time."""


class CallKilled(CallFailed):
    """The process of a function was killed from outside."""


def call(
    processes: Processes,
    function: Callable[..., Any],
    *arguments: Any,
    with_torch: bool = False,
    limit_s: float = CALL_LIMIT_S,
) -> Any:
    """Call a function in a throw-away process and return its result.

    UsageError is raised as it is. Any other exception becomes a CallFailed with its traceback: the
    exception itself may not be picklable. StartFailed if there can be no process.
    """
    output = os.memfd_create("output")
    try:
        payload = cloudpickle.dumps((function, arguments))
        function_name = "spreeze.run.processes.entry:call_main"
        child = processes.start("probe", function_name, payload, output, with_torch=with_torch)
        deadline = time.monotonic() + limit_s
        while child.exit_code is None and (left_s := deadline - time.monotonic()) > 0:
            processes.wait([child], min(left_s, 0.1))
            if os.fstat(output).st_blocks * 512 > MOST_OUTPUT:
                os.ftruncate(output, 0)  # what comes later is written behind a hole
        end = os.fstat(output).st_size
        printed = os.pread(output, KEPT_OUTPUT, max(0, end - KEPT_OUTPUT)).decode(errors="replace")
    finally:
        os.close(output)
    if child.exit_code is None:
        child.kill()
        processes.wait([child], KILL_S)
        cause = f"It did not return within {limit_s:.0f} s."
        raise CallTooLate(f"{printed}\n{cause}", cause)
    result = child.result
    if result is None and child.exit_code == -signal.SIGKILL:
        cause = "Its process was killed by signal 9: probably there was not enough memory."
        raise CallKilled(f"{printed}\n{cause}", cause)
    if result is None:
        cause = f"Its process was ended by {child.how_it_ended}."
        raise CallFailed(f"{printed}\n{cause}", cause)
    if isinstance(result, Refused):
        raise UsageError(result.problems)
    if isinstance(result, Raised):
        raise CallFailed(result.traceback, result.cause)
    return result.value
