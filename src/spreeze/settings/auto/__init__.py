"""The tuner: fills every "auto" with a value, and keeps the reason beside it."""

from __future__ import annotations

import math
from collections.abc import Callable

from spreeze.algos import ALGORITHMS, find_algorithm
from spreeze.algos.base import AlgoConfig, OffPolicyConfig
from spreeze.errors import UsageError
from spreeze.machine.facts import Machine, learns_on_gpu
from spreeze.settings.auto.devices import check_halves, learn_where
from spreeze.settings.auto.memory import store
from spreeze.settings.auto.rates import (
    environments,
    from_measurements,
    matters,
    question,
    rules_of_thumb,
)
from spreeze.settings.auto.resolver import Filler
from spreeze.settings.config import Config, config_with, knob, knobs_of, settled, with_algorithm
from spreeze.settings.presets import PRESETS
from spreeze.settings.probe import Measured, Question
from spreeze.spec import EnvSpec

SMALL_TASK = 8
"""Numbers in observation and action together, up to which a small network is enough."""
FEW_CORES = 4
LEARNING_RATE, FULL_RATE_BATCH = 1e-3, 128
USUAL_EPISODE = 1000
"""Steps of an episode, if the environment does not say."""
EVALUATION_S, EVALUATE_EVERY_S, MOST_OF_CORES = 0.1, 0.8, 0.2
"""How long an evaluation should take and how often there should be one, by the time of a step on a quiet
core; and the share of all cores that this may take on average. Many cores for a moment and then none, not a
few all the time: the same work, and a result is there sooner."""


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
    _choose(filler, spec, machine)
    learn_where(filler, machine)
    _network(filler, spec, machine)
    check_halves(filler.config, spec)
    measured = ask(question(filler, spec, machine)) if matters(filler) else None
    if measured is None:
        rules_of_thumb(filler)
    else:
        from_measurements(filler, machine, measured)
    _place(filler, spec, machine, measured)
    _rates(filler)
    store(filler, spec, machine)
    _pace(filler, machine)
    _picture(filler, machine)
    return filler.config, filler.reasons


def _choose(filler: Filler, spec: EnvSpec, machine: Machine) -> None:
    """The algorithm, by the action space; one that does not fit it is refused."""
    config, kind = filler.config, "Discrete" if spec.discrete else "Box"
    if config.preset in PRESETS:
        preset = PRESETS[config.preset]
        filler.reasons["preset"] = f"none: off. {preset.why}"
        if config.algo == preset.algorithm(gpu=learns_on_gpu(config.device, machine.gpus)):
            filler.reasons["algo"] = f"preset {config.preset}"
        for name, value in preset.algos.get(config.algo, {}).items():
            if knob(config, name) == value:  # or the user knows better
                filler.reasons[name] = f"preset {config.preset}"
    if config.algo == "auto":
        algo = "dqn" if spec.discrete else "sac"
        filler.config = with_algorithm(config, algo)
        filler.reasons["algo"] = f"actions are {kind}"
        return
    if special := _special(config.hyper):
        filler.reasons.setdefault("algo", f"it has {special}")
    if not find_algorithm(config.algo).takes(spec):
        fitting = ", ".join(name for name, entry in ALGORITHMS.items() if entry.takes(spec))
        why = f" ({filler.reasons['algo']})" if "algo" in filler.reasons else ""
        raise UsageError(
            [
                f"--algo {config.algo}{why}: {spec.id} has {kind} actions; for those there are {fitting}."
            ]
        )


def _special(hyper: AlgoConfig) -> str:
    """The knobs that were set and only some algorithms have."""
    names = sorted(knobs_of(type(hyper)) - knobs_of(OffPolicyConfig))
    changed = [x for x in names if getattr(hyper, x) != getattr(type(hyper)(), x)]
    return " ".join(f"--algo.{name.replace('_', '-')}" for name in changed)


def _network(filler: Filler, spec: EnvSpec, machine: Machine) -> None:
    """Its size, and what it is multiplied in."""
    numbers = spec.obs_size + (spec.num_actions or spec.action_size)
    small = numbers <= SMALL_TASK
    reason = f"{numbers} numbers in observation and action"
    hidden = filler.fill("algo.hidden", (64, 64) if small else (256, 256), reason)
    half = filler.on_gpu or (machine.bfloat16 and max(hidden) > 64)
    reason = "the device has instructions for it" if half else "faster for this size on this device"
    filler.fill("learner.precision", "bf16" if half else "float32", reason)


def _place(filler: Filler, spec: EnvSpec, machine: Machine, measured: Measured | None) -> None:
    """Which cores sample, and how many environments each has."""
    cores = machine.cores
    # Threads that wait for each other on a core taken by a sampler are slower than one alone.
    given = filler.config.sampler.processes
    left = cores - (max(1, cores - 1) if given == "auto" else given)
    reason = "it keeps the GPU busy" if filler.on_gpu else f"{cores} cores, most for the samplers"
    filler.fill("learner.threads", 1 if filler.on_gpu else max(1, left), reason)
    spare = filler.config.learner_cores
    reason = f"{cores} cores, {spare} left to the learner"
    filler.fill("sampler.processes", max(1, cores - spare), reason)
    _evaluators(filler, spec, cores)
    environments(filler, spec, measured)
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


def _evaluators(filler: Filler, spec: EnvSpec, cores: int) -> None:
    """How many processes play the episodes of an evaluation, and how often."""
    episodes = filler.config.evaluator.episodes
    if cores <= FEW_CORES:
        filler.fill("evaluator.processes", 1, "few cores")
        filler.fill("evaluator.share", 0.1, "few cores")
        return
    num, busy, reason = 1, 1, "one process for all of them"
    if spec.step_us and not spec.vector_envs and not filler.config.serial:
        seconds = 1e-6 * spec.step_us * episodes * (spec.max_episode_steps or USUAL_EPISODE)
        most = min(cores - filler.config.learner_cores, episodes)
        num = max(min(round(seconds / EVALUATION_S), most), 1)
        num = math.ceil(episodes / math.ceil(episodes / num))  # more would not be done sooner
        busy = min(max(round(seconds / EVALUATE_EVERY_S), 1), max(int(MOST_OF_CORES * cores), 1))
        reason = f"{episodes} episodes take up to {seconds:.1f} s on one core"
    num = min(int(filler.fill("evaluator.processes", num, reason)), episodes)
    busy = min(busy, num)
    reason = f"{busy} of {cores} cores on average"
    filler.fill("evaluator.share", busy / num, reason)


def _rates(filler: Filler) -> None:
    """Learning rate and target mixing.

    Measured on HalfCheetah-v5 (batch 128 and 256 on two cores, batch 8192 on a GPU) and Pendulum-v1: with
    many fresh transitions per update, three times the usual step size and a faster target win, at
    all sizes alike. Below, noise grows: the step size falls with the root of the batch.
    """
    hyper, width = filler.config.hyper, max(settled(filler.config.hyper.hidden))
    batch = settled(filler.config.learner.batch_size) * hyper.rows().segment
    lr = LEARNING_RATE * min(1.0, math.sqrt(batch / FULL_RATE_BATCH))
    filler.fill("algo.lr", lr, f"batch {batch} of mostly fresh transitions")
    filler.fill("algo.tau", 0.02 if width <= 64 else 0.01, f"networks of width {width}")


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
