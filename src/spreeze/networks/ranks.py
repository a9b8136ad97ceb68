"""Numbers over a whole batch whose rows several ranks share: processes that learn together, each from its part.

Gradients are means over rows, so the mean over the ranks is the gradient of the whole batch. Whatever else
a loss takes from all rows at once comes from here too. Without other ranks these functions do nothing.

They are operators, so that a compiled update calls them as the plain one does. Who the others are is a
matter of the thread that runs it: a thread that has not joined a group is alone, and each other rank is as
if it had the same rows.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class _Here(threading.local):
    """What this thread is part of."""

    num_ranks = 1
    """How many ranks share the batch of the update that runs now."""
    group: ProcessGroup | None = None


_here = _Here()
LIBRARY = torch.library.Library("ranks", "DEF")  # type: ignore[no-untyped-call]


def join(group: ProcessGroup | None) -> None:
    """Updates of this thread are shared with this group from now on; None: with nobody."""
    _here.group = group


@contextmanager
def alone() -> Iterator[None]:
    """Updates within do not wait for the other ranks, and so give other numbers."""
    group, _here.group = _here.group, None
    try:
        yield
    finally:
        _here.group = group


@contextmanager
def sharing(num_ranks: int) -> Iterator[None]:
    """A batch within is what this rank has of a larger one, which this many ranks share."""
    before, _here.num_ranks = _here.num_ranks, num_ranks
    try:
        yield
    finally:
        _here.num_ranks = before


def num_ranks() -> int:
    """How many ranks share the batch."""
    return _here.num_ranks


def mean(x: Tensor) -> Tensor:
    """The mean of what each rank has."""
    return x if _here.num_ranks == 1 else torch.ops.ranks.mean(x, _here.num_ranks)


def largest(x: Tensor) -> Tensor:
    """The largest of what each rank has, number by number."""
    return x if _here.num_ranks == 1 else _gathered(x).amax(0)


def pooled(means: Tensor, variances: Tensor) -> tuple[Tensor, Tensor]:
    """Means and variances over the rows of all ranks, from those over this rank's rows; both are vectors."""
    if _here.num_ranks == 1:
        return means, variances
    of_means, of_variances = _gathered(torch.cat([means, variances])).chunk(2, 1)
    mean = of_means.mean(0)
    return mean, of_variances.mean(0) + (of_means - mean).square().mean(0)


def mean_and_std(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of a number that each row of the batch has."""
    if _here.num_ranks == 1:
        return x.mean(), x.std()
    mean, var = pooled(x.mean().reshape(1), x.var(correction=0).reshape(1))
    num = x.numel() * _here.num_ranks
    return mean[0], (var[0] * (num / (num - 1))).sqrt()


def _gathered(x: Tensor) -> Tensor:
    """What each rank has, in the order of the ranks."""
    return torch.ops.ranks.gather(x, _here.num_ranks)  # type: ignore[no-any-return]


def _mean(x: Tensor, num: int) -> Tensor:
    x = x.clone(memory_format=torch.contiguous_format)
    if _here.group is None:
        return x
    _here.group.allreduce([x]).wait()
    return x.div_(num)


def _gather(x: Tensor, num: int) -> Tensor:
    x = x.contiguous()
    if _here.group is None:
        return torch.stack([x] * num)
    parts = [torch.empty_like(x) for _ in range(num)]
    _here.group.allgather([parts], [x]).wait()
    return torch.stack(parts)


for _name, _function in (("mean", _mean), ("gather", _gather)):
    LIBRARY.define(f"{_name}(Tensor x, int num) -> Tensor")  # type: ignore[no-untyped-call]
    LIBRARY.impl(_name, _function, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
