"""Serial backend: all roles in this process, one unit of work each in turn.

For breakpoints and for runs that repeat bit by bit: time is counted in env steps, so that nothing
depends on how fast the machine is.
"""

from __future__ import annotations

from collections.abc import Iterator

from spreeze.roles.context import Context, Job, join, start
from spreeze.wires.arena import Arena

STEPS_PER_S = 1000


def run_serially(jobs: list[Job], arena: Arena) -> Iterator[None]:
    """Drive the roles in turn; each `yield` ends one round, closing the generator ends the roles."""
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
            role.close()  # type: ignore[attr-defined]
            context.recorder.close()
