"""Runs updates on one device: eagerly on a CPU, as a CUDA graph of several updates on a GPU.

Both switch to the compiled form of the same function as soon as there is one (`compiled`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spreeze.algos.base import Algorithm
from spreeze.learning.minibatch import HostSampledBatches, SampledBatches
from spreeze.learning.replay import Replay
from spreeze.learning.state import (
    Part,
    TrainingState,
    named,
    policy_vector,
    to_state,
    to_tensors,
)
from spreeze.learning.step import StepFunction, UpdateInputs, UpdateOutputs, UpdateStep

ONE_CAPTURE = threading.Lock()
"""Torch allows one capture at a time in a process; ranks are threads."""


def out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory is short, in any of the forms in which torch and CUDA report it."""
    words = ("out of memory", "ALLOC_FAILED")
    said = isinstance(error, torch.OutOfMemoryError) or any(word in str(error) for word in words)
    # A failed capture hides its cause.
    return said or (error.__context__ is not None and out_of_memory(error.__context__))


@dataclass(frozen=True)
class UpdateSetup:
    """What an updater needs."""

    algorithm: Algorithm
    replay: Replay
    state: TrainingState
    """On a GPU it is updated in place."""
    batch_size: int
    rates: tuple[float, float]
    """Learning rate and tau."""
    chunk: int = 1
    """Updates per call of `run`, rounded up to whole rounds."""
    num_ranks: int = 1
    """How many ranks share each batch; `replay` has the rows of this one."""
    seed: int | None = None
    """Where the random numbers of this updater begin; None: they are torch's, which a checkpoint holds."""
    captured: bool = True
    """Whether a GPU may run a chunk as one CUDA graph."""


class Generators:
    """Random number generators of one updater, beside those of torch."""

    def __init__(self, device: torch.device, seed: int) -> None:
        """On the device that learns, and on the host."""
        self.device = torch.Generator(device).manual_seed(seed)
        self.host = torch.Generator().manual_seed(seed)


class Updater:
    """Runs updates on one device, `chunk` of them per call."""

    part: Part = "whole"
    age = 0
    """Updates by which copies from another device are behind: here there are none."""

    def __init__(self, setup: UpdateSetup) -> None:
        """Prepare to update `setup.state` from `setup.replay`."""
        replay = setup.replay
        self.batch_size = setup.batch_size
        self.algorithm = setup.algorithm
        self.plain = UpdateStep(setup.algorithm, replay.layout, self.part, setup.num_ranks)
        """The update that is not compiled."""
        self.layout, self.device = replay.layout, replay.device
        self.num_ranks = setup.num_ranks
        self.followers: Sequence[Updater] = ()
        """Updaters of other ranks, which run the compiled form that this one runs."""
        self._captured = setup.captured and self.device.type == "cuda"
        self._random = None if setup.seed is None else Generators(self.device, setup.seed)
        self._round = setup.algorithm.config.critic_updates()
        self._replay = replay
        self._action_size = replay.layout.size("action") // replay.layout.drawn_steps
        self._rates = torch.tensor([*setup.rates, 0.0], device=self.device)
        self._num_rounds = -(-setup.chunk // self._round)
        self.chunk = self._num_rounds * self._round
        """Updates that one `run` does."""
        names, others = self.plain.names, self.plain.others
        self._state = to_state(names, to_tensors(setup.state, names))
        self._others = to_state(others, to_tensors(setup.state, others))
        self._metrics = torch.zeros(0)
        self._compiled: dict[int, StepFunction] = {}
        self._prepared: dict[int, Callable[[], None]] = {}
        self._batches: dict[int, SampledBatches] = {}

    @property
    def parts(self) -> list[Updater]:
        """The updaters that are compiled separately: this one."""
        return [self]

    @property
    def state(self) -> TrainingState:
        """The newest networks and moments."""
        return self._state.copy()

    @property
    def policy(self) -> Tensor:
        """The newest policy, as samplers run it."""
        return policy_vector(self.algorithm, self._state)

    def run(self) -> None:
        """One chunk of updates. On a GPU this only enqueues them."""
        if (batches := self._sampled_batches(self.batch_size)) is not None:
            batches.fill()
        self.prepare()
        self._prepared[self.batch_size]()

    def prepare(self) -> None:
        """Get ready to run with the current batch size. This needs no transitions yet."""
        if not self.is_prepared:
            self._prepared[self.batch_size] = self._prepare()

    def install_compiled(self, batch_size: int, step: StepFunction) -> None:
        """From now on, run this compiled form of the update for this batch size."""
        self._compiled[batch_size] = step
        self._prepared.pop(batch_size, None)

    @property
    def is_prepared(self) -> bool:
        """Whether it is ready to run with the current batch size."""
        return self.batch_size in self._prepared

    def pause(self) -> None:
        """Stop work in other threads until the next `run`: here there is none."""

    def close(self) -> None:
        """End other threads: here there are none."""

    def release(self) -> None:
        """Free captured graphs and batches. Compiled forms stay."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # a graph may be running
        self._prepared.clear()
        self._batches.clear()

    def restore(self, state: TrainingState) -> None:
        """Continue from this state. It is copied in place, because captured graphs keep their tensors."""
        for mine in (self._state, self._others):
            for name, vector in named(mine).items():
                vector.copy_(named(state)[name])

    def set_learning_rate(self, rate: float) -> None:
        """Learn at this rate from the next chunk on. In place: captured graphs read the same tensor."""
        self._rates[0] = rate

    def set_entropy_shift(self, shift: float) -> None:
        """Add this to the target entropy, or to the weight of an entropy bonus, from the next chunk on."""
        self._rates[2] = shift

    def metrics(self) -> dict[str, float]:
        """Metrics of the last update. This waits for the device, so call it rarely."""
        return dict(zip(self.plain.metric_names, self._metrics.tolist(), strict=True))

    def inputs(self, batch_size: int) -> tuple[Tensor, ...]:
        """Flat inputs of one round with fresh random numbers. They do not change when rows arrive."""
        uniform, noise = self._draw_random(1, batch_size)
        if (batches := self._sampled_batches(batch_size)) is not None:
            batches.fill()
        inputs = self._inputs(0, uniform, noise, batches, self._state)
        return self.plain.flatten_inputs(inputs._replace(window=inputs.window.clone()))

    def run_eager(self) -> None:
        """One chunk of updates, without a graph."""
        plain, step = self.plain, self._compiled.get(self.batch_size, self.plain)
        uniform, noise = self._draw_random(self._num_rounds, self.batch_size)
        state, batches = self._state, self._sampled_batches(self.batch_size)
        with torch.no_grad():
            for i in range(self._num_rounds):
                inputs = self._inputs(i, uniform, noise, batches, state)
                out = plain.unflatten_outputs(step(*plain.flatten_inputs(inputs)))
                if inputs.priorities is not None and out.priorities is not None:
                    inputs.priorities[out.drawn] = out.priorities
                self._keep_for_actor(i, out, inputs.noise)
                state = out.state
        self._take_over(state, out.metrics)

    def _keep_for_actor(self, i: int, out: UpdateOutputs, noise: Tensor) -> None:
        """Keep what another device needs of the i-th round of a chunk: nothing."""

    def _inputs(
        self,
        i: int,
        uniform: Tensor,
        noise: Tensor,
        batches: SampledBatches | None,
        state: TrainingState,
    ) -> UpdateInputs:
        """The inputs of the i-th round of a chunk."""
        replay = self._replay
        if batches is not None:
            rows = batches.data[i], batches.window, batches.uniform
        else:
            rows = replay.data, replay.window, uniform[i]
        return UpdateInputs(
            replay.priorities, *rows, noise[i], self._rates, others=self._others, state=state
        )

    def _sampled_batches(self, batch_size: int) -> SampledBatches | None:
        """The batches of one chunk, if the device cannot read the replay."""
        if self._replay.sampled_on_host and batch_size not in self._batches:
            self._batches[batch_size] = HostSampledBatches(
                self._replay,
                self._num_rounds,
                self._rows_per_round(batch_size),
                self._random.host if self._random else None,
            )
        return self._batches.get(batch_size)

    def _draw_random(self, num: int, batch_size: int) -> tuple[Tensor, Tensor]:
        """Uniform numbers and noise for `num` rounds."""
        rows = self._rows_per_round(batch_size)
        generator = self._random.device if self._random else None
        uniform = torch.rand(num, rows, device=self.device, generator=generator)
        shape = (num, 2, rows, self._action_size)
        return uniform, torch.randn(shape, device=self.device, generator=generator)

    def _rows_per_round(self, batch_size: int) -> int:
        """Rows that one round draws: of each batch those that are this rank's."""
        return self._round * (batch_size // self.num_ranks)

    def _take_over(self, state: TrainingState, metrics: Tensor) -> None:
        if self.device.type == "cpu":
            self._state, self._metrics = state, metrics
            return
        # A captured graph reads and writes the tensors it was captured with: copy into them.
        names = self.plain.names
        torch._foreach_copy_(to_tensors(self._state, names), to_tensors(state, names))
        if self._metrics.shape != metrics.shape:
            self._metrics = torch.zeros_like(metrics)
        self._metrics.copy_(metrics)

    def _prepare(self) -> Callable[[], None]:
        """The fastest way to run a chunk on this device."""
        return self._capture() if self._captured else self.run_eager

    def _capture(self) -> Callable[[], None]:
        """One CUDA graph of the whole chunk: one launch instead of hundreds per update."""
        written = to_tensors(self._state, self.plain.names)
        if self._replay.priorities is not None:
            written.append(self._replay.priorities)
        before = [tensor.clone() for tensor in written]
        current = torch.cuda.current_stream(self.device)
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        graph = torch.cuda.CUDAGraph()
        if self._random is not None:
            graph.register_generator_state(self._random.device)
        stream.wait_stream(current)
        try:
            with torch.cuda.stream(stream):
                for _ in range(2):  # cuBLAS and the allocator settle before the capture
                    self.run_eager()
            current.wait_stream(stream)
            # Thread-local: another thread may be loading the compiled form.
            # And on this device's stream: torch's own is on the device of the first capture.
            with (
                ONE_CAPTURE,
                torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"),
            ):
                self.run_eager()
        finally:  # even when out of memory: the warm-up must not change the state
            current.wait_stream(stream)
            for tensor, saved in zip(written, before, strict=True):
                tensor.copy_(saved)
        return graph.replay
