"""From a config to a finished run: check, start the processes, plan, supervise."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from spreeze.envs.envpool import EnvPoolTarget
from spreeze.envs.messages import messages_to
from spreeze.envs.targets import EnvTarget, adjusted, atari_protocol, is_named
from spreeze.envs.traps import describe_trap
from spreeze.errors import UsageError
from spreeze.machine.cache import cache_note
from spreeze.machine.facts import detect_machine, shared_memory_problem
from spreeze.run.callbacks import Callback
from spreeze.run.callbacks.desk import UserCode
from spreeze.run.callbacks.load import check_calls, load_callbacks
from spreeze.run.cluster_view import reach_cluster
from spreeze.run.evaluation_envs import evaluation_envs, tried_out
from spreeze.run.known_tasks import is_known, remember
from spreeze.run.new_folder import create_run
from spreeze.run.plan import Plan, describe_env, make_plan
from spreeze.run.processes.pool import Processes
from spreeze.run.processes.servers import ForkServers
from spreeze.run.signals import Interrupts
from spreeze.run.start_up import Milestone, StartUp
from spreeze.run.supervisor import Run, Show, Supervisor
from spreeze.run.wording import REPRODUCIBLE
from spreeze.settings.checks import check_config, check_folder
from spreeze.settings.config import Config
from spreeze.spec import EnvSpec

Announce = Callable[[Plan | Milestone | str], None]


class Begun(NamedTuple):
    """What a command has begun before it calls `launch`."""

    started_s: float
    """When it started, on the monotonic clock."""
    servers: ForkServers | None
    """The run's fork servers, if they are started already; they are closed at the end."""


def launch(
    config: Config,
    env: EnvTarget,
    show: Show,
    announce: Announce = lambda _: None,
    callbacks: Sequence[Callback | type[Callback]] = (),
    begun: Begun | None = None,
) -> Run:
    """Train until the end; UsageError if nothing was started, RunFailed if the run failed.

    `show` gets a snapshot a few times a second. Before that, `announce` gets each milestone that takes a
    while to reach, the plan, and lines of text. `callbacks` are called after those that the config names.
    """
    begun = begun or Begun(time.monotonic(), None)
    start_up = StartUp(begun.started_s)
    start_up.reach(Milestone.FLAGS)
    problems = [*check_config(config), *check_folder(Path(config.runs))]
    if not config.serial and (reason := shared_memory_problem()):
        problems.append(f"{reason}. Use --serial.")
    try:
        code = UserCode(load_callbacks(config.callback, callbacks), None, announce)
    except UsageError as error:
        problems += error.problems
    if not config.env:
        raise UsageError(problems)
    named, env = env, _as_sampled(env, config, problems)
    interrupts = Interrupts(config.serial)
    processes = None if config.serial else Processes(begun.servers or ForkServers.start())
    try:
        announce(Milestone.ENVIRONMENT)
        with messages_to(None) if config.serial else nullcontext():  # they come again below
            spec = describe_env(env, config, processes, problems)
        code = check_calls(code, env, config, processes)
        start_up.reach(Milestone.ENVIRONMENT)
        if not is_named(config.env):
            config = replace(config, env=spec.id)
        evaluation = tried_out(evaluation_envs(config, named), spec, config, processes)
        for note in (*_notes(config, env, spec), *reach_cluster(config, processes)):
            announce(note)
        plan = make_plan(config, spec, detect_machine(), processes, announce)
        start_up.reach(Milestone.PLAN)
        listed = config.verbose or not is_known(plan.config)
        names = tuple(type(callback).__name__ for callback in code.callbacks)
        plan = replace(plan, evaluation=evaluation, listed=listed, callbacks=names)
        announce(plan)
        remember(plan.config)
        announce(Milestone.ROLES)
        with interrupts.installed():
            run_dir = create_run(config, plan)
            start_up.reach(Milestone.FOLDER)
            try:
                supervisor = Supervisor(plan, env, run_dir, start_up, show, interrupts)
                supervisor.attach(code)
            except OSError as error:  # no memory, no files, a full disk
                raise UsageError([f"the run cannot start: {error.strerror}"]) from None
            with messages_to(run_dir.log("serial")) if config.serial else nullcontext():
                return supervisor.run(processes)
    finally:
        if processes is not None:
            processes.close()


def _as_sampled(env: EnvTarget, config: Config, problems: Sequence[str]) -> EnvTarget:
    """What samplers make of the environment."""
    if config.simulation.engine == "envpool":
        return EnvPoolTarget(env)
    if problems:  # the arguments may be among them
        return env
    return adjusted(env, config.env_kwargs, config.simulation.max_episode_steps)


def _notes(config: Config, env: EnvTarget, spec: EnvSpec) -> Iterator[str]:
    """What the user should know before the run."""
    if (protocol := atari_protocol(env)) is not None:
        yield f"Atari: {protocol}."
    for trap in spec.traps:
        yield f"Note: {describe_trap(trap)}"
    if config.reproducible and not config.serial:
        yield f"Note: {REPRODUCIBLE}."
    if note := cache_note():
        yield note
