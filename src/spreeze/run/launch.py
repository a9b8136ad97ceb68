"""The life of a run on one page: start the roles, watch them, restart what was killed, stop, report."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from spreeze.envs.envpool import EnvPoolTarget
from spreeze.envs.targets import EnvTarget
from spreeze.errors import UsageError
from spreeze.machine.facts import detect_machine, shared_memory_problem
from spreeze.run.plan import Plan, create_run, describe_env, make_plan
from spreeze.run.processes.pool import (
    Processes,
)
from spreeze.run.signals import Interrupts
from spreeze.run.supervisor import Run, Show, Supervisor
from spreeze.settings.checks import check_config, check_folder
from spreeze.settings.config import Config


def launch(
    config: Config,
    env: EnvTarget,
    show: Show,
    started_s: float | None = None,
    announce: Callable[[Plan | str], None] = lambda _: None,
) -> Run:
    """Train until the end; UsageError if nothing was started, RunFailed if the run has failed.

    `announce` gets the plan before anything starts, and a line before what takes long; `show` gets
    the run now and then.
    """
    started_s = time.monotonic() if started_s is None else started_s
    problems = [*check_config(config), *check_folder(Path(config.runs))]
    if not config.serial and (reason := shared_memory_problem()):
        problems.append(f"{reason}. Use --serial.")
    if not config.env:
        raise UsageError(problems)
    if config.simulation.engine == "envpool":
        env = EnvPoolTarget(env)
    interrupts = Interrupts(config.serial)
    processes = None if config.serial else Processes(with_torch=True)
    try:
        spec = describe_env(env, config, processes, problems)
        plan = make_plan(config, spec, detect_machine(), processes, announce)
        announce(plan)
        with interrupts.installed():
            supervisor = Supervisor(
                plan, env, create_run(config, plan), started_s, show, interrupts
            )
            return supervisor.run(processes)
    finally:
        if processes is not None:
            processes.close()
