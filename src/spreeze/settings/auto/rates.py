"""What the probe of this machine decides, and rules of thumb for runs without a probe."""

from __future__ import annotations

import dataclasses
import math

from spreeze.algos import find_algorithm
from spreeze.machine.facts import Machine
from spreeze.settings.auto.devices import gpu_index
from spreeze.settings.auto.processes import FEW_CORES
from spreeze.settings.auto.reason import Source
from spreeze.settings.auto.resolver import AutoResolver
from spreeze.settings.config import Config, get_knob, resolved
from spreeze.settings.defaults import config_with
from spreeze.settings.probe import ProbeRequest, ProbeResult, best_threads
from spreeze.settings.speed import LARGE_BATCH, learning_speed
from spreeze.spec import EnvSpec

PUBLISH_EVERY = {"cpu": (0.015, 4), "gpu": (0.003, 64)}
"""Seconds that the learner computes between two publications, and the most updates in them."""
COMPILED_GAIN = {"cpu": (0.8, 1.0), "gpu": (0.33, 2.8)}
"""What compilation gains: the share of the cost independent of the batch that it saves, and the speed-up of
the rest. The GPU's are fitted to FastSAC on an H200, batch 1,024 to 16,384: within 3 % for HalfCheetah-v5,
12 % too high for Humanoid-v5, a third too low for SAC."""
IMAGE_BATCH = 512
"""On an H200 Nature's convolutions make 1,860 updates/s at 256, 1,250 at 512, 190 at 2,048, while samplers play Pong."""
NEARLY_BEST = 0.85
"""Share of the best batch size's learning speed from which another one is worth trying during the run."""
SEVERAL_GAIN = 1.05
"""Speed-up from which several devices train without being asked."""
MEASURED_KNOBS = (
    "learner.batch_size",
    "learner.threads",
    "learner.updates_per_publish",
)


def needs_probe(resolver: AutoResolver) -> bool:
    """Whether a measurement decides anything."""
    config = resolver.config
    free = resolver.ranks or any(get_knob(config, name) == "auto" for name in MEASURED_KNOBS)
    # A serial run must not depend on a clock; and learning, not speed, decides on batches of segments.
    off = config.serial or config.tuner.off or config.hyper.row_format().segment > 1
    return bool(free) and not off


def rules_suffice(request: ProbeRequest) -> bool:
    """Whether rules of thumb choose what a measurement would: then it only costs seconds.

    A measurement finds how many threads of many cores learn, and whether more GPUs help.
    """
    several = request.second is not None or request.ranks
    return not several and (request.device != "cpu" or request.cores <= FEW_CORES)


def probe_request(resolver: AutoResolver, spec: EnvSpec, machine: Machine) -> ProbeRequest:
    """What to measure."""
    config, on_gpu = resolver.config, resolver.on_gpu
    given = config.learner.threads
    second = config.devices[1] if config.is_split else resolver.second_device
    ranks = config.devices if config.num_ranks > 1 else resolver.ranks
    gpus = dict.fromkeys(map(gpu_index, (config.devices[0], second or "cpu", *ranks)))
    return ProbeRequest(
        algo=config.algo,
        hyper=dataclasses.asdict(config.hyper),
        spec=spec.to_json(),
        device=config.devices[0],
        second=second if config.hyper.has_actor else None,
        ranks=ranks if find_algorithm(config.algo).shares_batches else (),
        gpu=", ".join(machine.gpus[index].name for index in gpus if index is not None),
        precision=resolved(config.learner.precision),
        cores=machine.cores,
        threads=1 if on_gpu else None if given == "auto" else given,
    )


def choose_without_probe(resolver: AutoResolver, spec: EnvSpec) -> None:
    """Choose batch size and publication by rules of thumb from the machines that were measured."""
    on_gpu, segment = resolver.on_gpu, resolver.config.hyper.row_format().segment
    rows, reason = 128, "small batches are fastest on a CPU"
    if on_gpu:
        rows, reason = LARGE_BATCH, "larger batches learn no faster"
    if segment > 1:
        steps = 32_768 if on_gpu else 1024
        rows, reason = steps // segment, f"segments of {segment} steps, {steps:,} in all"
        rows -= rows % resolver.config.num_ranks
    if spec.images and segment == 1:
        rows, reason = 32, "convolutions are slow on a CPU"
        if on_gpu:
            rows, reason = IMAGE_BATCH, "larger batches of images are slower and learn no faster"
    resolver.choose("learner.batch_size", rows, reason)
    reason = "so that publishing costs little"
    num = 16 if on_gpu else 4
    if spec.images:
        num, reason = (4, "so that acting waits briefly for updates") if on_gpu else (1, reason)
    resolver.choose("learner.updates_per_publish", num, reason)


def choose_from_probe(resolver: AutoResolver, machine: Machine, measured: ProbeResult) -> None:
    """Choose devices, batch size, threads and publication by what was measured."""
    measured = _choose_devices(resolver, measured)
    hz = expected_hz(measured, resolver.on_gpu)
    best = max(hz, key=lambda batch: learning_speed(hz[batch], batch, 1.0))
    limit = f"; {measured.too_large:,} do not fit in memory" if measured.too_large else ""
    reason = f"{hz[best]:,.0f} updates/s expected, {hz[best] * best / 1e3:,.0f}k frames/s{limit}"
    batch = resolver.choose("learner.batch_size", best, reason, Source.MEASURED)
    if not resolver.on_gpu:
        threads = best_threads(measured.thread_hz, machine.cores) if measured.thread_hz else 1
        rates = ", ".join(f"{num}: {rate:.0f}" for num, rate in measured.thread_hz.items())
        reason = f"updates/s by threads: {rates}"
        resolver.choose("learner.threads", threads, reason, Source.MEASURED)
    near = min(hz, key=lambda size: abs(size - batch))
    call_s, most = PUBLISH_EVERY["gpu" if resolver.on_gpu else "cpu"]
    per_call = 2 ** round(math.log2(min(max(hz[near] * call_s, 1), most)))
    reason = f"about {1e3 * per_call / hz[near]:.1f} ms between two publications"
    resolver.choose("learner.updates_per_publish", per_call, reason, Source.MEASURED)


def _choose_devices(resolver: AutoResolver, measured: ProbeResult) -> ProbeResult:
    """Train on several devices if that is faster; returns the rates of the choice."""
    if len(resolver.config.devices) > 1:  # the user chose
        return _on_devices(measured, resolver.config)
    forms = {"on one GPU": ("cuda", measured.update_hz)}
    if measured.split_hz:
        names = f"cuda:0,{resolver.second_device}"
        forms["with critic and actor on two"] = (names, measured.split_hz)
    if measured.shared_hz:
        many = len(resolver.ranks)
        forms[f"with {many} that share each batch"] = ("+".join(resolver.ranks), measured.shared_hz)
    if len(forms) == 1 and measured.not_shared is None:
        return measured
    best = {form: _best(rates) for form, (_, rates) in forms.items()}
    said = [f"{forms[f][1][size]:,.0f} {f} at batch {size}" for f, (_, size) in best.items()]
    if measured.not_shared is not None:
        said.append(f"batches could not be shared ({measured.not_shared})")
    found = resolver.reasons["device"]
    text = f"{found.text}; updates/s before compilation: {', '.join(said)}"
    resolver.reasons["device"] = dataclasses.replace(found, text=text)
    fastest = max(best, key=lambda form: best[form][0])
    if best[fastest][0] < SEVERAL_GAIN * best["on one GPU"][0]:
        return measured
    device, rates = forms[fastest]
    resolver.config = config_with(resolver.config, {"device": device})
    return dataclasses.replace(measured, update_hz=rates)


def _best(rates: dict[int, float]) -> tuple[float, int]:
    """The largest speed of learning, and its batch size."""
    return max((learning_speed(rate, batch, 1.0), batch) for batch, rate in rates.items())


def _on_devices(measured: ProbeResult, config: Config) -> ProbeResult:
    """The rates on the devices that train, if they were measured."""
    several = measured.split_hz if config.is_split else measured.shared_hz
    on_one = len(config.devices) == 1 or not several
    return measured if on_one else dataclasses.replace(measured, update_hz=several)


def expected_hz(measured: ProbeResult, on_gpu: bool) -> dict[int, float]:
    """Updates per second by batch size, once they are compiled.

    Compilation saves part of the cost that does not grow with the batch, so small batches gain most.
    """
    saved, faster = COMPILED_GAIN["gpu" if on_gpu else "cpu"]
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


def batches_worth_a_try(measured: ProbeResult, config: Config) -> dict[int, float]:
    """Batch sizes close to the best one in the probe, and their expected updates/s."""
    hz = expected_hz(_on_devices(measured, config), on_gpu=config.devices[0] != "cpu")
    worth = {batch: learning_speed(rate, batch, 1.0) for batch, rate in hz.items()}
    least = NEARLY_BEST * max(worth.values())
    return {batch: rate for batch, rate in hz.items() if worth[batch] >= least}
