"""Replay: a ring of transitions. Updates read a window of it while new rows are written beside it.

One matrix of 32-bit words, a line per transition, so that a batch is one gather. Knows nothing of
episodes: `envs` has finished every transition before it comes here.

Updates on a GPU are only enqueued; they run while the next rows arrive. So the ring has `slack` rows
more than its capacity. Updates draw from the window [start, start + fill) alone, new rows are written
behind its end, and then the window moves on, in the order of the training stream:

    copy stream       wait for the last move; write at most `slack` rows behind the window
    training stream   updates; wait for the copy; move the window; updates; ...

What is written was left by the window at the last move or before, so whoever could still read it ran
before that move; and nobody reads it before the next one. On a CPU everything happens in one order,
and there is no slack.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch
from torch import Tensor

from spreeze.rows import Batch, Layout, Placement, Rows, as_matrix

BUFFER_ROWS = 4096
SMALLEST_PRIORITY = 1e-6
PORTABLE_AND_MAPPED = 3  # flags of cudaHostRegister


class Replay:
    """A ring of the newest `capacity` transitions."""

    def __init__(
        self,
        layout: Layout,
        capacity: int,
        device: torch.device,
        placement: Placement = "gpu",
        *,
        slack: int | None = None,
        hollow: bool = False,
        prioritised: bool = False,
    ) -> None:
        """Take the memory at once: running out of it must happen before the run, not in it.

        A hollow replay has the shape but not the memory: enough to trace an update.
        """
        on_gpu = device.type == "cuda"
        self.layout, self.capacity = layout, capacity
        self.device, self.placement = device, placement
        self._hollow = hollow
        self.staged = on_gpu and placement == "host"
        """Whether the device cannot read the rows, so that batches have to be drawn here: `Stage`."""
        overlapped = on_gpu and not self.staged
        self.slack = slack if slack is not None else layout.slack_rows if overlapped else 0
        self._shape = (capacity + self.slack, layout.width)
        self.rows, self.data = (_hollow if hollow else _allocate)(self._shape, device, placement)
        # A captured or compiled update reads it from the device. Empty, it shows one row of zeros.
        self.window = torch.tensor([0, 1], device=self.data.device)
        self.priorities: Tensor | None = None
        """How likely each row is drawn, if not all alike; 0 outside the window."""
        if prioritised:
            self.priorities = torch.zeros(self._shape[0], device=self.data.device)
            self.priorities[0] = 1
        self.start = self.num_rows = 0
        self._next = 0
        self._copies = _Copies(device) if overlapped else None
        shape = (min(self.slack or BUFFER_ROWS, capacity), layout.width)
        self._buffers = [
            torch.zeros(shape, pin_memory=overlapped).numpy().view(layout.dtype).reshape(-1)
            for _ in range(2)
        ]

    def buffer(self) -> Rows:
        """A buffer for new rows: fill some of it and `insert` them. Waits until it is free."""
        if self._copies is not None:
            self._copies.wait_for_buffer()
        return self._buffers[0]

    def insert(self, rows: Rows) -> None:
        """Append rows, overwriting the oldest."""
        if self._hollow:
            raise ValueError("a hollow replay holds no rows")
        if len(rows) == 0:
            return
        fresh = torch.from_numpy(as_matrix(rows[-self.capacity :]))
        for piece in torch.split(fresh, self.slack or self.capacity):
            if self._copies is None:
                self._write(piece)
            elif self.placement == "pinned":
                self._copies.wait_for_readers()
                self._write(piece)
            else:
                with self._copies.beside_updates():
                    self._write(piece)
            self._move(len(piece))
        self._buffers.reverse()
        if self._copies is not None:
            self._copies.next_buffer()

    def leave_gpu(self) -> None:
        """Move the rows to page-locked host memory; captured updates are void then."""
        rows, data = _allocate(self._shape, self.device, "pinned")
        rows.copy_(self.data)
        self.rows, self.data, self.placement = rows, data, "pinned"

    def _write(self, fresh: Tensor) -> None:
        """Behind the window, and on from the front of the ring."""
        head = min(len(fresh), len(self.rows) - self._next)
        self.rows[self._next : self._next + head].copy_(fresh[:head], non_blocking=True)
        if head < len(fresh):
            self.rows[: len(fresh) - head].copy_(fresh[head:], non_blocking=True)

    def _move(self, num_rows: int) -> None:
        """Let the window end with the rows just written."""
        if self.priorities is not None:
            self._rank(num_rows)
        self._next = (self._next + num_rows) % len(self.rows)
        self.num_rows = min(self.num_rows + num_rows, self.capacity)
        self.start = (self._next - self.num_rows) % len(self.rows)
        self.window[0].fill_(self.start)
        self.window[1].fill_(self.num_rows)
        if self._copies is not None:
            self._copies.window_moved()

    def _rank(self, num_rows: int) -> None:
        """New rows are as likely as the likeliest one, those that leave the window are not drawn again."""
        assert self.priorities is not None
        device, size = self.priorities.device, len(self.rows)
        new = (self._next + torch.arange(num_rows, device=device)) % size
        largest = self.priorities.amax().clamp(min=SMALLEST_PRIORITY)
        left = max(0, self.num_rows + num_rows - self.capacity)
        old = (self.start + torch.arange(left, device=device)) % size
        self.priorities[old] = 0
        self.priorities[new] = largest


class Batches:
    """The batches of one chunk of updates, drawn elsewhere, in their place on the device."""

    def __init__(self, layout: Layout, chunk: int, batch_size: int, device: torch.device) -> None:
        """Room for `chunk` batches."""
        self.data = torch.zeros(chunk, batch_size, layout.width, device=device)
        # With these an update reads every row of its batch once, in order.
        self.window = torch.tensor([0, batch_size], device=device)
        self.uniform = (torch.arange(batch_size, device=device) + 0.5) / batch_size

    def fill(self) -> None:
        """Get new ones, if they do not come by themselves."""


class Stage(Batches):
    """Batches drawn on the host for a GPU that cannot read the replay."""

    def __init__(self, replay: Replay, chunk: int, batch_size: int) -> None:
        """Room for `chunk` batches, here and on the device."""
        device, width = replay.device, replay.layout.width
        super().__init__(replay.layout, chunk, batch_size, device)
        on_gpu = device.type == "cuda"
        self._replay = replay
        self._drawn = torch.zeros(chunk * batch_size, width, pin_memory=on_gpu)
        self._free = sleeping_event() if on_gpu else None

    def fill(self) -> None:
        """Draw anew, and send it after the updates that read what was there."""
        if self._free is not None:
            self._free.synchronize()
        replay = self._replay
        index = replay.start + torch.randint(max(replay.num_rows, 1), (len(self._drawn),))
        index %= len(replay.rows)
        torch.index_select(replay.rows, 0, index, out=self._drawn)
        self.data.view_as(self._drawn).copy_(self._drawn, non_blocking=True)
        if self._free is not None:
            self._free.record()


def draw(data: Tensor, window: Tensor, uniform: Tensor) -> Tensor:
    """Places of rows at uniform numbers in [0, 1): shapes never depend on how full the replay is."""
    start, fill = window[0], window[1]
    # Rounding can turn 0.99999997 * fill into fill itself.
    index = start + torch.minimum((uniform * fill).long(), fill - 1)
    return torch.where(index < len(data), index, index - len(data))


def draw_by_priority(
    priorities: Tensor, window: Tensor, uniform: Tensor, correction: float
) -> tuple[Tensor, Tensor]:
    """Places of rows, the likelier the higher their priority, and how much each counts to make up for it."""
    ends = priorities.double().cumsum(0)
    index = torch.searchsorted(ends, uniform.double() * ends[-1], right=True)
    index = index.clamp(max=len(priorities) - 1)
    share = priorities[index] / ends[-1].float()
    weight = (share * window[1]).clamp(min=SMALLEST_PRIORITY) ** -correction
    return index, weight / weight.amax()


def gather(data: Tensor, index: Tensor, columns: dict[str, slice], steps: int = 1) -> Batch:
    """The batch of the rows at these places.

    With rows of several `steps`, each field has a dimension for them after the first.
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
    )


def sleeping_event() -> torch.cuda.Event:
    """An event of CUDA that one waits for asleep instead of burning a core."""
    return torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]


class _Copies:
    """The order between copies of new rows and updates: all of CUDA's streams and events."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._moved = sleeping_event()
        self._copied = [sleeping_event() for _ in range(2)]
        self.window_moved()

    def wait_for_buffer(self) -> None:
        """Until the copy out of the buffer that is next has ended."""
        self._copied[0].synchronize()

    def wait_for_readers(self) -> None:
        """Until nobody reads what the window left behind."""
        self._moved.synchronize()

    def window_moved(self) -> None:
        """What is enqueued from now on reads the window as it is now."""
        self._moved.record(torch.cuda.current_stream(self._device))

    @contextmanager
    def beside_updates(self) -> Iterator[None]:
        """Copy while updates run; those that come later wait for it."""
        self._stream.wait_event(self._moved)
        with torch.cuda.stream(self._stream):
            yield
            self._copied[0].record(self._stream)
        torch.cuda.current_stream(self._device).wait_event(self._copied[0])

    def next_buffer(self) -> None:
        """Take the other buffer."""
        self._copied.reverse()


class _Memory:
    """An address and a shape, for `torch.as_tensor`, which then keeps this object and so the owner."""

    def __init__(self, owner: Tensor, shape: tuple[int, int]) -> None:
        self.owner = owner
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": "<f4",
            "data": (owner.data_ptr(), False),
            "version": 3,
        }


def _allocate(
    shape: tuple[int, int], device: torch.device, placement: Placement
) -> tuple[Tensor, Tensor]:
    """The rows as they are written here, and as updates read them."""
    if device.type == "cpu" or placement == "gpu":
        rows = torch.zeros(shape, device=device)
        return rows, rows
    rows = torch.zeros(shape)
    return rows, _readable(rows, device) if placement == "pinned" else rows


def _readable(rows: Tensor, device: torch.device) -> Tensor:
    """Host memory as a tensor of the device, which reads it over the bus."""
    # Locked in place: torch's own page-locked memory comes in powers of two.
    cuda, address = torch.cuda.cudart(), rows.data_ptr()  # type: ignore[no-untyped-call]
    with torch.cuda.device(device):
        code = int(cuda.cudaHostRegister(address, rows.nbytes, PORTABLE_AND_MAPPED))
    if code != 0:
        with suppress(RuntimeError):
            torch.zeros(1, device=device)  # takes the error that CUDA has kept for the next call
        raise torch.OutOfMemoryError(
            f"{rows.nbytes / 2**30:.1f} GiB of host memory could not be page-locked (CUDA error {code})"
        )
    memory = _Memory(rows, (rows.shape[0], rows.shape[1]))
    weakref.finalize(memory, cuda.cudaHostUnregister, address).atexit = False
    data = torch.as_tensor(memory, device=device)
    if data.data_ptr() != address:
        raise RuntimeError("this system cannot read host memory from the GPU by its own address")
    return data


def _hollow(
    shape: tuple[int, int], device: torch.device, placement: Placement
) -> tuple[Tensor, Tensor]:
    """A tensor of that shape of which only the first row is there, with some numbers in it."""
    if device.type == "cpu" or placement == "host":
        return _allocate(shape, device, placement)  # the system gives memory when it is touched
    rows = torch.as_tensor(_Memory(torch.randn(1, shape[1], device=device), shape), device=device)
    return rows, rows
