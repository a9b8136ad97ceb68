"""Ranks that share a batch compute the numbers of one device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import cases
from ranked import on_ranks, whole
from spreeze.algos.base import Algorithm
from spreeze.learning.state import TrainingState, init_state
from spreeze.learning.step import UpdateInputs, UpdateOutputs, UpdateStep
from spreeze.networks import ranks

RANKS, ROWS, SHARE, ROUNDS = 2, 60, 12, 3
"""Rows of each rank, how many of them are in a batch, and rounds of updates."""
VARIANTS: list[tuple[str, str, dict[str, Any]]] = [
    *((name, kind, {}) for name, kind in cases.CASES),
    ("sac", "Box", {"priority": 0.6, "max_grad_norm": 0.1}),
    ("td3", "Box", {"normalise_obs": True, "normalise_reward": True, "policy_delay": 3}),
]


class Drawn:
    """The rows and the random numbers of each rank, and the same for one device that has all rows."""

    def __init__(self, algorithm: Algorithm) -> None:
        torch.manual_seed(0)
        self.updates = algorithm.config.critic_updates()
        num, actions = SHARE * self.updates, algorithm.spec.action_size
        rows = [cases.filled_replay(algorithm, ROWS * RANKS).data.clone()]
        self.data = [*rows[0].chunk(RANKS)]
        # The middles of rows, so that rounding draws no other one.
        self.uniform = [(torch.randint(ROWS, (ROUNDS, num)) + 0.5) / ROWS for _ in range(RANKS)]
        self.noise = [torch.randn(ROUNDS, 2, num, actions) for _ in range(RANKS)]
        self.priorities = None
        if algorithm.config.prioritised:
            of_each = torch.rand(ROWS) + 0.1
            self.priorities = [of_each[torch.randperm(ROWS)] for _ in range(RANKS)]

    def of_rank(self, rank: int, state: TrainingState, i: int) -> UpdateInputs:
        return self._inputs(
            None if self.priorities is None else self.priorities[rank],
            self.data[rank],
            self.uniform[rank][i],
            self.noise[rank][i],
            state,
        )

    def of_one(self, state: TrainingState, i: int) -> UpdateInputs:
        uniform = [(u[i] + rank) / RANKS for rank, u in enumerate(self.uniform)]
        return self._inputs(
            None if self.priorities is None else torch.cat(self.priorities),
            torch.cat(self.data),
            whole(uniform, self.updates),
            whole([noise[i] for noise in self.noise], self.updates, dim=1),
            state,
        )

    def _inputs(
        self,
        priorities: Tensor | None,
        data: Tensor,
        uniform: Tensor,
        noise: Tensor,
        state: TrainingState,
    ) -> UpdateInputs:
        rates, window = torch.tensor([1e-2, 0.05, 0.0]), torch.tensor([0, len(data)])
        return UpdateInputs(priorities, data, window, uniform, noise, rates, {}, state)


@pytest.mark.parametrize(("name", "kind", "knobs"), VARIANTS)
def test_ranks_compute_the_numbers_of_one_device(
    name: str, kind: str, knobs: dict[str, Any]
) -> None:
    algorithm = cases.built(name, kind, **knobs)
    layout, drawn = cases.layout_of(algorithm), Drawn(algorithm)

    def rounds(step: UpdateStep, rank: int | None) -> list[UpdateOutputs]:
        state, outs = init_state(algorithm, 0, cases.CPU), []
        with torch.no_grad():
            for i in range(ROUNDS):
                given = drawn.of_one(state, i) if rank is None else drawn.of_rank(rank, state, i)
                outs.append(step.run(given))
                state = outs[-1].state
        return outs

    one = rounds(UpdateStep(algorithm, layout), None)
    shared = on_ranks(
        RANKS, lambda rank: rounds(UpdateStep(algorithm, layout, num_ranks=RANKS), rank)
    )
    for vector, right in one[-1].state.items():
        for outs in shared:
            torch.testing.assert_close(outs[-1].state[vector], right, rtol=1e-4, atol=1e-5)
        assert torch.equal(shared[0][-1].state[vector], shared[1][-1].state[vector])
    if algorithm.config.prioritised:
        for i, out in enumerate(one):
            parts = [outs[i].priorities for outs in shared]
            torch.testing.assert_close(whole(parts, drawn.updates), out.priorities)


def test_without_their_group_ranks_are_as_if_all_had_the_same_rows() -> None:
    x = torch.tensor([1.0, 2.0, 6.0])
    with ranks.sharing(3):
        assert torch.equal(ranks.mean(x), x)
        assert torch.equal(ranks.largest(x), x)
        mean, std = ranks.mean_and_std(x)
    torch.testing.assert_close((mean, std), (x.mean(), x.repeat(3).std()))
    with ranks.sharing(1):
        assert ranks.mean(x) is x
