"""Learning rates, and how many updates there are per env step."""

from __future__ import annotations

import math

from spreeze.algos.off_policy import OffPolicyConfig
from spreeze.machine.facts import Machine
from spreeze.settings.auto.processes import FEW_CORES
from spreeze.settings.auto.reason import Reason, Source
from spreeze.settings.auto.resolver import AutoResolver
from spreeze.settings.config import resolved
from spreeze.spec import EnvSpec, Trap

LEARNING_RATE, FULL_RATE_BATCH = 1e-3, 128
IMAGE_RATE, IMAGE_TAU = 3e-4, 0.01
RATIO = 0.125
"""Updates per env step where the speed of the machine must not decide."""
RARE_REWARD_STEPS = 5
"""Steps per transition where rewards are rare: each reward found reaches five values at once."""


def choose_returns(resolver: AutoResolver, spec: EnvSpec) -> None:
    """Choose over how many steps a transition reaches."""
    hyper = resolver.config.hyper
    if not isinstance(hyper, OffPolicyConfig):
        return
    if Trap.NO_REWARD in spec.traps:
        reason = "all rewards of random actions were 0: a reward that is found should reach far"
        resolver.choose("algo.n_step", RARE_REWARD_STEPS, reason)
    resolver.choose("algo.n_step", hyper.usual_n_step, "random actions find rewards")


def choose_learning_rates(resolver: AutoResolver, spec: EnvSpec) -> None:
    """Choose learning rate and target mixing.

    Measured on HalfCheetah-v5 (batch 128 and 256 on two cores, batch 8192 on a GPU) and Pendulum-v1:
    with many fresh transitions per update, three times the usual learning rate and a faster target
    win at all these sizes. Below them gradients are noisier: the rate falls with the root of the batch.
    """
    if spec.images:
        resolver.choose("algo.lr", IMAGE_RATE, "convolutions need smaller steps")
        resolver.choose("algo.tau", IMAGE_TAU, "observations are images")
        return
    hyper, width = resolver.config.hyper, max(resolver.config.hyper.widths())
    batch = resolved(resolver.config.learner.batch_size) * hyper.row_format().segment
    lr = LEARNING_RATE * min(1.0, math.sqrt(batch / FULL_RATE_BATCH))
    resolver.choose("algo.lr", lr, f"batch {batch} of mostly fresh transitions")
    resolver.choose("algo.tau", 0.02 if width <= 64 else 0.01, f"networks of width {width}")


def choose_update_ratio(resolver: AutoResolver, machine: Machine) -> None:
    """Choose the bounds of updates per env step."""
    config = resolver.config
    reuse = config.hyper.reuse()
    if reuse is not None and config.learner.updates_per_step == "auto":
        steps = resolved(config.learner.batch_size) * config.hyper.row_format().segment
        fixed = config.reproducible and not config.serial
        reason = f"each step is learned from {'' if fixed else 'at most '}{reuse:g} times"
        bounds = (reuse / steps if fixed else 0.0, reuse / steps)
        resolver.choose("learner.ratio_bounds", bounds, reason)
        return
    if config.serial and config.learner.ratio_bounds == "auto":
        resolver.choose("learner.updates_per_step", RATIO, "all roles take turns in one process")
    ratio = resolver.config.learner.updates_per_step
    if ratio != "auto":  # a number binds both sides, whatever the bounds are
        given = Reason(Source.GIVEN, "--learner.updates-per-step is a number")
        resolver.set("learner.ratio_bounds", (ratio, ratio), given)
        return
    if config.reproducible:
        reason = "as in a serial run, however fast samplers and learner are"
        resolver.choose("learner.ratio_bounds", (RATIO, RATIO), reason)
        return
    few = machine.cores <= FEW_CORES
    reason = "few cores: more sampling would slow learning" if few else "sampling has its own cores"
    resolver.choose("learner.ratio_bounds", (0.03 if few else 0.0005, 8.0), reason)
