"""Tries a user's own algorithm out before a run: one update on a few rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from spreeze.algos import build_algorithm
from spreeze.errors import UsageError
from spreeze.rows import row_layout
from spreeze.spec import EnvSpec

ROWS = 8


def try_algorithm(algo: str, hyper: dict[str, Any], spec_data: dict[str, Any]) -> None:
    """Build the algorithm and update it once; UsageError if its networks do not fit. Needs torch.

    What its code raises is raised.
    """
    import torch

    from spreeze.learning.replay import Replay
    from spreeze.learning.state import init_state, policy_vector
    from spreeze.learning.updater import Updater, UpdateSetup

    spec, device = EnvSpec.from_json(spec_data), torch.device("cpu")
    algorithm = build_algorithm(algo, hyper, spec, "float32")
    config = algorithm.config
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
    form = config.policy_form(spec)
    found, expected = len(policy_vector(algorithm, state)), form.shapes(spec)
    if found != (size := form.size(spec)):
        table = ", ".join(f"{name} {shape}" for name, shape in expected.items())
        raise UsageError(
            [
                f"--algo {algo}: its policy has {found} parameters, and the samplers' policy has {size}: {table}. "
                "The actor must be the network that config.policy_form(spec) describes."
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
        raise UsageError([f"--algo {algo}: {problem}" for problem in error.problems]) from None
    if bad := [name for name, value in metrics.items() if not math.isfinite(value)]:
        raise UsageError([f"--algo {algo}: {', '.join(bad)} of its first update is not finite."])
