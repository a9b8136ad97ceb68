"""Batches of transitions: which rows of the replay one is made of, and its fields."""

from __future__ import annotations

import torch
from torch import Tensor

from spreeze.learning.replay import MIN_PRIORITY, Replay
from spreeze.learning.replay_memory import blocking_event
from spreeze.networks import ranks
from spreeze.rows import Batch, Layout


def draw(data: Tensor, window: Tensor, uniform: Tensor) -> Tensor:
    """Indices of rows from numbers in [0, 1). Shapes do not depend on how full the replay is."""
    start, fill = window[0], window[1]
    # Rounding can turn 0.99999997 * fill into fill itself.
    index = start + torch.minimum((uniform * fill).long(), fill - 1)
    return torch.where(index < len(data), index, index - len(data))


def draw_by_priority(
    priorities: Tensor, window: Tensor, uniform: Tensor, correction: float
) -> tuple[Tensor, Tensor]:
    """Indices of rows in proportion to their priority, and the importance weight of each.

    Each rank draws its part of a batch from its own rows: a row's share of theirs is what counts.
    """
    ends = priorities.double().cumsum(0)
    index = torch.searchsorted(ends, uniform.double() * ends[-1], right=True)
    index = index.clamp(max=len(priorities) - 1)
    share = priorities[index] / ends[-1].float()
    weight = (share * window[1]).clamp(min=MIN_PRIORITY) ** -correction
    return index, weight / ranks.largest(weight.amax())


def gather(data: Tensor, index: Tensor, columns: dict[str, slice], steps: int = 1) -> Batch:
    """The batch of the rows at `index`.

    If a row is a segment of several `steps`, the second dimension of each field is the step.
    """
    rows = data[index]

    def vector(name: str) -> Tensor:
        part = rows[:, columns[name]]
        return part if steps == 1 else part.reshape(len(part), steps, -1)

    def number(name: str) -> Tensor:
        if name not in columns:
            return rows[:, :0]
        part = rows[:, columns[name]]
        return part.squeeze(1) if steps == 1 else part

    return Batch(
        obs=vector("obs"),
        action=vector("action"),
        reward=number("reward"),
        discount=number("discount"),
        next_obs=vector("next_obs"),
        log_prob=number("log_prob"),
        ended=number("ended"),
        past_return=number("past_return"),
        weight=torch.ones_like(rows[:, 0]),
        entropy_shift=torch.zeros_like(rows[:, 0]),
    )


class SampledBatches:
    """The batches of one chunk of updates, sampled elsewhere, in memory of the device that learns."""

    def __init__(self, layout: Layout, chunk: int, batch_size: int, device: torch.device) -> None:
        """Room for `chunk` batches."""
        self.data = torch.zeros(chunk, batch_size, layout.width, device=device)
        # With these an update reads every row of its batch once, in order.
        self.window = torch.tensor([0, batch_size], device=device)
        self.uniform = (torch.arange(batch_size, device=device) + 0.5) / batch_size

    def fill(self) -> None:
        """Sample new batches. Batches that another device sends arrive by themselves."""


class HostSampledBatches(SampledBatches):
    """Batches sampled on the host, for a GPU that cannot read the replay."""

    def __init__(
        self,
        replay: Replay,
        chunk: int,
        batch_size: int,
        generator: torch.Generator | None = None,
    ) -> None:
        """Room for `chunk` batches, on the host and on the device; None: draw from torch's generator."""
        device, width = replay.device, replay.layout.width
        super().__init__(replay.layout, chunk, batch_size, device)
        on_gpu = device.type == "cuda"
        self._replay, self._generator = replay, generator
        self._sampled = torch.zeros(chunk * batch_size, width, pin_memory=on_gpu)
        self._copied = blocking_event() if on_gpu else None

    def fill(self) -> None:
        """Sample new batches and enqueue their copy behind the updates that read the last ones."""
        if self._copied is not None:
            self._copied.synchronize()
        replay = self._replay
        shape = (len(self._sampled),)
        index = torch.randint(max(replay.num_rows, 1), shape, generator=self._generator)
        index += replay.start
        index %= len(replay.rows)
        torch.index_select(replay.rows, 0, index, out=self._sampled)
        self.data.view_as(self._sampled).copy_(self._sampled, non_blocking=True)
        if self._copied is not None:
            self._copied.record(torch.cuda.current_stream(replay.device))
