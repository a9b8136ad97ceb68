"""How the cores are shared: threads, samplers, evaluators, rendering."""

from __future__ import annotations

import math

from spreeze.errors import UsageError
from spreeze.machine.facts import Machine
from spreeze.settings.auto.reason import Source
from spreeze.settings.auto.resolver import AutoResolver
from spreeze.settings.config import Config, resolved
from spreeze.settings.defaults import config_with
from spreeze.settings.probe import ProbeResult
from spreeze.spec import EnvSpec
from spreeze.wires.acting import GROUPS

FEW_CORES = 4
SMOOTH_CORES = 8
"""From this many cores on, rendering may be smooth."""
ENVS_BY_STEP_US = {200.0: 32, 1000.0: 16, math.inf: 8}
"""Environments per sampler, by the time of one step. The faster a step, the more the forward pass costs
beside it, and one pass serves them all. But each takes memory, 1.2 MB in MuJoCo."""
MOST_ENVS, FEWEST_ENVS = 128, 4
"""Environments of all samplers together, and the fewest per sampler. With more, each is stepped more
rarely, so that the effect of a new policy shows later: 14 x 32 need a third longer than 14 x 8."""
USUAL_EPISODE = 1000
"""Steps of an episode, if the environment does not say."""
EVALUATION_PAUSE_S = 0.5
"""Between the starts of two evaluations, at least."""
EVALUATION_S, EVALUATE_EVERY_S, EVALUATION_CORES = 0.1, 0.8, 0.2
"""How long an evaluation should take, how often there should be one, and the share of all cores that this
may use on average. Many cores for a moment give a result sooner than a few cores all the time."""
IMAGE_EVALUATION_CORES = 0.1
"""The same with images, whose evaluations take longest: with 0.2 samplers of Pong lost a third of their steps."""


def choose_processes(
    resolver: AutoResolver, spec: EnvSpec, machine: Machine, measured: ProbeResult | None
) -> None:
    """Choose learner threads, sampler and evaluator processes, and environments per sampler."""
    cores = machine.cores
    # Threads that wait for each other on a core taken by a sampler are slower than a single thread.
    given = resolver.config.sampler.processes
    left = cores - (max(1, cores - 1) if given == "auto" else given)
    reason = (
        "enough to keep the GPU busy" if resolver.on_gpu else f"{cores} cores, most for samplers"
    )
    resolver.choose("learner.threads", 1 if resolver.on_gpu else max(1, left), reason)
    spare = resolver.config.learner_cores
    if resolver.config.serial:  # a seed must give the same result on every machine
        resolver.choose("sampler.processes", 1, "one process for all roles")
    else:
        reason = f"{cores} cores, {spare} left to the learner"
        resolver.choose("sampler.processes", max(1, cores - spare), reason)
    _choose_evaluators(resolver, spec, cores)
    _choose_envs_per_process(resolver, spec, measured)
    _choose_acting(resolver, spec)


def _choose_evaluators(resolver: AutoResolver, spec: EnvSpec, cores: int) -> None:
    """Choose how many processes play the episodes of an evaluation, and how often."""
    config = resolver.config.evaluator
    episodes = config.episodes
    if config.every_steps or config.every_updates:
        resolver.choose("evaluator.every_s", 0.0, "as often as you ask")
        resolver.choose("evaluator.share", 1.0, "as often as you ask")
    resolver.choose("evaluator.every_s", EVALUATION_PAUSE_S, "soon enough to see progress")
    if resolver.config.serial or cores <= FEW_CORES:
        reason = "one process for all roles" if resolver.config.serial else "few cores"
        resolver.choose("evaluator.processes", 1, reason)
        resolver.choose("evaluator.share", 0.1, reason)
        return
    num, busy, reason = 1, 1, "one process is enough"
    if spec.step_us and not spec.vector_envs:
        seconds = 1e-6 * spec.step_us * episodes * (spec.max_episode_steps or USUAL_EPISODE)
        most = min(cores - resolver.config.learner_cores, episodes)
        num = max(min(round(seconds / EVALUATION_S), most), 1)
        num = math.ceil(episodes / math.ceil(episodes / num))  # more would not finish sooner
        share = IMAGE_EVALUATION_CORES if spec.images else EVALUATION_CORES
        busy = min(max(round(seconds / EVALUATE_EVERY_S), 1), max(int(share * cores), 1))
        reason = f"{episodes} episodes take up to {seconds:.1f} s on one core"
    num = min(int(resolver.choose("evaluator.processes", num, reason)), episodes)
    busy = min(busy, num)
    resolver.choose("evaluator.share", busy / num, f"{busy} of {cores} cores on average")


def _choose_envs_per_process(
    resolver: AutoResolver, spec: EnvSpec, measured: ProbeResult | None
) -> None:
    """Choose how many environments share a forward pass; the number of samplers is known by now."""
    name = "sampler.envs_per_process"
    if spec.vector_envs is not None:
        num = resolver.choose(name, spec.vector_envs, "as the vector environment has")
        if num != spec.vector_envs:
            raise UsageError(
                [
                    f"--sampler.envs-per-process {num}: the vector environment {spec.id} has {spec.vector_envs}."
                ]
            )
        return
    if spec.step_us is None or resolver.config.serial:
        resolver.choose(name, 8, "one forward pass serves them all")
        return
    room = max(MOST_ENVS // resolved(resolver.config.sampler.processes), FEWEST_ENVS)
    most = next(num for limit, num in ENVS_BY_STEP_US.items() if spec.step_us < limit)
    most = min(most, 2 ** int(math.log2(room)))
    reason = f"{spec.step_us:.0f} us a step; one forward pass serves them all"
    if measured is not None and most in measured.act_us:
        share = measured.act_us[most] / most / spec.step_us
        reason = f"{spec.step_us:.0f} us a step, acting adds {100 * share:.0f} %"
    resolver.choose(name, most, reason)


def _choose_acting(resolver: AutoResolver, spec: EnvSpec) -> None:
    """Choose where the policy runs for the samplers; refuse one process for environments that it cannot serve."""
    name, config = "sampler.acting", resolver.config
    envs = resolved(config.sampler.envs_per_process)
    why_not = (
        f"the vector environment {spec.id} cannot be divided into two groups"
        if spec.vector_envs is not None
        else f"{envs} environments cannot be divided into two groups of one size"
        if envs % GROUPS
        else "samplers on other machines act for themselves"
        if config.backend == "ray"
        else "networks that are divided over several devices are not in one place"
        if len(config.devices) > 1
        else ""
    )
    if config.sampler.acting == "inference" and why_not:
        raise UsageError([f"--sampler.acting inference: {why_not}. Use samplers."])
    on_device = bool(spec.images) and resolver.on_gpu and not why_not
    if not spec.images:
        resolver.choose(name, "samplers", "no images: numpy is fast enough", Source.UNUSED)
        return
    reason = "a policy of images is too slow in numpy" if on_device else why_not or "no GPU"
    resolver.choose(name, "inference" if on_device else "samplers", reason)


def choose_for_node(config: Config, spec: EnvSpec, cpus: int) -> Config:
    """The config of a run for a node of a cluster, where nothing runs but samplers."""
    ray = config.ray
    resolver = AutoResolver(
        config_with(
            config,
            {
                "backend": "local",
                "cores": "shared",
                "sampler.processes": ray.samplers or cpus,
                "sampler.envs_per_process": ray.envs_per_process or "auto",
            },
        )
    )
    _choose_envs_per_process(resolver, spec, None)
    return resolver.config


def choose_cores(resolver: AutoResolver, machine: Machine) -> None:
    """Choose whether the learner has its own cores."""
    cores, config = machine.cores, resolver.config
    threads = config.learner_cores
    separate = cores > FEW_CORES and threads < cores and not config.serial
    reason = f"{threads} for the learner alone, {cores - threads} for everything else"
    resolver.choose(
        "cores",
        "separate" if separate else "shared",
        reason if separate else "few cores: the kernel shares them best",
    )


def choose_rendering(resolver: AutoResolver, machine: Machine) -> None:
    """Choose whether and how often the policy is rendered, never at the cost of training."""
    config = resolver.config
    draw, reason = ("on", "for the live page") if config.dashboard else ("off", "no live page")
    if config.serial:
        draw, reason = "off", "one process for all roles"
    resolver.choose("visualizer.draw", draw, reason)
    few = machine.cores < SMOOTH_CORES
    reason = f"{machine.cores} cores: {'few to spare for rendering' if few else 'enough for smooth rendering'}"
    resolver.choose("visualizer.frames_hz", 3.0 if few else 10.0, reason)
