"""The tuner: fills every "auto" with a value, and keeps the reason beside it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from spreeze.algos import ALGORITHMS, find_algorithm
from spreeze.algos.base import AlgoConfig
from spreeze.config import Config, config_with, knob, knob_names, settled, with_algorithm
from spreeze.errors import UsageError
from spreeze.metrics import learning_speed
from spreeze.placement import Machine
from spreeze.presets import PRESETS
from spreeze.probe import Measured, Question, best_threads
from spreeze.spec import EnvSpec, transition_layout

SMALL_TASK = 8
"""Numbers in observation and action together, up to which a small network is enough."""
FEW_CORES = 4
ENVS_BY_STEP_US = {150.0: 32, 400.0: 16, math.inf: 8}
"""Environments per sampler, by the time of one step up to which they are right."""
ACT_SHARE = 0.03
"""What acting may add to the time of an env step, if that can be reached."""
CALLS = {"cpu": (0.015, 4), "gpu": (0.003, 64)}
"""How many seconds the learner computes between two publications, and the most updates in them."""
GPU_COMPILED, CPU_SAVED = 5.0, 0.8
"""Compiled against plain updates: on an H200 5.0 to 5.9 times as fast at every batch size; on a CPU
four fifths of the cost that does not depend on the batch are saved."""
NEARLY_BEST = 0.85
LEARNING_RATE, FULL_RATE_BATCH = 1e-3, 256
MANY_ROWS = 1_000_000
FRESH_BATCHES = 4
"""Batches that are kept of segments, which are only good while they are new."""
GPU_SHARE, LOCKED_SHARE = 0.9, 0.5
"""Of the free memory: what a run takes of the GPU's at most; what it page-locks of the host's."""
NETWORK_COPIES, ACTIVATION_COPIES = 8, 24  # parameters, targets, moments, gradients; both passes
EXCHANGE_SLOTS = 5  # chunks of rows, on either of two devices: some on their way, one in use
SPLIT_GAIN = 1.05
"""What two devices have to bring before they are taken by themselves."""
CUDA_BYTES = 1 << 30  # CUDA itself, its libraries and graphs, in learner and compiler


def resolve(
    config: Config,
    spec: EnvSpec,
    machine: Machine,
    ask: Callable[[Question], Measured | None] = lambda _: None,
) -> tuple[Config, dict[str, str]]:
    """The config without any "auto", and why each value was chosen, by knob.

    `ask` measures what this machine can do; None if it does not, and then rules of thumb decide.
    """
    filler = Filler(config)
    _choose(filler, spec)
    _learn_where(filler, machine)
    _network(filler, spec, machine)
    _check_halves(filler.config, spec)
    question = _question(filler, spec, machine)
    measured = ask(question) if _matters(filler) else None
    if measured is None:
        _rules_of_thumb(filler, spec)
    else:
        _from_measurements(filler, spec, machine, measured)
    _place(filler, spec, machine)
    _rates(filler)
    _store(filler, spec, machine)
    _pace(filler, machine)
    _picture(filler, machine)
    return filler.config, filler.reasons


def learning_bytes(config: Config, spec: EnvSpec) -> dict[str, int]:
    """What learning takes of its device's memory, the replay aside."""
    hidden = settled(config.hyper.hidden)
    numbers = config.hyper.policy_form(spec).size(spec) * 3  # actor and two critics
    rows = settled(config.learner.batch_size) * config.hyper.rows().segment
    units = rows * sum(hidden)
    exchanged = {}
    if len(config.devices) > 1:
        chunk = settled(config.learner.updates_per_publish) * settled(config.learner.batch_size)
        row_bytes = transition_layout(spec, config.hyper.rows()).row_bytes
        exchanged["rows for the actor"] = EXCHANGE_SLOTS * chunk * row_bytes
    return {
        **exchanged,
        "networks": numbers * 4 * NETWORK_COPIES,
        "activations": units * 4 * ACTIVATION_COPIES,
        **({} if config.devices[0] == "cpu" else {"CUDA": CUDA_BYTES}),
    }


def second_bytes(config: Config, spec: EnvSpec) -> dict[str, int]:
    """What the actor takes of a second device's memory: no more than learning does on the first."""
    return {f"second device: {name}": size for name, size in learning_bytes(config, spec).items()}


class Filler:
    """A config on its way to having no "auto"."""

    def __init__(self, config: Config) -> None:
        """Begin with what the user gave."""
        self.config = config
        self.reasons: dict[str, str] = {}
        self.second: str | None = None
        """A second device that is there, if it is left to us whether to use it."""

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


def _learn_where(filler: Filler, machine: Machine) -> None:
    """Which device learns."""
    gpus = machine.gpus
    found = f"{gpus[0].name} found" if gpus else "no NVIDIA GPU found"
    given = filler.config.device
    device = filler.fill("device", "cuda" if gpus else "cpu", found)
    if given == "auto" and len(gpus) > 1:
        filler.second = "cuda:1"
    for name in filler.config.devices:
        if (gpu_index(name) or 0) >= len(gpus) and name != "cpu":
            have = f"only {len(gpus)} here" if gpus else "none was found here"
            raise UsageError(
                [
                    f"--device {device}: no such GPU, {have}. Use --device cpu, or ask spreeze doctor."
                ]
            )


def gpu_index(device: str) -> int | None:
    """Which GPU it is; None for a CPU."""
    return int(device.partition(":")[2] or 0) if device.startswith("cuda") else None


def has_actor(hyper: AlgoConfig, spec: EnvSpec) -> bool:
    """Whether there is an actor beside the critic, which can learn elsewhere."""
    return hyper.policy_form(spec).head != "values"


def _check_halves(config: Config, spec: EnvSpec) -> None:
    """Two devices are for an actor and a critic."""
    if len(config.devices) == 1 or has_actor(config.hyper, spec):
        return
    able = [
        name
        for name, entry in ALGORITHMS.items()
        if entry.takes(spec) and has_actor(entry.config(hidden=(1,)), spec)
    ]
    raise UsageError(
        [
            f"--device {config.device}: {config.algo} has no actor that could learn on a second "
            f"device; {', '.join(able)} have. Name one device."
        ]
    )


def _network(filler: Filler, spec: EnvSpec, machine: Machine) -> None:
    """Its size, and what it is multiplied in."""
    numbers = spec.obs_size + (spec.num_actions or spec.action_size)
    small = numbers <= SMALL_TASK
    reason = f"{numbers} numbers in observation and action"
    hidden = filler.fill("algo.hidden", (64, 64) if small else (256, 256), reason)
    half = filler.on_gpu or (machine.bfloat16 and max(hidden) > 64)
    reason = "the device has instructions for it" if half else "faster for this size on this device"
    filler.fill("learner.precision", "bf16" if half else "float32", reason)


MEASURED_KNOBS = (
    "sampler.envs_per_process",
    "learner.batch_size",
    "learner.threads",
    "learner.updates_per_publish",
)


def _matters(filler: Filler) -> bool:
    """Whether anything is left that a measurement decides."""
    config = filler.config
    free = filler.second or any(knob(config, name) == "auto" for name in MEASURED_KNOBS)
    # A clock does not repeat with a seed; and batches of segments are as large as learning wants them.
    off = config.serial or config.tuner.off or config.hyper.rows().segment > 1
    return bool(free) and not off


def _question(filler: Filler, spec: EnvSpec, machine: Machine) -> Question:
    config, on_gpu = filler.config, filler.on_gpu
    given = config.learner.threads
    second = config.devices[1] if len(config.devices) > 1 else filler.second
    gpus = [gpu_index(device) for device in (config.devices[0], second or "cpu")]
    return Question(
        algo=config.algo,
        hyper=dataclasses.asdict(config.hyper),
        spec=spec.to_json(),
        device=config.devices[0],
        second=second if has_actor(config.hyper, spec) else None,
        gpu=", ".join(machine.gpus[index].name for index in gpus if index is not None),
        precision=settled(config.learner.precision),
        cores=machine.cores,
        threads=1 if on_gpu else None if given == "auto" else given,
    )


def _rules_of_thumb(filler: Filler, spec: EnvSpec) -> None:
    """What was right on the machines that we know."""
    on_gpu, segment = filler.on_gpu, filler.config.hyper.rows().segment
    reason = "a large batch fills a GPU" if on_gpu else "a CPU computes small batches best"
    rows = 8192 if on_gpu else 256
    if segment > 1:
        rows, reason = 4 * rows // segment, f"segments of {segment} steps; {reason}"
    filler.fill("learner.batch_size", rows, reason)
    reason = "publishing costs little beside them"
    filler.fill("learner.updates_per_publish", 16 if on_gpu else 4, reason)
    if spec.step_us is None or filler.config.serial or spec.vector_envs is not None:
        return
    num = next(num for limit, num in ENVS_BY_STEP_US.items() if spec.step_us < limit)
    reason = f"{spec.step_us:.0f} us a step; one forward pass serves them all"
    filler.fill("sampler.envs_per_process", num, reason)


def _from_measurements(filler: Filler, spec: EnvSpec, machine: Machine, measured: Measured) -> None:
    """What the probe says."""
    measured = _one_or_two(filler, measured)
    hz = expected_hz(measured, filler.on_gpu)
    best = max(hz, key=lambda batch: learning_speed(hz[batch], batch, 1.0))
    limit = f"; {measured.too_large:,} do not fit in memory" if measured.too_large else ""
    reason = f"{hz[best]:,.0f} updates/s expected, {hz[best] * best / 1e3:,.0f}k frames/s{limit}"
    batch = filler.fill("learner.batch_size", best, reason)
    if not filler.on_gpu:
        threads = best_threads(measured.thread_hz, machine.cores) if measured.thread_hz else 1
        rates = ", ".join(f"{num}: {rate:.0f}" for num, rate in measured.thread_hz.items())
        filler.fill("learner.threads", threads, f"updates/s by threads: {rates}")
    near = min(hz, key=lambda size: abs(size - batch))
    call_s, most = CALLS["gpu" if filler.on_gpu else "cpu"]
    per_call = 2 ** round(math.log2(min(max(hz[near] * call_s, 1), most)))
    reason = f"about {1e3 * per_call / hz[near]:.1f} ms between two publications"
    filler.fill("learner.updates_per_publish", per_call, reason)
    if spec.step_us is None or spec.vector_envs is not None:
        return
    shares = {num: us / num / spec.step_us for num, us in measured.act_us.items()}
    cheap = [num for num, share in shares.items() if share <= ACT_SHARE]
    num = cheap[0] if cheap else min(shares, key=lambda num: shares[num])
    reason = f"{spec.step_us:.0f} us a step, acting adds {100 * shares[num]:.0f} %"
    filler.fill("sampler.envs_per_process", num, reason)


def _one_or_two(filler: Filler, measured: Measured) -> Measured:
    """Learn on two devices if that is faster; returns what holds for the choice."""
    if not measured.split_hz:
        return measured
    split = dataclasses.replace(measured, update_hz=measured.split_hz)
    if len(filler.config.devices) > 1:  # as the user wants it
        return split

    def best(rates: dict[int, float]) -> tuple[float, int]:
        return max((learning_speed(rate, batch, 1.0), batch) for batch, rate in rates.items())

    (one, size), (two, other) = best(measured.update_hz), best(measured.split_hz)
    rates = (
        f"updates/s before compilation: {measured.update_hz[size]:,.0f} on one GPU at batch {size}, "
        f"{measured.split_hz[other]:,.0f} with critic and actor on two at {other}"
    )
    filler.reasons["device"] += f"; {rates}"
    if two < SPLIT_GAIN * one:
        return measured
    filler.config = config_with(filler.config, {"device": f"cuda:0,{filler.second}"})
    return split


def expected_hz(measured: Measured, on_gpu: bool) -> dict[int, float]:
    """Updates per second by batch size, once they are compiled.

    On a GPU that is one factor for all sizes. On a CPU it takes most of what an update costs apart
    from its arithmetic, which is the part that does not grow with the batch.
    """
    rates = measured.update_hz
    if on_gpu:
        return {batch: rate * GPU_COMPILED for batch, rate in rates.items()}
    (small, first), *rest = rates.items()
    fixed_s = 0.0
    if rest:
        large, last = rest[-1]
        per_row_s = (1 / last - 1 / first) / (large - small)
        fixed_s = min(max(1 / first - small * per_row_s, 0.0), 1 / first)
    return {
        batch: 1 / (1 / rate - CPU_SAVED * min(fixed_s, 1 / rate)) for batch, rate in rates.items()
    }


def batches_worth_a_try(measured: Measured, on_gpu: bool) -> list[int]:
    """Batch sizes that the probe saw little behind the best one."""
    hz = expected_hz(measured, on_gpu)
    worth = {batch: learning_speed(rate, batch, 1.0) for batch, rate in hz.items()}
    return [batch for batch, value in worth.items() if value >= NEARLY_BEST * max(worth.values())]


def _place(filler: Filler, spec: EnvSpec, machine: Machine) -> None:
    """Which cores sample."""
    cores = machine.cores
    # Threads that wait for each other on a core taken by a sampler are slower than one alone.
    given = filler.config.sampler.processes
    left = cores - (max(1, cores - 1) if given == "auto" else given)
    reason = "it keeps the GPU busy" if filler.on_gpu else f"{cores} cores, most for the samplers"
    filler.fill("learner.threads", 1 if filler.on_gpu else max(1, left), reason)
    spare = filler.config.learner_cores + (1 if cores > FEW_CORES else 0)
    reason = f"{cores} cores, {spare} left to learner and evaluator"
    filler.fill("sampler.processes", max(1, cores - spare), reason)
    num_envs, reason = spec.vector_envs or 8, "one forward pass serves them all"
    if spec.vector_envs is not None:
        reason = "the vector environment's"
    chosen = filler.fill("sampler.envs_per_process", num_envs, reason)
    if spec.vector_envs is not None and chosen != num_envs:
        raise UsageError(
            [
                f"--sampler.envs-per-process {chosen}: the vector environment {spec.id} has {num_envs}."
            ]
        )
    share = 1.0 if cores > FEW_CORES else 0.1
    filler.fill("evaluator.share", share, f"{cores} cores")


def _rates(filler: Filler) -> None:
    """Learning rate and target mixing.

    Measured on HalfCheetah-v5 (batch 256 on two cores, batch 8192 on a GPU) and Pendulum-v1: with many
    fresh transitions per update, three times the usual step size and a faster target win, at both
    sizes alike. Below, noise grows: the step size falls with the root of the batch.
    """
    hyper, width = filler.config.hyper, max(settled(filler.config.hyper.hidden))
    batch = settled(filler.config.learner.batch_size) * hyper.rows().segment
    lr = LEARNING_RATE * min(1.0, math.sqrt(batch / FULL_RATE_BATCH))
    filler.fill("algo.lr", lr, f"batch {batch} of mostly fresh transitions")
    filler.fill("algo.tau", 0.02 if width <= 64 else 0.01, f"networks of width {width}")


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
        free = machine.gpus[gpu_index(config.devices[0]) or 0].memory_bytes
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
    """Whose cores are whose, and the ratio of updates to env steps."""
    cores, config = machine.cores, filler.config
    threads = config.learner_cores
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


def _picture(filler: Filler, machine: Machine) -> None:
    """Whether and how often the policy is drawn: never at the cost of training."""
    config = filler.config
    draw, reason = ("on", "for the live page") if config.dashboard else ("off", "no live page")
    if config.serial:
        draw, reason = "off", "one process for all roles"
    filler.fill("visualizer.draw", draw, reason)
    few = machine.cores < 8
    filler.fill(
        "visualizer.frames_hz",
        3.0 if few else 10.0,
        f"{machine.cores} cores: {'little for pictures' if few else 'enough for smooth pictures'}",
    )
