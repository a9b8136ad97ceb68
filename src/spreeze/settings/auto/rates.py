"""What a measurement of this machine decides, and the rules of thumb where there is none."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from spreeze.machine.facts import Machine
from spreeze.settings.auto.devices import gpu_index, has_actor
from spreeze.settings.auto.resolver import AutoResolver
from spreeze.settings.config import config_with, knob, resolved
from spreeze.settings.probe import ProbeRequest, ProbeResult, best_threads
from spreeze.settings.speed import LARGE_BATCH, learning_speed
from spreeze.spec import EnvSpec

ENVS_BY_STEP_US = {200.0: 32, 1000.0: 16, math.inf: 8}
"""Environments per sampler, by the time of one step: the faster it is, the more acting costs beside it,
and one forward pass serves them all. But each takes memory, 1.2 MB in MuJoCo."""
MOST_ENVS, FEWEST_ENVS = 128, 4
"""Environments of all samplers together, if that leaves so many to each. With more, each is stepped more
rarely, so that what a new policy does shows later: 14 x 32 need a third longer than 14 x 8."""
CALLS = {"cpu": (0.015, 4), "gpu": (0.003, 64)}
"""How many seconds the learner computes between two publications, and the most updates in them."""
COMPILED = {"cpu": (0.8, 1.0), "gpu": (0.33, 2.8)}
"""Compiled against plain updates: which share of the cost that does not depend on the batch is saved,
and how many times as fast the rest becomes. The GPU's: fitted to FastSAC on an H200, batch 1,024 to 16,384.
HalfCheetah-v5 within 3 %; for Humanoid-v5 it says 12 % too many, for SAC a third too few."""
NEARLY_BEST = 0.85
SPLIT_GAIN = 1.05
"""What two devices have to bring before they are taken by themselves."""
MEASURED_KNOBS = (
    "learner.batch_size",
    "learner.threads",
    "learner.updates_per_publish",
)


def needs_probe(resolver: AutoResolver) -> bool:
    """Whether anything is left that a measurement decides."""
    config = resolver.config
    free = resolver.second or any(knob(config, name) == "auto" for name in MEASURED_KNOBS)
    # A clock does not repeat with a seed; and batches of segments are as large as learning wants them.
    off = config.serial or config.tuner.off or config.hyper.row_format().segment > 1
    return bool(free) and not off


def question(resolver: AutoResolver, spec: EnvSpec, machine: Machine) -> ProbeRequest:
    """What to measure."""
    config, on_gpu = resolver.config, resolver.on_gpu
    given = config.learner.threads
    second = config.devices[1] if len(config.devices) > 1 else resolver.second
    gpus = [gpu_index(device) for device in (config.devices[0], second or "cpu")]
    return ProbeRequest(
        algo=config.algo,
        hyper=dataclasses.asdict(config.hyper),
        spec=spec.to_json(),
        device=config.devices[0],
        second=second if has_actor(config.hyper, spec) else None,
        gpu=", ".join(machine.gpus[index].name for index in gpus if index is not None),
        precision=resolved(config.learner.precision),
        cores=machine.cores,
        threads=1 if on_gpu else None if given == "auto" else given,
    )


def rules_of_thumb(resolver: AutoResolver) -> None:
    """What was right on the machines that we know."""
    on_gpu, segment = resolver.on_gpu, resolver.config.hyper.row_format().segment
    rows, reason = 256, "a CPU computes small batches best"
    if on_gpu:
        rows, reason = LARGE_BATCH, "larger ones are worth no more"
    if segment > 1:
        steps = 32_768 if on_gpu else 1024
        rows, reason = steps // segment, f"segments of {segment} steps, {steps:,} in all"
    resolver.choose("learner.batch_size", rows, reason)
    reason = "publishing costs little beside them"
    resolver.choose("learner.updates_per_publish", 16 if on_gpu else 4, reason)


def environments(resolver: AutoResolver, spec: EnvSpec, measured: ProbeResult | None) -> None:
    """How many of them share a forward pass, the number of samplers being known."""
    if spec.step_us is None or resolver.config.serial or spec.vector_envs is not None:
        return
    room = max(MOST_ENVS // resolved(resolver.config.sampler.processes), FEWEST_ENVS)
    most = next(num for limit, num in ENVS_BY_STEP_US.items() if spec.step_us < limit)
    most = min(most, 2 ** int(math.log2(room)))
    reason = f"{spec.step_us:.0f} us a step; one forward pass serves them all"
    if measured is not None and most in measured.act_us:
        share = measured.act_us[most] / most / spec.step_us
        reason = f"{spec.step_us:.0f} us a step, acting adds {100 * share:.0f} %"
    resolver.choose("sampler.envs_per_process", most, reason)


def from_measurements(resolver: AutoResolver, machine: Machine, measured: ProbeResult) -> None:
    """What the probe says."""
    measured = _one_or_two(resolver, measured)
    hz = expected_hz(measured, resolver.on_gpu)
    best = max(hz, key=lambda batch: learning_speed(hz[batch], batch, 1.0))
    limit = f"; {measured.too_large:,} do not fit in memory" if measured.too_large else ""
    reason = f"{hz[best]:,.0f} updates/s expected, {hz[best] * best / 1e3:,.0f}k frames/s{limit}"
    batch = resolver.choose("learner.batch_size", best, reason)
    if not resolver.on_gpu:
        threads = best_threads(measured.thread_hz, machine.cores) if measured.thread_hz else 1
        rates = ", ".join(f"{num}: {rate:.0f}" for num, rate in measured.thread_hz.items())
        resolver.choose("learner.threads", threads, f"updates/s by threads: {rates}")
    near = min(hz, key=lambda size: abs(size - batch))
    call_s, most = CALLS["gpu" if resolver.on_gpu else "cpu"]
    per_call = 2 ** round(math.log2(min(max(hz[near] * call_s, 1), most)))
    reason = f"about {1e3 * per_call / hz[near]:.1f} ms between two publications"
    resolver.choose("learner.updates_per_publish", per_call, reason)


def _one_or_two(resolver: AutoResolver, measured: ProbeResult) -> ProbeResult:
    """Learn on two devices if that is faster; returns what holds for the choice."""
    if not measured.split_hz:
        return measured
    split = _on_two(measured)
    if len(resolver.config.devices) > 1:  # as the user wants it
        return split

    def best(rates: dict[int, float]) -> tuple[float, int]:
        return max((learning_speed(rate, batch, 1.0), batch) for batch, rate in rates.items())

    (one, size), (two, other) = best(measured.update_hz), best(measured.split_hz)
    rates = (
        f"updates/s before compilation: {measured.update_hz[size]:,.0f} on one GPU at batch {size}, "
        f"{measured.split_hz[other]:,.0f} with critic and actor on two at {other}"
    )
    resolver.reasons["device"] += f"; {rates}"
    if two < SPLIT_GAIN * one:
        return measured
    resolver.config = config_with(resolver.config, {"device": f"cuda:0,{resolver.second}"})
    return split


def _on_two(measured: ProbeResult) -> ProbeResult:
    """The same for two devices, if that was measured."""
    return dataclasses.replace(measured, update_hz=measured.split_hz or measured.update_hz)


def expected_hz(measured: ProbeResult, on_gpu: bool) -> dict[int, float]:
    """Updates per second by batch size, once they are compiled.

    Compilation takes some of what an update costs apart from its arithmetic, which is the part that
    does not grow with the batch; so the small ones gain most.
    """
    saved, faster = COMPILED["gpu" if on_gpu else "cpu"]
    (small, first), *rest = measured.update_hz.items()
    fixed_s = 0.0
    if rest:
        large, last = rest[-1]
        per_row_s = (1 / last - 1 / first) / (large - small)
        fixed_s = min(max(1 / first - small * per_row_s, 0.0), 1 / first)
    return {
        batch: faster / (1 / rate - saved * min(fixed_s, 1 / rate))
        for batch, rate in measured.update_hz.items()
    }


def batches_worth_a_try(measured: ProbeResult, devices: Sequence[str]) -> dict[int, float]:
    """Batch sizes that the probe saw little behind the best one, and the updates/s expected of them."""
    if len(devices) > 1:
        measured = _on_two(measured)
    hz = expected_hz(measured, on_gpu=devices[0] != "cpu")
    worth = {batch: learning_speed(rate, batch, 1.0) for batch, rate in hz.items()}
    least = NEARLY_BEST * max(worth.values())
    return {batch: rate for batch, rate in hz.items() if worth[batch] >= least}
