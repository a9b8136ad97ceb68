"""The tuner: fills every "auto" with a value, and keeps the reason beside it."""

from __future__ import annotations

import math
from collections.abc import Callable

from spreeze.algos import ALGORITHMS, find_algorithm
from spreeze.algos.base import AlgoConfig, OffPolicyConfig
from spreeze.errors import UsageError
from spreeze.machine.facts import Machine, learns_on_gpu
from spreeze.settings.auto.devices import check_halves, choose_device
from spreeze.settings.auto.memory import choose_replay
from spreeze.settings.auto.rates import (
    environments,
    from_measurements,
    needs_probe,
    question,
    rules_of_thumb,
)
from spreeze.settings.auto.resolver import AutoResolver
from spreeze.settings.config import Config, config_with, knob, knobs_of, resolved, with_algorithm
from spreeze.settings.presets import PRESETS
from spreeze.settings.probe import ProbeRequest, ProbeResult
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
    ask: Callable[[ProbeRequest], ProbeResult | None] = lambda _: None,
) -> tuple[Config, dict[str, str]]:
    """The config without any "auto", and why each value was chosen, by knob.

    `ask` measures what this machine can do; None if it does not, and then rules of thumb decide.
    """
    resolver = AutoResolver(config)
    _choose(resolver, spec, machine)
    choose_device(resolver, machine)
    _network(resolver, spec, machine)
    check_halves(resolver.config, spec)
    measured = ask(question(resolver, spec, machine)) if needs_probe(resolver) else None
    if measured is None:
        rules_of_thumb(resolver)
    else:
        from_measurements(resolver, machine, measured)
    _place(resolver, spec, machine, measured)
    _rates(resolver)
    choose_replay(resolver, spec, machine)
    _pace(resolver, machine)
    _picture(resolver, machine)
    return resolver.config, resolver.reasons


def _choose(resolver: AutoResolver, spec: EnvSpec, machine: Machine) -> None:
    """The algorithm, by the action space; one that does not fit it is refused."""
    config, kind = resolver.config, "Discrete" if spec.discrete else "Box"
    if config.preset in PRESETS:
        preset = PRESETS[config.preset]
        resolver.reasons["preset"] = f"none: off. {preset.why}"
        if config.algo == preset.algorithm(gpu=learns_on_gpu(config.device, machine.gpus)):
            resolver.reasons["algo"] = f"preset {config.preset}"
        for name, value in preset.algos.get(config.algo, {}).items():
            if knob(config, name) == value:  # or the user knows better
                resolver.reasons[name] = f"preset {config.preset}"
    if config.algo == "auto":
        algo = "dqn" if spec.discrete else "sac"
        resolver.config = with_algorithm(config, algo)
        resolver.reasons["algo"] = f"actions are {kind}"
        return
    if special := _special(config.hyper):
        resolver.reasons.setdefault("algo", f"it has {special}")
    if not find_algorithm(config.algo).takes(spec):
        fitting = ", ".join(name for name, entry in ALGORITHMS.items() if entry.takes(spec))
        why = f" ({resolver.reasons['algo']})" if "algo" in resolver.reasons else ""
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


def _network(resolver: AutoResolver, spec: EnvSpec, machine: Machine) -> None:
    """Its size, and what it is multiplied in."""
    numbers = spec.obs_size + (spec.num_actions or spec.action_size)
    small = numbers <= SMALL_TASK
    reason = f"{numbers} numbers in observation and action"
    hidden = resolver.choose("algo.hidden", (64, 64) if small else (256, 256), reason)
    half = resolver.on_gpu or (machine.bfloat16 and max(hidden) > 64)
    reason = "the device has instructions for it" if half else "faster for this size on this device"
    resolver.choose("learner.precision", "bf16" if half else "float32", reason)


def _place(
    resolver: AutoResolver, spec: EnvSpec, machine: Machine, measured: ProbeResult | None
) -> None:
    """Which cores sample, and how many environments each has."""
    cores = machine.cores
    # Threads that wait for each other on a core taken by a sampler are slower than one alone.
    given = resolver.config.sampler.processes
    left = cores - (max(1, cores - 1) if given == "auto" else given)
    reason = "it keeps the GPU busy" if resolver.on_gpu else f"{cores} cores, most for the samplers"
    resolver.choose("learner.threads", 1 if resolver.on_gpu else max(1, left), reason)
    spare = resolver.config.learner_cores
    reason = f"{cores} cores, {spare} left to the learner"
    resolver.choose("sampler.processes", max(1, cores - spare), reason)
    _evaluators(resolver, spec, cores)
    environments(resolver, spec, measured)
    num_envs, reason = spec.vector_envs or 8, "one forward pass serves them all"
    if spec.vector_envs is not None:
        reason = "the vector environment's"
    chosen = resolver.choose("sampler.envs_per_process", num_envs, reason)
    if spec.vector_envs is not None and chosen != num_envs:
        raise UsageError(
            [
                f"--sampler.envs-per-process {chosen}: the vector environment {spec.id} has {num_envs}."
            ]
        )


def _evaluators(resolver: AutoResolver, spec: EnvSpec, cores: int) -> None:
    """How many processes play the episodes of an evaluation, and how often."""
    episodes = resolver.config.evaluator.episodes
    if cores <= FEW_CORES:
        resolver.choose("evaluator.processes", 1, "few cores")
        resolver.choose("evaluator.share", 0.1, "few cores")
        return
    num, busy, reason = 1, 1, "one process for all of them"
    if spec.step_us and not spec.vector_envs and not resolver.config.serial:
        seconds = 1e-6 * spec.step_us * episodes * (spec.max_episode_steps or USUAL_EPISODE)
        most = min(cores - resolver.config.learner_cores, episodes)
        num = max(min(round(seconds / EVALUATION_S), most), 1)
        num = math.ceil(episodes / math.ceil(episodes / num))  # more would not be done sooner
        busy = min(max(round(seconds / EVALUATE_EVERY_S), 1), max(int(MOST_OF_CORES * cores), 1))
        reason = f"{episodes} episodes take up to {seconds:.1f} s on one core"
    num = min(int(resolver.choose("evaluator.processes", num, reason)), episodes)
    busy = min(busy, num)
    reason = f"{busy} of {cores} cores on average"
    resolver.choose("evaluator.share", busy / num, reason)


def _rates(resolver: AutoResolver) -> None:
    """Learning rate and target mixing.

    Measured on HalfCheetah-v5 (batch 128 and 256 on two cores, batch 8192 on a GPU) and Pendulum-v1: with
    many fresh transitions per update, three times the usual step size and a faster target win, at
    all sizes alike. Below, noise grows: the step size falls with the root of the batch.
    """
    hyper, width = resolver.config.hyper, max(resolved(resolver.config.hyper.hidden))
    batch = resolved(resolver.config.learner.batch_size) * hyper.row_format().segment
    lr = LEARNING_RATE * min(1.0, math.sqrt(batch / FULL_RATE_BATCH))
    resolver.choose("algo.lr", lr, f"batch {batch} of mostly fresh transitions")
    resolver.choose("algo.tau", 0.02 if width <= 64 else 0.01, f"networks of width {width}")


def _pace(resolver: AutoResolver, machine: Machine) -> None:
    """Whose cores are whose, and the ratio of updates to env steps."""
    cores, config = machine.cores, resolver.config
    threads = config.learner_cores
    separate = cores > FEW_CORES and threads < cores and not config.serial
    reason = f"{threads} for the learner alone, {cores - threads} for all else"
    resolver.choose(
        "cores",
        "separate" if separate else "shared",
        reason if separate else "few cores: the kernel shares them best",
    )
    reuse = config.hyper.reuse()
    if reuse is not None and config.learner.updates_per_step == "auto":
        steps = resolved(config.learner.batch_size) * config.hyper.row_format().segment
        bounds, reason = (0.0, reuse / steps), f"each step is learned from {reuse:g} times at most"
        resolver.choose("learner.ratio_bounds", bounds, reason)
        return
    if config.serial:
        resolver.choose("learner.updates_per_step", 0.125, "roles take turns in one process")
    ratio = resolver.config.learner.updates_per_step
    if ratio != "auto":  # a number binds both sides, whatever the bounds say
        resolver.config = config_with(resolver.config, {"learner.ratio_bounds": (ratio, ratio)})
        resolver.reasons["learner.ratio_bounds"] = "--learner.updates-per-step is a number"
        return
    few = cores <= FEW_CORES
    reason = "few cores: sampling more would slow learning" if few else "sampling has its own cores"
    resolver.choose("learner.ratio_bounds", (0.03 if few else 0.0005, 8.0), reason)


def _picture(resolver: AutoResolver, machine: Machine) -> None:
    """Whether and how often the policy is drawn: never at the cost of training."""
    config = resolver.config
    draw, reason = ("on", "for the live page") if config.dashboard else ("off", "no live page")
    if config.serial:
        draw, reason = "off", "one process for all roles"
    resolver.choose("visualizer.draw", draw, reason)
    few = machine.cores < 8
    resolver.choose(
        "visualizer.frames_hz",
        3.0 if few else 10.0,
        f"{machine.cores} cores: {'little for pictures' if few else 'enough for smooth pictures'}",
    )
