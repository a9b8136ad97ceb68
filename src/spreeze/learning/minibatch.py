"""Batches of transitions: which rows of the replay one is made of, and its fields."""

from __future__ import annotations

import torch
from torch import Tensor

from spreeze.learning.replay import MIN_PRIORITY, Replay
from spreeze.learning.replay_memory import blocking_event
from spreeze.networks import ranks
from spreeze.rows import Batch, Film, Layout


def draw(data: Tensor, window: Tensor, uniform: Tensor, steps: int = 1) -> Tensor:
    """Indices of rows, or of the `steps` transitions in each, from numbers in [0, 1).

    Shapes do not depend on how full the replay is.
    """
    start, fill, end = window[0] * steps, window[1] * steps, len(data) * steps
    # Rounding can turn 0.99999997 * fill into fill itself.
    index = start + torch.minimum((uniform * fill).long(), fill - 1)
    return torch.where(index < end, index, index - end)


def draw_by_priority(
    priorities: Tensor, num: Tensor, uniform: Tensor, correction: float
) -> tuple[Tensor, Tensor]:
    """Indices of `num` rows in proportion to their priority, and the importance weight of each.

    Each rank draws its part of a batch from its own rows: a row's share of theirs is what counts.
    """
    ends = priorities.double().cumsum(0)
    index = torch.searchsorted(ends, uniform.double() * ends[-1], right=True)
    index = index.clamp(max=len(priorities) - 1)
    share = priorities[index] / ends[-1].float()
    weight = (share * num).clamp(min=MIN_PRIORITY) ** -correction
    return index, weight / ranks.largest(weight.amax())


def gather(data: Tensor, index: Tensor, layout: Layout, steps: int = 1) -> Batch:
    """The batch of the rows at `index`, or of the transitions if rows are films.

    If a row is a segment of several `steps`, the second dimension of each field is the step.
    """
    if layout.film is not None:
        return _gather_film(data, index, layout, layout.film)
    rows, columns = data[index], layout.columns()

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


def _gather_film(data: Tensor, index: Tensor, layout: Layout, film: Film) -> Batch:
    """The batch of the transitions, or of the whole films, at `index`; their stacks of frames are put together here."""
    columns, steps = layout.columns(), film.steps
    every, empty = torch.arange(steps, device=data.device), data.new_zeros((len(index), 0))
    row = index[:, None] if film.whole else index // steps
    step = every[None, :] if film.whole else index % steps

    def number(name: str) -> Tensor:
        return data[row, columns[name].start + step] if name in columns else empty

    def vector(name: str) -> Tensor:
        size = layout.size(name) // steps
        parts = torch.arange(size, device=data.device)
        start: Tensor = columns[name].start + step * size
        return data[row[..., None], start[..., None] + parts]

    obs, next_obs = number("obs").long(), number("next_obs").long()
    # The frames before it that belong to the episode; of the next one, all those in between do, too.
    back = number("back").long()
    reward = number("reward")
    ones = torch.ones_like(reward[:, 0] if film.whole else reward)
    return Batch(
        obs=_stacks(data, row, obs, back, film),
        action=vector("action"),
        reward=reward,
        discount=number("discount"),
        next_obs=_stacks(data, row, next_obs, back + next_obs - obs, film),
        log_prob=number("log_prob"),
        ended=number("ended"),
        past_return=number("past_return"),
        weight=ones,
        entropy_shift=torch.zeros_like(ones),
    )


def _stacks(data: Tensor, row: Tensor, frame: Tensor, back: Tensor, film: Film) -> Tensor:
    """What networks read: the pixels of each stack from 0 to 1, oldest frame first, then the other numbers.

    At the start of an episode its first frame is repeated.
    """
    frames = film.frames
    films = data[:, : film.capacity * frames.words].view(len(data), film.capacity, frames.words)
    before = torch.arange(frames.stack - 1, -1, -1, device=data.device)
    place = frame[..., None] - torch.minimum(before, back[..., None])
    # Clamped: inductor autotunes on random data, and a bad index kills the CUDA context.
    place = place.clamp(0, film.capacity - 1)
    words = films[row[..., None], place, : frames.image_words]
    pixels = words.view(torch.uint8)[..., : frames.image_bytes].flatten(-2).float() / 255
    if not frames.numbers:
        return pixels
    newest = films[row, place[..., -1], frames.image_words :]
    return torch.cat([pixels, newest], -1)


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
