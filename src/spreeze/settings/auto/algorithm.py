"""Which algorithm trains, and with which networks."""

from __future__ import annotations

from collections.abc import Iterator

from spreeze.algos import ALGORITHMS, find_algorithm
from spreeze.algos.base import AlgoConfig
from spreeze.algos.off_policy import OffPolicyConfig
from spreeze.errors import UsageError
from spreeze.knobs import flag, knobs_of
from spreeze.machine.facts import Machine, learns_on_gpu
from spreeze.settings.auto.reason import Reason, Source
from spreeze.settings.auto.resolver import AutoResolver
from spreeze.settings.config import get_knob
from spreeze.settings.defaults import given_knobs, with_algorithm
from spreeze.settings.presets import PRESETS
from spreeze.spec import EnvSpec

SMALL_TASK, PPO_TASK = 8, 10
"""Up to this many numbers in observation and action together, a small network is enough, and PPO is fastest where
random actions end episodes."""


def choose_algorithm(resolver: AutoResolver, spec: EnvSpec, machine: Machine) -> None:
    """Choose the algorithm by what the task is like; refuse one that does not support its actions."""
    _explain_preset(resolver)
    config, kind = resolver.config, "Discrete" if spec.discrete else "Box"
    if config.algo == "auto":
        given = given_knobs(config).keys()
        algo, reason = next(
            (algo, reason)
            for algo, reason in suitable(spec, learns_on_gpu(config.device, machine.gpus))
            if given <= knobs_of(find_algorithm(algo).config).keys()
        )
        resolver.config = with_algorithm(config, algo)
        resolver.reasons["algo"] = Reason(Source.RULE, reason)
        return
    if special := _special_flags(config.hyper):
        resolver.reasons.setdefault("algo", Reason(Source.GIVEN, f"it has {special}"))
    if not find_algorithm(config.algo).takes(spec):
        fitting = ", ".join(name for name, entry in ALGORITHMS.items() if entry.takes(spec))
        why = f" ({resolver.reasons['algo']})" if "algo" in resolver.reasons else ""
        raise UsageError(
            [
                f"--algo {config.algo}{why}: {spec.id} has {kind} actions; for those there are {fitting}."
            ]
        )


def suitable(spec: EnvSpec, gpu: bool) -> Iterator[tuple[str, str]]:
    """Algorithms for a task without a preset, best first, each with the reason. docs/experiments.md has the runs.

    Episodes of a single step say nothing: they end whatever the action.
    """
    ends = spec.random_episode if (spec.random_episode or 0) > 1 else None
    falls = f"random actions end an episode after {ends:.0f} steps" if ends else ""
    if ends and _numbers(spec) <= PPO_TASK:
        yield "ppo", f"a small task, and {falls}: PPO needs the fewest updates"
    if spec.discrete:
        yield "dqn", "actions are Discrete"
        return
    if spec.images:
        yield "sac", "actions are Box, observations are images"
        return
    if not _is_small(spec):
        if gpu:
            yield "fastsac", "large updates are cheap on a GPU"
        elif ends:
            yield "fastsac", f"{falls}: categorical critics learn faster"
    yield "sac", "actions are Box"


def _is_small(spec: EnvSpec) -> bool:
    return _numbers(spec) <= SMALL_TASK


def _numbers(spec: EnvSpec) -> int:
    """Numbers in observation and action together."""
    return spec.obs_size + (spec.num_actions or spec.action_size)


def _explain_preset(resolver: AutoResolver) -> None:
    """Note which values come from the preset, except those that the user gave."""
    config = resolver.config
    if config.preset not in PRESETS:
        return
    preset, reason = PRESETS[config.preset], Reason(Source.PRESET, f"preset {config.preset}")
    resolver.reasons["preset"] = Reason(Source.PRESET, f"{preset.why} (--preset none: off)")
    if config.algo == preset.algorithm:
        resolver.reasons["algo"] = reason
    for name, value in preset.algos.get(config.algo, {}).items():
        if get_knob(config, name) == value:
            resolver.reasons[name] = reason


def _special_flags(hyper: AlgoConfig) -> str:
    """The flags that were given and that only some algorithms have."""
    known = knobs_of(type(hyper))
    special = sorted(known.keys() - knobs_of(OffPolicyConfig).keys())
    changed = [name for name in special if getattr(hyper, name) != known[name].default]
    return " ".join(flag(f"algo.{name}") for name in changed)


def choose_network(resolver: AutoResolver, spec: EnvSpec, machine: Machine) -> None:
    """Choose width and precision of the networks."""
    reason = f"{_numbers(spec)} numbers in observation and action"
    hidden = resolver.choose("algo.hidden", (64, 64) if _is_small(spec) else (256, 256), reason)
    hidden = resolver.config.hyper.critic_hidden or hidden
    half = resolver.on_gpu or (machine.bfloat16 and max(hidden) > 64)
    reason = "the device has instructions for it" if half else "faster for this size on this device"
    resolver.choose("learner.precision", "bf16" if half else "float32", reason)
