"""The command line: finds the command and turns its end into an exit code.

Each command is a module under `commands`, imported when it runs: `--help` loads no torch.
"""

from __future__ import annotations

import difflib
import os
import sys
import time
from importlib import import_module

COMMANDS = {
    "train": "train a policy until a target, a time or a number of steps is reached",
    "eval": "play a trained policy without noise and print its returns",
    "play": "show a trained policy in a window, or film it",
    "plot": "learning curves as an image",
    "dashboard": "the live page for a run or for all runs of a folder",
    "runs": "a table of the runs in a folder",
    "tune": "find the settings for this machine without training",
    "export": "write a trained policy for deployment, as ONNX",
    "algos": "the algorithms, one line each",
    "bench": "measure, always against a reference in the same run",
    "doctor": "check this machine and say what to do",
}
OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


def main() -> None:
    """Run the command named on the command line and exit with its code."""
    started_s = time.monotonic()
    _open_closed_streams()
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help", "help"):
        _print_help()
        sys.exit(OK)
    # An environment of the user's own lies where he is; last, so that it cannot shadow a library.
    sys.path.append(os.getcwd())
    try:
        from spreeze.errors import RunFailed, UsageError
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    try:
        if name == "--version":
            from spreeze import __version__

            print(__version__)
            sys.exit(OK)
        if name not in COMMANDS:
            near = difflib.get_close_matches(name, COMMANDS, 1)
            hint = (
                f"Did you mean spreeze {near[0]}?" if near else f"There are: {', '.join(COMMANDS)}."
            )
            raise UsageError([f"there is no command {name!r}. {hint}"])
        if name == "train" and not {"-h", "--help", "--serial"} & set(arguments):
            from spreeze.run.processes.servers import start_early

            start_early()
        module = "bench.commands" if name == "bench" else f"cli.commands.{name}"
        sys.exit(import_module(f"spreeze.{module}").main(arguments, started_s))
    except UsageError as error:
        for problem in error.problems:
            print(f"spreeze: {problem}", file=sys.stderr)
        sys.exit(USAGE)
    except RunFailed as error:
        print(error, file=sys.stderr)
        sys.exit(FAILED)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _open_closed_streams() -> None:
    """Standard streams that the caller closed: their numbers must not go to other files."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), fd)
            os.set_inheritable(fd, True)
            setattr(sys, name, os.fdopen(fd, "w" if fd else "r"))


def _print_help() -> None:
    print("Spreeze: reinforcement learning at full speed on one desktop.\n")
    for name, what in COMMANDS.items():
        print(f"  spreeze {name:9} {what}")
    print("\nEvery command explains itself:  spreeze train --help")
    print("First run:  spreeze train Pendulum-v1 --target -200")
