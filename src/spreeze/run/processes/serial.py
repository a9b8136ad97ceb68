"""Serial mode: all roles in this process, each doing one unit of work in turn.

For debugging with breakpoints, and for runs that are bit-reproducible: time is counted in env steps,
so the result does not depend on the speed of the machine.
"""

from __future__ import annotations

from collections.abc import Generator

from spreeze.roles.context import Context, Job, join, start
from spreeze.wires.arena import Arena

STEPS_PER_S = 1000


def run_serially(jobs: list[Job], arena: Arena) -> Generator[None, None, None]:
    """Run the roles in turn; each `yield` ends one round. Closing the generator closes the roles."""
    clock: list[Context] = []

    def now() -> float:
        return clock[0].control.env_steps / STEPS_PER_S if clock else 0.0

    contexts = [join(job, arena, now, lambda _: None) for job in jobs]
    clock.append(contexts[0])
    roles = [(context, start(context)) for context in contexts]
    try:
        while True:
            for context, role in roles:
                next(role)
                context.counters["beats"] += 1
            yield
    finally:
        for context, role in roles:
            role.close()
            context.recorder.close()
