"""Two devices: the critic learns on the first, with its target and the replay, the actor on the second.

The parts are the same functions that the whole update consists of. The critic's part runs in the thread
that calls `run`, the actor's in a second thread. A chunk goes like this:

    critic   updates from the replay -> its parameters, and the rows and noise for the actor
    actor    as many updates from those rows, with the newest critic that has arrived -> its state

Meanwhile the critic continues with the next chunk, using the newest actor that has arrived. It waits if
that actor is more than `AHEAD` chunks behind. The actor can never be ahead, because it learns from what
the critic sends. In lockstep a chunk is one round and the critic waits for each answer: then the numbers
are those of one device.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from spreeze.learning.state import (
    TrainingState,
    named,
    policy_vector,
    state_names,
    to_state,
    to_tensors,
)
from spreeze.learning.two_devices.channel import Channel, ChannelClosed
from spreeze.learning.two_devices.critic_actor import ActorUpdater, CriticUpdater
from spreeze.learning.updater import Updater, UpdateSetup

AHEAD = 2
"""Chunks by which the critic may be ahead of the actor it uses: one in training, one in transit."""


class ActorFailed(RuntimeError):
    """The actor's thread ended with an error, which is the cause of this one."""


class TwoDeviceUpdater:
    """Runs updates on two devices, `chunk` of them per call; used like an `Updater`."""

    def __init__(
        self, setup: UpdateSetup, actor_device: torch.device, *, lockstep: bool = False
    ) -> None:
        """Prepare to update `setup.state` from `setup.replay`; both are on the critic's device."""
        algorithm, state = setup.algorithm, setup.state
        if algorithm.actor_loss is None:
            raise ValueError("without an actor there is nothing for a second device to do")
        self.algorithm, self.layout = algorithm, setup.replay.layout
        self.device = setup.replay.device
        per_exchange = replace(setup, chunk=1) if lockstep else setup
        self.critic = CriticUpdater(per_exchange)
        self.actor = ActorUpdater(per_exchange, actor_device)
        round_size, exchange = algorithm.config.critic_updates(), self.critic.chunk
        self._exchanges = max(1, -(-setup.chunk // exchange))
        self.chunk = self._exchanges * exchange
        """Updates that one `run` does: whole rounds."""
        self._ahead = 0 if lockstep else AHEAD * exchange
        self.age_bound = self._ahead + exchange - round_size
        """By how many updates the actor that the critic uses may be older than on one device."""
        self.age = 0
        """The same in the last chunk."""
        self._updates = 0
        self._metrics = self.actor.outgoing[-1].to(self.device, copy=True)
        # The critic's part reads the actor from `state`, so copies of the actor arrive there.
        names = [name for name in self.actor.plain.names if name != "updates"]
        self._actor = to_state(names, to_tensors(state, names))
        self._actor_updates = state["updates"].clone()
        self._into = [*to_tensors(state, names), self._actor_updates, self._metrics]
        """Where the answers of the actor arrive, in the order of `ActorUpdater.outgoing`."""
        self.critic_busy, self.actor_busy = BusyTimer(self.device), BusyTimer(actor_device)
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    @property
    def parts(self) -> list[Updater]:
        """The updaters that are compiled separately, one per device. `pause` before using them."""
        return [self.critic, self.actor]

    @property
    def batch_size(self) -> int:
        """Rows per update."""
        return self.critic.batch_size

    @batch_size.setter
    def batch_size(self, size: int) -> None:
        if size != self.batch_size:
            self.pause()
            self.critic.batch_size = self.actor.batch_size = size

    @property
    def state(self) -> TrainingState:
        """The newest critic, and the newest actor that has arrived from the other device."""
        both: TrainingState = {**self._actor, **self.critic.state}
        names = state_names(self.algorithm)
        return to_state(names, to_tensors(both, names))

    @property
    def policy(self) -> Tensor:
        """The newest policy, as samplers run it."""
        return policy_vector(self.algorithm, self.state)

    def set_learning_rate(self, rate: float) -> None:
        """Learn at this rate from the next chunk on, on both devices."""
        self.pause()
        for part in self.parts:
            part.set_learning_rate(rate)

    def set_entropy_shift(self, shift: float) -> None:
        """Add this to the entropy from the next chunk on; only the actor's part reads it."""
        self.pause()
        for part in self.parts:
            part.set_entropy_shift(shift)

    def run(self) -> None:
        """One chunk of updates. On GPUs this only enqueues them."""
        self.prepare()
        for _ in range(self._exchanges):
            try:
                self._exchange()
            except ChannelClosed:
                self.pause()
                raise ActorFailed("the actor's thread ended too early") from None

    def prepare(self) -> None:
        """Get ready to run with the current batch size, and start the actor's thread."""
        if self._thread is not None:
            return
        # Not in the thread: two graphs must not be captured at the same time.
        for part in self.parts:
            with on_device(part.device):
                part.prepare()
        _synchronize(self.actor.device)
        num_slots = AHEAD + 2
        self._batches = Channel(self.device, self.actor.device, num_slots)
        self._critics = Channel(self.device, self.actor.device, num_slots)
        self._answers = Channel(self.actor.device, self.device, num_slots)
        self._updates = 0
        self._thread = threading.Thread(
            target=self._update_actor, args=(torch.get_num_threads(),), name="actor", daemon=True
        )
        self._thread.start()

    def release(self) -> None:
        """End the thread, free captured graphs and batches. Compiled forms stay."""
        self.pause()
        for part in self.parts:
            part.release()

    def pause(self) -> None:
        """Let the actor finish the chunks it was sent, and end its thread. `run` starts it again."""
        if self._thread is None:
            return
        self._batches.close()
        self._thread.join()
        self._thread = None
        with contextlib.suppress(ChannelClosed):
            self._take_actor(self._updates)
        _synchronize(self.actor.device)
        if self._failure is not None:
            failure, self._failure = self._failure, None
            where, what = self.actor.device, f"{type(failure).__name__}: {failure}"
            raise ActorFailed(f"the actor's updates on {where} failed: {what}") from failure

    def close(self) -> None:
        """End the actor's thread."""
        self.pause()

    def restore(self, state: TrainingState) -> None:
        """Continue from this state on both devices."""
        self.pause()
        for part in self.parts:
            with on_device(part.device):
                part.restore(state)
            _synchronize(part.device)
        for name, vector in named(self._actor).items():
            vector.copy_(named(state)[name])

    def metrics(self) -> dict[str, float]:
        """Metrics of the last updates. This waits for the device, so call it rarely."""
        of_actor = zip(self.actor.plain.metric_names, self._metrics.tolist(), strict=True)
        return {**self.critic.metrics(), **dict(of_actor)}

    def _exchange(self) -> None:
        """Run the critic's chunk, send the actor what it needs for its own, take the newest actor."""
        round_size = self.algorithm.config.critic_updates()
        with self.critic_busy:
            self.critic.run()
        last = self._updates + self.critic.chunk - round_size
        self.age = last - self._answers.version
        self._updates += self.critic.chunk
        critics = to_tensors(self.critic.state, self.actor.plain.others)
        self._critics.send(critics, self._updates)
        self._batches.send(self.critic.for_actor, self._updates)
        self._take_actor(self._updates - self._ahead)

    def _take_actor(self, min_version: int) -> None:
        """Take over the newest actor that has arrived; wait for one of at least this version."""
        self._answers.take_newest(self._into, min_version)

    def _update_actor(self, num_threads: int) -> None:
        """Update the actor from what the critic sends; runs in the actor's thread."""
        torch.set_num_threads(num_threads)
        torch.set_flush_denormal(True)
        try:
            with on_device(self.actor.device, own_stream=True):
                while True:
                    self._batches.take_next(self.actor.incoming)
                    version = self._batches.version
                    self._critics.take_newest(self.actor.critics, version)
                    with self.actor_busy:
                        self.actor.run()
                    self._answers.send(self.actor.outgoing, version)
        except ChannelClosed:
            pass
        except BaseException as error:
            self._failure = error
        finally:
            for channel in (self._batches, self._critics, self._answers):
                channel.close()


class BusyTimer:
    """How long a device has computed, as a context around its work."""

    def __init__(self, device: torch.device) -> None:
        """No time yet."""
        self._device = device
        self._seconds = 0.0
        self._running: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()
        self._began = 0.0

    @property
    def seconds(self) -> float:
        """Seconds so far; on a GPU, of the work that has ended."""
        while self._running and self._running[0][1].query():  # type: ignore[no-untyped-call]
            first, last = self._running.popleft()
            self._seconds += first.elapsed_time(last) / 1e3
        return self._seconds

    def __enter__(self) -> None:
        if self._device.type == "cuda":
            _ = self.seconds  # frees events that have passed
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            first.record(torch.cuda.current_stream(self._device))
            self._running.append((first, last))
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        if self._device.type == "cuda":
            self._running[-1][1].record(torch.cuda.current_stream(self._device))
        else:
            self._seconds += time.perf_counter() - self._began


@contextmanager
def on_device(device: torch.device, own_stream: bool = False) -> Iterator[None]:
    """Make this the current device, if it is a GPU."""
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device):
        stream = torch.cuda.Stream(device) if own_stream else torch.cuda.current_stream(device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            yield


def _synchronize(device: torch.device) -> None:
    """Wait until a GPU has done all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
