"""When an environment counts as hung, from how long it usually takes; when it uses too much memory."""

from __future__ import annotations

from spreeze.machine.facts import Machine
from spreeze.settings.auto.reason import Source
from spreeze.settings.auto.resolver import AutoResolver
from spreeze.settings.config import resolved
from spreeze.spec import EnvSpec

CONSTRUCT_TIMES, CONSTRUCT_S = 20, 120.0
RESET_TIMES, RESET_S = 50, 60.0
STEP_TIMES, STEP_S = 1000, 30.0
MEMORY_MB = 1000


def choose_limits(resolver: AutoResolver, spec: EnvSpec, machine: Machine) -> None:
    """Choose the limits. They are generous: a process that is replaced loses its episodes."""
    num = resolved(resolver.config.sampler.processes)
    share_mb = max(MEMORY_MB, machine.memory_bytes // num // 2_000_000)
    sharing = "1 sampler has" if num == 1 else f"{num} samplers share"
    reason = f"{sharing} half of the memory, at least {MEMORY_MB:,} MB each"
    resolver.choose("limits.memory_mb", float(share_mb), reason)
    envs = resolved(resolver.config.sampler.envs_per_process)
    step_s = None if spec.step_us is None else 1e-6 * spec.step_us * envs
    for name, usual_s, times, least_s in (
        ("construct_s", spec.construct_s, CONSTRUCT_TIMES, CONSTRUCT_S),
        ("reset_s", spec.reset_s, RESET_TIMES, RESET_S),
        ("step_s", step_s, STEP_TIMES, STEP_S),
    ):
        limit_s, reason, source = least_s, f"at least {least_s:.0f} s", Source.RULE
        if usual_s is not None and times * usual_s > least_s:
            limit_s, source = times * usual_s, Source.MEASURED
            reason = f"{times:,} times {usual_s:.3g} s, which is usual here"
        resolver.choose(f"limits.{name}", limit_s, reason, source)
