"""Two devices: the critic learns on the first, with targets and replay, the actor on the second.

The halves are the very functions that the whole update consists of. The critic's runs in the thread of
whoever calls `run`, the actor's in a thread of its own; a chunk goes like this:

    critic   updates from the replay -> its parameters, and the rows and noise for the actor
    actor    as many updates from those rows, with the newest critic that has come -> its state

Meanwhile the critic is on with the next chunk, with the newest actor that has come. It waits if that
one is more than `AHEAD` chunks behind; the actor can never be ahead, for it learns from what the
critic sends. In lockstep a chunk is one round and the critic waits for each answer: the numbers
are then those of one device.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from spreeze.algos.base import Algorithm
from spreeze.learning.replay import Replay
from spreeze.learning.two_devices.channel import Channel, ChannelClosed
from spreeze.learning.two_devices.halves import ActorUpdater, CriticUpdater
from spreeze.learning.update import State, policy_vector, state_names
from spreeze.learning.updater import Updater

AHEAD = 2
"""Chunks that the critic may be ahead of the actor it uses: one is learned from, one is on its way."""


class SideFailed(RuntimeError):
    """The actor's side has ended by an error, which is the cause of this one."""


class TwoDeviceUpdater:
    """Runs updates on two devices, each time `chunk` of them; used like an `Updater`."""

    def __init__(
        self,
        algorithm: Algorithm,
        replay: Replay,
        state: State,
        batch_size: int,
        rates: tuple[float, float],
        chunk: int,
        actor_device: torch.device,
        *,
        lockstep: bool = False,
    ) -> None:
        """Prepare to update `state` from `replay`, which both are on the critic's device."""
        if algorithm.actor_loss is None:
            raise ValueError("without an actor there is nothing for a second device to do")
        per_exchange = 1 if lockstep else chunk
        self.algorithm, self.layout, self.device = algorithm, replay.layout, replay.device
        self.critic = CriticUpdater(algorithm, replay, state, batch_size, rates, per_exchange)
        self.actor = ActorUpdater(
            algorithm, replay.layout, actor_device, state, batch_size, rates, per_exchange
        )
        round_size, exchange = algorithm.config.critic_updates(), self.critic.chunk
        self._exchanges = max(1, -(-chunk // exchange))
        self.chunk = self._exchanges * exchange
        """Updates that one `run` does: whole rounds."""
        self._ahead = 0 if lockstep else AHEAD * exchange
        self.age_bound = self._ahead + exchange - round_size
        """Updates that the actor used by the critic may be older than it would be on one device."""
        self.age = 0
        """What that was in the last chunk."""
        self._updates = 0
        self._metrics = self.actor._metrics.to(self.device, copy=True)
        # The critic's half reads the actor from where it has it in `state`: copies arrive there.
        self._actors = {name: state[name] for name in self.actor.plain.names if name != "updates"}
        self._actor_updates = state["updates"].clone()
        self.critic_busy, self.actor_busy = Busy(self.device), Busy(actor_device)
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    @property
    def parts(self) -> list[Updater]:
        """The halves, each with a device of its own; `pause` before using them."""
        return [self.critic, self.actor]

    @property
    def batch_size(self) -> int:
        """Rows of an update."""
        return self.critic.batch_size

    @batch_size.setter
    def batch_size(self, size: int) -> None:
        if size != self.batch_size:
            self.pause()
            self.critic.batch_size = self.actor.batch_size = size

    @property
    def state(self) -> State:
        """The newest critic, and the newest actor that has come from the other device."""
        both = {**self._actors, **self.critic.state}
        return {name: both[name] for name in state_names(self.algorithm)}

    @property
    def policy(self) -> Tensor:
        """The newest policy, as samplers run it."""
        return policy_vector(self.algorithm, self.state)

    def run(self) -> None:
        """One chunk of updates; on GPUs this only enqueues them."""
        self.prepare()
        for _ in range(self._exchanges):
            try:
                self._exchange()
            except ChannelClosed:
                self.pause()
                raise SideFailed("the actor's side ended too early") from None

    def prepare(self) -> None:
        """Get ready to run with the batch size as it is, and start the actor's thread."""
        if self._thread is not None:
            return
        # Here and not in the thread: two graphs must not be captured at the same time.
        for half in (self.critic, self.actor):
            with _on(half.device):
                half.prepare()
        _finish(self.actor.device)
        there, back, num = self.actor.device, self.device, AHEAD + 2
        self._batches = Channel(back, there, num)
        self._critics = Channel(back, there, num)
        self._answers = Channel(there, back, num)
        self._updates = 0
        self._thread = threading.Thread(
            target=self._act, args=(torch.get_num_threads(),), name="actor", daemon=True
        )
        self._thread.start()

    def forget(self) -> None:
        """End the thread, drop everything prepared and the memory it holds; compiled forms stay."""
        self.pause()
        for half in (self.critic, self.actor):
            half.forget()

    def pause(self) -> None:
        """Let the actor do what it was given, and end its thread; `run` starts it again."""
        if self._thread is None:
            return
        self._batches.close()
        self._thread.join()
        self._thread = None
        with contextlib.suppress(ChannelClosed):
            self._take_actor(self._updates)
        _finish(self.actor.device)
        if self._failure is not None:
            failure, self._failure = self._failure, None
            where, what = self.actor.device, f"{type(failure).__name__}: {failure}"
            raise SideFailed(f"the actor's side, on {where}, has failed: {what}") from failure

    def metrics(self) -> dict[str, float]:
        """Metrics of the last updates; this waits for the device, so call it rarely."""
        of_actor = zip(self.actor.plain.metric_names, self._metrics.tolist(), strict=True)
        return {**self.critic.metrics(), **dict(of_actor)}

    def _exchange(self) -> None:
        """The critic's chunk, what the actor needs for its own, and the newest of that."""
        round_size = self.algorithm.config.critic_updates()
        with self.critic_busy:
            self.critic.run()
        last = self._updates + self.critic.chunk - round_size
        self.age = last - self._answers.version
        self._updates += self.critic.chunk
        state = self.critic.state
        critics = [state[name] for name in self.actor.plain.others]
        self._critics.send(critics, self._updates)
        self._batches.send(self.critic.for_actor, self._updates)
        self._take_actor(self._updates - self._ahead)

    def _take_actor(self, least: int) -> None:
        """Take over the newest actor that has come, and wait for one of version `least`."""
        into = [*self._actors.values(), self._actor_updates, self._metrics]
        self._answers.take_newest(into, least)

    def _act(self, num_threads: int) -> None:
        """The actor's thread."""
        torch.set_num_threads(num_threads)
        torch.set_flush_denormal(True)
        try:
            with _on(self.actor.device, own_stream=True):
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


class Busy:
    """How long a device has computed, as a context around what it does."""

    def __init__(self, device: torch.device) -> None:
        """Not yet."""
        self._device = device
        self._seconds = 0.0
        self._running: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()
        self._began = 0.0

    @property
    def seconds(self) -> float:
        """So far; on a GPU, of what has ended."""
        while self._running and self._running[0][1].query():  # type: ignore[no-untyped-call]
            first, last = self._running.popleft()
            self._seconds += first.elapsed_time(last) / 1e3
        return self._seconds

    def __enter__(self) -> None:
        if self._device.type == "cuda":
            _ = self.seconds  # lets go of events that are over
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
def _on(device: torch.device, own_stream: bool = False) -> Iterator[None]:
    """Make a GPU the current one, if it is one."""
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device):
        stream = torch.cuda.Stream(device) if own_stream else torch.cuda.current_stream(device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            yield


def _finish(device: torch.device) -> None:
    """Wait until a GPU has done everything."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
