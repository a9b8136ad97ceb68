"""A check-up of an environment: everything that is known to break runs, tested in a separate process."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import traceback
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import psutil

from spreeze.envs.checkup.checks import CHECKS, Grade, Patient
from spreeze.envs.targets import EnvTarget
from spreeze.errors import UsageError

LIMIT_S = 120.0
"""How long one check may take."""


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    what: str
    grade: Grade
    found: str
    advice: str = ""


def check_up(target: EnvTarget, name: str, limit_s: float = LIMIT_S) -> list[Check]:
    """Run all checks. If the process crashes or hangs, that is the last finding."""
    context = get_context("fork")
    reading, writing = context.Pipe(duplex=False)
    process = context.Process(target=_examine, args=(writing, target, name))
    process.start()
    writing.close()
    found: list[Check] = []
    doing = "start"
    try:
        while reading.poll(limit_s):
            message: Check | str | None = reading.recv()
            if message is None:
                return found
            if isinstance(message, str):
                doing = message
            else:
                found.append(message)
        why = f"took longer than {limit_s:.0f} s"
        advice = "A run replaces a process that hangs: raise --limits, or find what it waits for."
    except EOFError:
        process.join()
        why = f"the process ended with {process.exitcode}"
        advice = "A negative number is a signal: -11 is a crash in native code."
    finally:
        _end(process)
        reading.close()
    return [*found, Check(doing, Grade.PROBLEM, why, advice)]


def _end(process: Any) -> None:
    """End the process and the programs that it has started."""
    family: list[psutil.Process] = []
    with suppress(psutil.Error):
        family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.join()
    process.close()
    for child in family:
        with suppress(psutil.Error):
            child.send_signal(signal.SIGKILL)


def _examine(connection: Connection, target: EnvTarget, name: str) -> None:
    """In the process: one check after the other, until one makes the rest pointless."""
    with tempfile.TemporaryFile() as output:
        for number in (1, 2):  # what it prints is measured
            os.dup2(output.fileno(), number)
        sys.stdout = sys.stderr = open(1, "w", closefd=False)  # noqa: SIM115
        patient = Patient(target, name, output.fileno())
        for what, check in CHECKS.items():
            connection.send(what)
            try:
                results = list(check(patient))
            except (Exception, SystemExit) as error:
                text = str(error) if isinstance(error, UsageError) else traceback.format_exc()
                connection.send(
                    Check(what, Grade.PROBLEM, text.strip(), "Training would stop here.")
                )
                break
            for grade, found, advice in results:
                connection.send(Check(what, grade, found, advice if grade != Grade.OK else ""))
    connection.send(None)
    signal.pause()  # the parent ends this process, and the programs that the environment has started
