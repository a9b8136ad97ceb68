"""The command line: finds the command, runs it, and turns its result into an exit code.

A command is imported only when it runs, so `--help` loads no torch. Imported by `spreeze` and `python -m spreeze` only.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from importlib import import_module
from typing import IO

COMMANDS = {
    "train": "train a policy until a target, a time or a number of steps is reached",
    "eval": "play a trained policy without noise and print its returns",
    "play": "show a trained policy in a window, or record a video",
    "plot": "draw learning curves as an image",
    "dashboard": "serve the live page of a run or of a folder of runs",
    "sweep": "find the best values of knobs in many runs",
    "runs": "list the runs in a folder",
    "tune": "measure this machine and print the settings, without training",
    "export": "write a trained policy for deployment, as ONNX",
    "algos": "list the algorithms",
    "bench": "measure speed, always against a reference in the same run",
    "doctor": "check this machine and say what to do",
    "completion": "print a script that lets your shell complete commands and flags",
}
ACTING = ("eval", "play")
"""Commands whose process runs a policy."""
OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
SMALLEST_RUN, SMALLEST_SPACE = 5, 700 << 20
"""Processes of the smallest run, and the address space of its learner: mostly torch itself."""


def main() -> None:
    """Run the command named on the command line and exit with its code."""
    started_s = time.monotonic()
    _open_closed_streams()
    try:
        _main(started_s)
    finally:
        _flush_streams()


def _main(started_s: float) -> None:
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help", "help"):
        _print_help()
        sys.exit(OK)
    try:
        from spreeze.errors import RunFailed, UsageError
        from spreeze.user_code import allow_named

        allow_named(arguments, os.getcwd())
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    try:
        if name == "--version":
            from spreeze import __version__

            print(__version__)
            sys.exit(OK)
        if name not in COMMANDS:
            from spreeze.text import nearest

            near = nearest(name, COMMANDS)
            hint = (
                f"Did you mean spreeze {near}?"
                if near
                else f"The commands are: {', '.join(COMMANDS)}."
            )
            raise UsageError([f"there is no command {name!r}. {hint}"])
        sys.exit(_run(name, arguments, started_s))
    except UsageError as error:
        from spreeze.text import plain_lines  # a message may quote a stored run

        _say("\n".join(f"spreeze: {plain_lines(problem)}" for problem in error.problems))
        sys.exit(USAGE)
    except RunFailed as error:
        _say(str(error))
        sys.exit(FAILED)
    except BrokenPipeError:  # as in `spreeze runs | head -1`
        if name == "train":
            raise
        sys.exit(FAILED)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _run(name: str, arguments: list[str], started_s: float) -> int:
    """Import a command and run it; returns its exit code."""
    if name == "train" and not {"-h", "--help", "--serial"} & set(arguments):
        return _train(arguments, started_s)
    if name in ACTING:
        from spreeze.machine.threads import ONE_THREAD

        for variable, value in ONE_THREAD.items():
            os.environ.setdefault(variable, value)
    module = "bench.commands" if name == "bench" else f"cli.commands.{name}"
    code: int = import_module(f"spreeze.{module}").main(arguments, started_s)
    return code


def _train(arguments: list[str], started_s: float) -> int:
    """Train with fork servers that import torch while this process still reads its flags."""
    from spreeze.errors import UsageError
    from spreeze.machine.limits import limit_problems
    from spreeze.run.processes.servers import ForkServers

    try:
        # Before the servers: they would fail in ways that say nothing about the limit.
        if problems := list(limit_problems(SMALLEST_RUN, SMALLEST_SPACE)):
            raise UsageError(problems)
        servers = ForkServers.start()
    except OSError as error:
        raise UsageError([f"no process can be started: {error.strerror}"]) from None
    try:
        from spreeze.cli.commands.train import main as train

        return train(arguments, started_s, servers)
    finally:  # wrong flags end here, too
        servers.close()


def _open_closed_streams() -> None:
    """Reopen standard streams that the caller has closed, so that other files do not get their descriptors."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), fd)
            os.set_inheritable(fd, True)
            setattr(sys, name, os.fdopen(fd, "w" if fd else "r"))


def silence(stream: IO[str]) -> None:
    """Send what a stream still holds, and all that follows, nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with contextlib.suppress(OSError, ValueError):
        os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _say(text: str) -> None:
    """Print to standard error, if anyone reads it."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def _flush_streams() -> None:
    """Write what is left. What nobody reads or no disk holds is dropped: it must not change the exit code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            silence(stream)


def _print_help() -> None:
    print("Spreeze: reinforcement learning at full speed on one desktop.\n")
    for name, what in COMMANDS.items():
        print(f"  spreeze {name:10} {what}")
    print("\nHelp for one command:  spreeze train --help")
    print("First run:  spreeze train Pendulum-v1 --target -200")
