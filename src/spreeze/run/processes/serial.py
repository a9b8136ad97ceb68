"""Serial mode: all roles in this process, each doing one unit of work in turn.

For debugging with breakpoints, and for runs that are bit-reproducible: time is counted in env steps,
so the result does not depend on the speed of the machine.

At each checkpoint all roles are closed and started again from it, exactly as a resumed run starts them.
So a run that was interrupted and resumed does the same as one that was not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator

from spreeze.roles.context import Job, join, start
from spreeze.wires.arena import Arena
from spreeze.wires.control import Control
from spreeze.wires.experience import Experience
from spreeze.wires.weights import Weights

STEPS_PER_S = 1000


def run_serially(jobs: list[Job], arena: Arena) -> Generator[None, None, None]:
    """Run the roles in turn; each `yield` ends one round. Closing the generator closes the roles."""
    while True:
        yield from _run_to_boundary(jobs, arena)
        _start_over(arena)
        jobs = [_continued(job) for job in jobs]


def _run_to_boundary(jobs: list[Job], arena: Arena) -> Generator[None, None, None]:
    """Run the roles until a checkpoint is due, and close them; the learner writes it when it is closed."""
    control = Control(arena)

    def now() -> float:
        return control.env_steps / STEPS_PER_S

    end_s = now() + jobs[0].config.checkpoint.every_s
    asked = int(control.supervisor["checkpoints_asked"])
    contexts = [join(job, arena, now, lambda _: None) for job in jobs]
    roles = [(context, start(context)) for context in contexts]
    try:
        while now() < end_s and control.supervisor["checkpoints_asked"] == asked:
            for context, role in roles:
                next(role)
                context.counters["beats"] += 1
            yield
        for context in contexts:
            context.at_boundary = True
    finally:
        for context, role in roles:
            role.close()
            context.close()


def _start_over(arena: Arena) -> None:
    """Leave the wires as a resumed run finds them: nothing published, empty lanes, other seeds."""
    Weights(arena).clear()
    Experience(arena, block=1).clear()
    control = Control(arena)
    control.supervisor["resumed_steps"] = control.env_steps


def _continued(job: Job) -> Job:
    """The job, continuing from the run's own newest boundary."""
    config = dataclasses.replace(job.config, resume=str(job.run_path))
    return dataclasses.replace(job, config=config)
