"""`spreeze.train`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import Any, Literal, overload

from spreeze.api.notebook import NotebookScreen, in_notebook
from spreeze.api.run import Run
from spreeze.cli.screen import Screen
from spreeze.envs.targets import EnvTarget, target_name
from spreeze.errors import UsageError
from spreeze.run.callbacks import Callback
from spreeze.run.launch import launch
from spreeze.settings.build import build_config, each_seed
from spreeze.settings.checks import check_config
from spreeze.settings.config import Config


@overload
def train(
    env: EnvTarget | None = None,
    *,
    algo: str | None = None,
    time: str | float | None = None,
    steps: str | float | None = None,
    target: float | None = None,
    seed: int | None = None,
    seeds: None = None,
    device: str | None = None,
    serial: bool | None = None,
    reproducible: bool | None = None,
    name: str | None = None,
    runs: str | Path | None = None,
    preset: str | None = None,
    resume: str | Path | Run | None = None,
    start_from: str | Path | Run | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    track: Literal["wandb", "trackio"] | None = None,
    dashboard: bool = False,
    quiet: bool = False,
    callbacks: Sequence[Callback | type[Callback]] = (),
    **knobs: Any,
) -> Run: ...


@overload
def train(
    env: EnvTarget | None = None, *, seeds: int | Sequence[int], **arguments: Any
) -> list[Run]: ...


def train(
    env: EnvTarget | None = None,
    *,
    algo: str | None = None,
    time: str | float | None = None,
    steps: str | float | None = None,
    target: float | None = None,
    seed: int | None = None,
    seeds: int | Sequence[int] | None = None,
    device: str | None = None,
    serial: bool | None = None,
    reproducible: bool | None = None,
    name: str | None = None,
    runs: str | Path | None = None,
    preset: str | None = None,
    resume: str | Path | Run | None = None,
    start_from: str | Path | Run | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    track: Literal["wandb", "trackio"] | None = None,
    dashboard: bool = False,
    quiet: bool = False,
    callbacks: Sequence[Callback | type[Callback]] = (),
    **knobs: Any,
) -> Run | list[Run]:
    """Train until a target, a time or a number of steps is reached, or until Ctrl-C.

    `env` is a Gymnasium id, a class, or a function that makes an environment; it may be left out with `resume`
    and `start_from`, which begins a new run with the networks of another one.
    Every argument but `quiet` and `callbacks` is a knob of the command line with the same meaning, and None leaves it at its default, or
    at that of the resumed run. The other knobs go by name, with two underscores for the dot: `learner__batch_size=512`;
    `**{"learner.batch_size": 512}` is the same. `dashboard` opens a port for the live page, which a program that calls
    a library does not expect; so it is off unless you ask for it. `quiet` prints nothing; with `serial`, neither does your
    environment. `callbacks` are called while it trains (docs/callbacks.md). With `seeds`, such as `[1, 2, 3]`, or `5` for five from
    `seed` on, a run for each is trained, one after another, and they are returned as a list.

    Wrong knobs raise UsageError before anything starts. A run that fails raises RunFailed with the cause. After Ctrl-C
    the run is returned, with `run.summary["state"] == "interrupted"`.
    """
    named: dict[str, Any] = {"env.kwargs": env_kwargs}
    named |= {"algo": algo, "time": time, "steps": steps, "target": target, "seed": seed}
    named |= {"device": device, "serial": serial, "reproducible": reproducible, "name": name}
    named |= {"runs": _text(runs), "preset": preset, "resume": _text(resume), "track": track}
    named |= {"start_from": _text(start_from)}
    named["seeds"] = None if seeds is None else _seeds_as_typed(seeds)
    given = {key: value for key, value in named.items() if value is not None}
    given |= {"dashboard": dashboard} | _dotted(knobs, given)
    config = build_config("" if env is None else target_name(env), given)
    of = config.env if env is None else env
    if config.seeds is None:
        return _train_one(config, of, callbacks, quiet)
    if problems := check_config(config):
        raise UsageError(problems)
    ended: list[Run] = []
    for one in each_seed(config):
        ended.append(_train_one(one, of, callbacks, quiet))
        if ended[-1].summary["state"] == "interrupted":
            break
    return ended


def _train_one(
    config: Config, env: EnvTarget, callbacks: Sequence[Callback | type[Callback]], quiet: bool
) -> Run:
    """Train one run to its end."""
    if quiet:
        with _silence() if config.serial else nullcontext():  # else roles print to their logs
            ended = launch(config, env, lambda *_: None, callbacks=callbacks)
    else:
        with NotebookScreen() if in_notebook() else Screen() as screen:
            ended = launch(config, env, screen, announce=screen.announce, callbacks=callbacks)
    return Run.ended(ended.path, ended.summary, env, config.algo)


@contextmanager
def _silence() -> Iterator[None]:
    """Send what is printed nowhere."""
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        yield


def _dotted(knobs: Mapping[str, Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Knobs by the names that they have on the command line; UsageError if one is given twice."""
    found: dict[str, Any] = {}
    for name, value in knobs.items():
        dotted = name.replace("__", ".")
        if dotted in found or dotted in named:
            raise UsageError([f"{dotted} is given twice."])
        found[dotted] = value
    return found


def _text(place: str | Path | Run | None) -> str | None:
    """A folder as it is typed."""
    return None if place is None else str(place.path if isinstance(place, Run) else place)


def _seeds_as_typed(seeds: int | Sequence[int]) -> str:
    """Seeds as they are typed: a number alone is how many there are, one seed has a comma behind it."""
    if isinstance(seeds, Sequence) and not isinstance(seeds, str):
        return "".join(f"{seed}," for seed in seeds)
    return str(seeds)
