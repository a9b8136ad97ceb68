"""Running updates: as they are on a CPU, several at a time as one CUDA graph on a GPU.

Either way with the compiled form of the same function as soon as there is one (`compiling`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from spreeze.algos.base import Algorithm
from spreeze.learning.replay import Batches, Replay, Stage
from spreeze.learning.update import Part, State, StepFunction, UpdateStep, policy_vector


def out_of_memory(error: BaseException) -> bool:
    """Whether it says that GPU memory is short, in any of the ways that torch and CUDA have for it."""
    words = ("out of memory", "ALLOC_FAILED")
    said = isinstance(error, torch.OutOfMemoryError) or any(word in str(error) for word in words)
    # A capture that breaks off hides its cause.
    return said or (error.__context__ is not None and out_of_memory(error.__context__))


class Updater:
    """Runs updates on one device, each time `chunk` of them."""

    part: Part = "whole"
    age = 0
    """Updates that what comes from another device is behind: nothing does."""

    def __init__(
        self,
        algorithm: Algorithm,
        replay: Replay,
        state: State,
        batch_size: int,
        rates: tuple[float, float],
        chunk: int = 1,
    ) -> None:
        """Prepare to update `state` from `replay`, with learning rate and tau in `rates`."""
        self.batch_size = batch_size
        self.algorithm = algorithm
        self.plain = UpdateStep(algorithm, replay.layout, self.part)
        self.layout, self.device = replay.layout, replay.device
        self._round = algorithm.config.critic_updates()
        self._replay = replay
        self._action_size = replay.layout.size("action")
        self._rates = torch.tensor(rates, device=self.device)
        self._priorities = [] if replay.priorities is None else [replay.priorities]
        self._others = [state[name] for name in self.plain.others]
        self._num_rounds = -(-chunk // self._round)
        self.chunk = self._num_rounds * self._round
        """Updates that one `run` does: whole rounds."""
        self._state = [state[name] for name in self.plain.names]
        self._metrics = torch.zeros(0)
        self._fast: dict[int, StepFunction] = {}
        self._prepared: dict[int, Callable[[], None]] = {}
        self._stages: dict[int, Batches] = {}

    @property
    def parts(self) -> list[Updater]:
        """What is compiled by itself: this, or the halves of it."""
        return [self]

    @property
    def state(self) -> State:
        """The newest networks and moments."""
        return dict(zip(self.plain.names, self._state, strict=True))

    @property
    def policy(self) -> Tensor:
        """The newest policy, as samplers run it."""
        return policy_vector(self.algorithm, self.state)

    def run(self) -> None:
        """One chunk of updates; on a GPU this only enqueues them."""
        if (stage := self._stage(self.batch_size)) is not None:
            stage.fill()
        self.prepare()
        self._prepared[self.batch_size]()

    def prepare(self) -> None:
        """Get ready to run with the batch size as it is; that needs no transitions yet."""
        if self.batch_size not in self._prepared:
            self._prepared[self.batch_size] = self._prepare()

    def use(self, batch_size: int, step: StepFunction) -> None:
        """From now on, run a compiled form of the same update for this batch size."""
        self._fast[batch_size] = step
        self._prepared.pop(batch_size, None)

    def pause(self) -> None:
        """Nobody works on its parts until the next `run`."""

    def forget(self) -> None:
        """Drop everything prepared, and the memory it holds; compiled forms stay."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # it may be running
        self._prepared.clear()
        self._stages.clear()

    def metrics(self) -> dict[str, float]:
        """Metrics of the last update; this waits for the device, so call it rarely."""
        return dict(zip(self.plain.metric_names, self._metrics.tolist(), strict=True))

    def inputs(self, batch_size: int) -> tuple[Tensor, ...]:
        """What a step takes, with fresh random numbers; it stays the same while new rows arrive."""
        uniform, noise = self._draw(1, batch_size)
        if (stage := self._stage(batch_size)) is not None:
            stage.fill()
        data, window, places = self._batch(0, uniform, stage)
        batch = (data, window.clone(), places)
        return (*self._priorities, *batch, noise[0], self._rates, *self._others, *self._state)

    def updates(self) -> None:
        """One chunk of updates, each from the state that the one before left."""
        step = self._fast.get(self.batch_size, self.plain)
        uniform, noise = self._draw(self._num_rounds, self.batch_size)
        state, stage = self._state, self._stage(self.batch_size)
        given = (self._rates, *self._others)
        with torch.no_grad():
            for i in range(self._num_rounds):
                batch = self._batch(i, uniform, stage)
                out = list(step(*self._priorities, *batch, noise[i], *given, *state))
                state, metrics, extras = out[: len(state)], out[len(state)], out[len(state) + 1 :]
                for priorities in self._priorities:
                    where, new, *extras = extras
                    priorities[where] = new
                self._pass_on(i, extras, noise[i])
        self._take_over(state, metrics)

    def _pass_on(self, i: int, extras: list[Tensor], noise: Tensor) -> None:
        """What else has come out of the i-th round of a chunk."""

    def _batch(
        self, i: int, uniform: Tensor, stage: Batches | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Where the i-th round of a chunk reads: rows, window of them, places in the window."""
        if stage is not None:
            return stage.data[i], stage.window, stage.uniform
        return self._replay.data, self._replay.window, uniform[i]

    def _stage(self, batch_size: int) -> Batches | None:
        """The rows of one chunk, where the replay is out of the device's reach."""
        if self._replay.staged and batch_size not in self._stages:
            self._stages[batch_size] = Stage(
                self._replay, self._num_rounds, self._round * batch_size
            )
        return self._stages.get(batch_size)

    def _draw(self, num: int, batch_size: int) -> tuple[Tensor, Tensor]:
        rows = self._round * batch_size
        uniform = torch.rand(num, rows, device=self.device)
        shape = (num, 2, rows, self._action_size)
        return uniform, torch.randn(shape, device=self.device)

    def _take_over(self, state: list[Tensor], metrics: Tensor) -> None:
        if self.device.type == "cpu":
            self._state, self._metrics = state, metrics
            return
        # A captured graph reads and writes where it was captured: same tensors, new contents.
        torch._foreach_copy_(self._state, state)
        if self._metrics.shape != metrics.shape:
            self._metrics = torch.zeros_like(metrics)
        self._metrics.copy_(metrics)

    def _prepare(self) -> Callable[[], None]:
        """The fastest way to run a chunk on this device."""
        return self.updates if self.device.type == "cpu" else self._capture()

    def _capture(self) -> Callable[[], None]:
        """One CUDA graph of the whole chunk: one launch instead of hundreds for each update."""
        written = [*self._state, *self._priorities]
        before = [tensor.clone() for tensor in written]
        current = torch.cuda.current_stream(self.device)
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        graph = torch.cuda.CUDAGraph()
        stream.wait_stream(current)
        try:
            with torch.cuda.stream(stream):
                for _ in range(2):  # cuBLAS and the allocator settle before the capture
                    self.updates()
            current.wait_stream(stream)
            # Thread-local: another thread may be loading the compiled form.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self.updates()
        finally:  # out of memory too: it must leave no trace
            current.wait_stream(stream)
            for tensor, saved in zip(written, before, strict=True):
                tensor.copy_(saved)
        return graph.replay
