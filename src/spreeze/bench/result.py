"""What the benchmark commands share: checks of their arguments, and writing of results."""

from __future__ import annotations

import platform
import sys
import time
from contextlib import redirect_stdout
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from spreeze.errors import UsageError
from spreeze.machine.facts import cpu_name, detect_machine
from spreeze.settings.checks import check_config
from spreeze.settings.config import Config
from spreeze.spec import EnvSpec
from spreeze.store.files import write_json

if TYPE_CHECKING:
    from spreeze.algos import Entry


def or_auto(value: int | None) -> int | str:
    """The value, or `auto` if there is none."""
    return "auto" if value is None else value


def check_seconds(seconds: float) -> None:
    """Refuse times that are too short to measure anything or absurdly long."""
    if not 0.5 <= seconds <= 3600:
        raise UsageError([f"--seconds {seconds}: must be from 0.5 to 3600."])


def whole_numbers(option: str, text: str, most: int) -> list[int]:
    """The numbers of a list with commas."""
    numbers = text.split(",")
    if not all(number.isdigit() and 0 < int(number) <= most for number in numbers):
        raise UsageError(
            [f"{option} {text}: must be whole numbers from 1 to {most}, such as 2,16."]
        )
    return [int(number) for number in numbers]


def spec_of(env: str) -> EnvSpec:
    """The sizes of an environment. What it prints does not mix with a result on standard output."""
    from spreeze.envs.inspect import inspect_env
    from spreeze.envs.messages import messages_to

    with messages_to(None), redirect_stdout(sys.stderr):
        return inspect_env(env, env)


def find_algorithm_for(algo: str, spec: EnvSpec) -> Entry:
    """An algorithm by its name, if it takes such actions."""
    from spreeze.algos import find_algorithm

    found = find_algorithm(algo)
    if not found.takes(spec):
        raise UsageError(
            [
                f"--algo {algo} does not support the actions of {spec.id}. Name another environment or algorithm."
            ]
        )
    return found


def checked(config: Config, seconds: float) -> Config:
    """Return the config, or refuse it before anything starts."""
    check_seconds(seconds)
    if problems := check_config(config):
        raise UsageError(problems)
    return config


def write_result(
    kind: str, arguments: list[str], file: str | None, began: float, result: dict[str, Any]
) -> None:
    """Write a result to `file`, with the command and the machine."""
    if file is not None:
        facts = {
            "command": ["spreeze", "bench", kind, *_without_json(arguments)],
            "machine": machine_facts(),
            "seconds": round(time.monotonic() - began, 1),
            **result,
        }
        write_json(facts, file)


def _without_json(arguments: list[str]) -> list[str]:
    """The arguments without `--json FILE`: where a result was written does not matter later."""
    if "--json" in arguments:
        i = arguments.index("--json")
        return arguments[:i] + arguments[i + 2 :]
    return arguments


def machine_facts() -> dict[str, Any]:
    """The machine and the versions that a result was measured with."""
    machine = detect_machine()
    return {
        "cpu": cpu_name(),
        "cores": machine.cores,
        "gpu": [gpu.name for gpu in machine.gpus],
        "python": platform.python_version(),
        **{name: version(name) for name in ("spreeze", "torch", "numpy", "gymnasium")},
    }


def machine_label(facts: dict[str, Any]) -> str:
    """A short name of the machine, for file names."""
    gpus: list[str] = facts["gpu"]
    return gpus[0].split()[-1].lower() if gpus else f"{facts['cores']}cores"
