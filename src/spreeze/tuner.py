"""The tuner: fills every "auto" with a value, and keeps the reason beside it."""

from __future__ import annotations

import math
from typing import Any

from spreeze.algos import ALGORITHMS, find_algorithm
from spreeze.config import Config, config_with, knob, knob_names, settled, with_algorithm
from spreeze.errors import UsageError
from spreeze.placement import Machine
from spreeze.presets import PRESETS
from spreeze.spec import EnvSpec, transition_layout

SMALL_TASK = 8
"""Numbers in observation and action together, up to which a small network is enough."""
FEW_CORES = 4
ENVS_BY_STEP_US = {150.0: 32, 400.0: 16, math.inf: 8}
"""Environments per sampler, by the time of one step up to which they are right."""
MANY_ROWS = 1_000_000
FRESH_BATCHES = 4
"""Batches that are kept of segments, which are only good while they are new."""
GPU_SHARE, LOCKED_SHARE = 0.9, 0.5
"""Of the free memory: what a run takes of the GPU's at most; what it page-locks of the host's."""
NETWORK_COPIES, ACTIVATION_COPIES = 8, 24  # parameters, targets, moments, gradients; both passes
CUDA_BYTES = 1 << 30  # CUDA itself, its libraries and graphs, in learner and compiler


def resolve(config: Config, spec: EnvSpec, machine: Machine) -> tuple[Config, dict[str, str]]:
    """The config without any "auto", and why each value was chosen, by knob."""
    filler = Filler(config)
    _choose(filler, spec)
    _place(filler, spec, machine)
    _size(filler, spec)
    _store(filler, spec, machine)
    _pace(filler, machine)
    return filler.config, filler.reasons


def learning_bytes(config: Config, spec: EnvSpec) -> dict[str, int]:
    """What learning takes of its device's memory, the replay aside."""
    hidden = settled(config.hyper.hidden)
    numbers = config.hyper.policy_form(spec).size(spec) * 3  # actor and two critics
    rows = settled(config.learner.batch_size) * config.hyper.rows().segment
    units = rows * sum(hidden)
    return {
        "networks": numbers * 4 * NETWORK_COPIES,
        "activations": units * 4 * ACTIVATION_COPIES,
        **({} if config.device == "cpu" else {"CUDA": CUDA_BYTES}),
    }


class Filler:
    """A config on its way to having no "auto"."""

    def __init__(self, config: Config) -> None:
        """Begin with what the user gave."""
        self.config = config
        self.reasons: dict[str, str] = {}

    def fill(self, name: str, value: Any, reason: str) -> Any:
        """Set a knob that is "auto"; returns what it is now. What this algorithm has not stays unset."""
        if name not in knob_names(self.config):
            return value
        if (given := knob(self.config, name)) != "auto":
            return given
        self.config = config_with(self.config, {name: value})
        self.reasons[name] = reason
        return value

    @property
    def on_gpu(self) -> bool:
        """Whether the networks learn on a GPU."""
        return self.config.device.startswith("cuda")


def _choose(filler: Filler, spec: EnvSpec) -> None:
    """The algorithm, by the action space; one that does not fit it is refused."""
    config, kind = filler.config, "Discrete" if spec.discrete else "Box"
    if config.preset in PRESETS:
        preset = PRESETS[config.preset]
        filler.reasons["preset"] = f"none: off. {preset.why}"
        for name, value in preset.algos.get(config.algo, {}).items():
            if knob(config, name) == value:  # or the user knows better
                filler.reasons[name] = f"preset {config.preset}"
    if config.algo == "auto":
        algo = "dqn" if spec.discrete else "sac"
        filler.config = with_algorithm(config, algo)
        filler.reasons["algo"] = f"actions are {kind}"
        return
    if not find_algorithm(config.algo).takes(spec):
        fitting = ", ".join(name for name, entry in ALGORITHMS.items() if entry.takes(spec))
        raise UsageError(
            [f"--algo {config.algo}: {spec.id} has {kind} actions; for those there are {fitting}."]
        )


def _place(filler: Filler, spec: EnvSpec, machine: Machine) -> None:
    """Which device learns, which cores sample."""
    gpus, cores = machine.gpus, machine.cores
    found = f"{gpus[0].name} found" if gpus else "no NVIDIA GPU found"
    device = filler.fill("device", "cuda" if gpus else "cpu", found)
    if filler.on_gpu and int(device.partition(":")[2] or 0) >= len(gpus):
        have = f"only {len(gpus)} here" if gpus else "none was found here"
        raise UsageError(
            [f"--device {device}: no such GPU, {have}. Use --device cpu, or ask spreeze doctor."]
        )
    spare = 2 if cores > FEW_CORES else 1
    reason = f"{cores} cores, {spare} left to learner and evaluator"
    filler.fill("sampler.processes", max(1, cores - spare), reason)
    num_envs, reason = spec.vector_envs, "the vector environment's"
    if num_envs is None:
        num_envs, reason = _envs_per_process(spec, filler.config.serial)
    chosen = filler.fill("sampler.envs_per_process", num_envs, reason)
    if spec.vector_envs is not None and chosen != num_envs:
        raise UsageError(
            [
                f"--sampler.envs-per-process {chosen}: the vector environment {spec.id} has {num_envs}."
            ]
        )
    share = 1.0 if cores > FEW_CORES else 0.1
    filler.fill("evaluator.share", share, f"{cores} cores")


def _envs_per_process(spec: EnvSpec, serial: bool) -> tuple[int, str]:
    """The faster an environment, the more of them must share a forward pass to hide it."""
    if spec.step_us is None or serial:  # a measured time would not repeat with the seed
        return 8, "one forward pass serves them all"
    num = next(num for limit, num in ENVS_BY_STEP_US.items() if spec.step_us < limit)
    return num, f"{spec.step_us:.0f} us a step; one forward pass serves them all"


def _size(filler: Filler, spec: EnvSpec) -> None:
    """Batch and networks; learning rate and target mixing follow from them."""
    on_gpu = filler.on_gpu
    reason = "a large batch fills a GPU" if on_gpu else "a CPU computes small batches best"
    segment = filler.config.hyper.rows().segment
    rows = 8192 if on_gpu else 256
    if segment > 1:
        rows, reason = 4 * rows // segment, f"segments of {segment} steps; {reason}"
    batch = filler.fill("learner.batch_size", rows, reason)
    numbers = spec.obs_size + (spec.num_actions or spec.action_size)
    small = numbers <= SMALL_TASK
    reason = f"{numbers} numbers in observation and action"
    hidden = filler.fill("algo.hidden", (64, 64) if small else (256, 256), reason)
    # Measured on HalfCheetah-v5 (batch 256 on two cores, batch 8192 on a GPU) and Pendulum-v1: with
    # many fresh transitions per update, three times the usual step size and a faster target win.
    filler.fill("algo.lr", 1e-3, f"batch {batch} of mostly fresh transitions")
    tau = 0.02 if max(hidden) <= 64 else 0.01
    filler.fill("algo.tau", tau, f"networks of width {max(hidden)}")


def _store(filler: Filler, spec: EnvSpec, machine: Machine) -> None:
    """How many transitions are kept, and where."""
    config, form = filler.config, filler.config.hyper.rows()
    layout = transition_layout(spec, form)
    row_bytes, host = layout.row_bytes, machine.memory_bytes
    if form.segment > 1:
        rows = max(100, FRESH_BATCHES * settled(config.learner.batch_size))
        filler.fill("replay.capacity", rows, "only the newest segments are learned from")
    if not filler.on_gpu:
        reason = f"{row_bytes} bytes each, {host / 2**30:.0f} GiB free"
        rows = min(MANY_ROWS, int(host / 4 / row_bytes))
        capacity = filler.fill("replay.capacity", rows, reason)
        filler.fill("replay.placement", "host", "the networks learn on the CPU")
    else:
        free = machine.gpus[int(config.device.partition(":")[2] or 0)].memory_bytes
        room = int(free * GPU_SHARE) - sum(learning_bytes(config, spec).values())
        locked = int(host * LOCKED_SHARE)
        where, budget = (
            ("GPU", room) if config.replay.placement in ("auto", "gpu") else ("host", locked)
        )
        rows = min(MANY_ROWS, max(1000, budget // row_bytes - layout.slack_rows))
        reason = f"{row_bytes} bytes each, room for {budget / 2**30:.1f} GiB in {where} memory"
        capacity = filler.fill("replay.capacity", rows, reason)
        needed = (capacity + layout.slack_rows) * row_bytes
        size, left = f"{needed / 2**30:.1f} GiB", f"{max(room, 0) / 2**30:.1f} GiB of GPU memory"
        if needed <= room:
            filler.fill("replay.placement", "gpu", f"{size}, and there is room for {left}")
        elif needed <= locked or config.hyper.priorities()[0] > 0:  # the device has to read it
            reason = f"{size} do not fit in {left}, but in half of the free host memory"
            filler.fill("replay.placement", "pinned", reason)
        else:
            reason = f"{size} fit neither in {left} nor in half of the free host memory"
            filler.fill("replay.placement", "host", reason)
    fewest = 1000 // form.segment
    warmup = min(max(settled(config.learner.batch_size), fewest), capacity)
    filler.fill("learner.warmup_rows", warmup, "at least a batch of random actions")


def _pace(filler: Filler, machine: Machine) -> None:
    """Threads, publications, and the ratio of updates to env steps."""
    cores, on_gpu, config = machine.cores, filler.on_gpu, filler.config
    publish = 16 if on_gpu else 4
    filler.fill("learner.updates_per_publish", publish, "publishing costs little beside them")
    wide = max(settled(config.hyper.hidden)) > 64
    half = on_gpu or (machine.bfloat16 and wide)
    reason = "the device has instructions for it" if half else "faster for this size on this device"
    filler.fill("learner.precision", "bf16" if half else "float32", reason)
    # Threads that wait for each other on a core taken by a sampler are slower than one alone.
    threads = 1 if on_gpu else max(1, cores - settled(config.sampler.processes))
    threads = filler.fill("learner.threads", threads, f"{cores} cores, less those of the samplers")
    separate = cores > FEW_CORES and threads < cores and not config.serial
    reason = f"{threads} for the learner alone, {cores - threads} for all else"
    filler.fill(
        "cores",
        "separate" if separate else "shared",
        reason if separate else "few cores: the kernel shares them best",
    )
    reuse = config.hyper.reuse()
    if reuse is not None and config.learner.updates_per_step == "auto":
        steps = settled(config.learner.batch_size) * config.hyper.rows().segment
        bounds, reason = (0.0, reuse / steps), f"each step is learned from {reuse:g} times at most"
        filler.fill("learner.ratio_bounds", bounds, reason)
        return
    if config.serial:
        filler.fill("learner.updates_per_step", 0.125, "roles take turns in one process")
    ratio = filler.config.learner.updates_per_step
    if ratio != "auto":  # a number binds both sides, whatever the bounds say
        filler.config = config_with(filler.config, {"learner.ratio_bounds": (ratio, ratio)})
        filler.reasons["learner.ratio_bounds"] = "--learner.updates-per-step is a number"
        return
    few = cores <= FEW_CORES
    reason = "few cores: sampling more would slow learning" if few else "sampling has its own cores"
    filler.fill("learner.ratio_bounds", (0.03 if few else 0.0005, 8.0), reason)
