"""Ranks as threads of the test: each has joined a gloo group, as the processes of a learner do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from spreeze.networks import ranks

T = TypeVar("T")


def on_ranks(num: int, work: Callable[[int], T]) -> list[T]:
    """What `work` returns on each rank."""
    store = dist.HashStore()

    def run(rank: int) -> T:
        ranks.join(dist.ProcessGroupGloo(store, rank, num, timedelta(seconds=30)))
        try:
            return work(rank)
        finally:
            ranks.join(None)

    with ThreadPoolExecutor(num) as pool:
        return list(pool.map(run, range(num)))


def whole(parts: Sequence[Tensor], num_shares: int, dim: int = 0) -> Tensor:
    """The rows of one device in a round: for each critic update those of rank after rank."""
    shares = zip(*(part.chunk(num_shares, dim) for part in parts), strict=True)
    return torch.cat([torch.cat(share, dim) for share in shares], dim)
