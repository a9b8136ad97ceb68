"""Tries a user's own algorithm out before a run: one update on a few rows."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from spreeze.algos import PolicyForm, build_algorithm
from spreeze.algos.network_knobs import BuiltPolicy
from spreeze.errors import UsageError
from spreeze.policy import Parameters
from spreeze.rows import row_layout
from spreeze.spec import EnvSpec

ROWS = 8


class Tried(NamedTuple):
    """What came out."""

    form: PolicyForm
    """How the policy acts."""
    critic: Parameters
    said: str = ""
    """What to tell the user about a policy that is a module."""


def try_algorithm(algo: str, hyper: dict[str, Any], spec_data: dict[str, Any]) -> Tried:
    """Build the algorithm and update it once; UsageError if its networks do not fit. Needs torch.

    What its code raises is raised.
    """
    import torch

    from spreeze.learning.replay import Replay
    from spreeze.learning.state import init_state, policy_vector
    from spreeze.learning.updater import Updater, UpdateSetup

    spec, device = EnvSpec.from_json(spec_data), torch.device("cpu")
    try:
        algorithm = build_algorithm(algo, hyper, spec, "float32")
        config = algorithm.config
        policy = config.build_policy(spec)
    except UsageError as error:
        raise _refused(algo, error) from None
    actor, critic = algorithm.init(torch.Generator().manual_seed(0))
    for name, vector, shapes in (
        ("actor", actor, algorithm.actor_shapes),
        ("critic", critic, algorithm.critic_shapes),
    ):
        if vector.shape != (shapes.size,):
            raise UsageError(
                [
                    f"--algo {algo}: init returns {tuple(vector.shape)} numbers for the {name}; "
                    f"its shapes have {shapes.size}."
                ]
            )
    state = init_state(algorithm, 0, device)
    form = policy.form
    found, expected = len(policy_vector(algorithm, state)), form.shapes(spec)
    if found != (size := form.size(spec)):
        table = ", ".join(f"{name} {shape}" for name, shape in expected.items())
        raise UsageError(
            [
                f"--algo {algo}: its policy has {found} parameters, and the samplers' policy has {size}: {table}. "
                "The actor must be the network that config.policy_network(spec, arithmetic) returns."
            ]
        )
    layout = row_layout(spec, config.row_format())
    rounds = config.critic_updates()
    replay = Replay(layout, ROWS * rounds, device, prioritised=config.prioritised)
    replay.insert(np.zeros(ROWS * rounds, layout.dtype))
    updater = Updater(UpdateSetup(algorithm, replay, state, ROWS, config.rates()))
    try:
        updater.run()
        metrics = updater.metrics()
    except UsageError as error:
        raise _refused(algo, error) from None
    if bad := [name for name, value in metrics.items() if not math.isfinite(value)]:
        raise UsageError([f"--algo {algo}: {', '.join(bad)} of its first update is not finite."])
    return Tried(
        form, algorithm.critic_shapes.items, _said(policy) if config.has_policy_module else ""
    )


def _said(policy: BuiltPolicy) -> str:
    if policy.why_torch:
        return f"policy: your module acts through torch, slower than numpy: {policy.why_torch}"
    layers = " ".join(map(str, policy.form.hidden))
    return f"policy: your module acts in numpy, as dense layers with {layers or 'no'} hidden units"


def _refused(algo: str, error: UsageError) -> UsageError:
    return UsageError([f"--algo {algo}: {problem}" for problem in error.problems])
