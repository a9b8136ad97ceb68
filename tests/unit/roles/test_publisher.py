"""Publication of policies from a GPU, where the copy runs beside the next updates."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from spreeze.roles.learner.publisher import PolicyPublisher
from spreeze.spec import Floats

SIZE = 4_000_000
"""Numbers in a policy: 16 MB, which take longer to copy than to ask for."""


@pytest.mark.fault("F33")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_policy_from_the_gpu_is_published_whole_and_with_its_own_count() -> None:
    published: list[tuple[int, Floats]] = []

    def publish(vector: Floats, updates: int, _steps: int) -> None:
        published.append((updates, vector[[0, SIZE // 2, -1]].copy()))
        assert (vector == vector[0]).all(), "a copy that had not arrived"

    context: Any = SimpleNamespace(
        weights=SimpleNamespace(publish=publish), control=SimpleNamespace(env_steps=0)
    )
    publisher = PolicyPublisher(context, SIZE, torch.device("cuda"))
    policy = torch.zeros(SIZE, device="cuda")
    busy = torch.ones(2048, 2048, device="cuda")
    for updates in range(1, 101):
        for _ in range(
            20
        ):  # the GPU is behind: the copy below has not even begun when it is asked for
            busy = (busy @ busy).clamp(max=1.0)
        policy.fill_(updates)
        assert publisher.send(policy, updates)
    publisher.flush()
    assert [updates for updates, _ in published] == list(range(1, 101))
    for updates, numbers in published:
        assert np.array_equal(numbers, np.full(3, updates))
