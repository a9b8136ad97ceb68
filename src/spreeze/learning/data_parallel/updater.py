"""Several devices in lock step: each has the whole networks, a shard of the replay and its part of a batch.

Rank after rank, one `Updater` per device runs the same chunk, in a separate thread; the first one runs in
the thread that calls `run`. What an update takes from all rows, such as the mean of the gradients, they
exchange (`networks.ranks`). So their states stay equal, and the numbers are those of one device that draws
the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace

import torch
from torch import Tensor

from spreeze.learning.data_parallel.groups import Groups
from spreeze.learning.data_parallel.shards import ShardedReplay
from spreeze.learning.state import TrainingState, named, state_names, to_state
from spreeze.learning.two_devices.updater import on_device
from spreeze.learning.updater import Updater, UpdateSetup
from spreeze.networks import ranks


class DataParallelUpdater:
    """Runs updates on several devices, `chunk` of them per call; used like an `Updater`."""

    age = 0
    """Updates by which copies from another device are behind: here there are none."""

    def __init__(self, setup: UpdateSetup, replay: ShardedReplay, seeds: Sequence[int]) -> None:
        """Prepare to update `setup.state`, which is on the first device, and copies of it on the others.

        `seeds` has the seed of each rank but the first, which draws from torch's generator.
        """
        self._devices = [shard.device for shard in replay.shards]
        self._groups: Groups | None = None
        captured = Groups(self._devices).capturable
        setup = replace(
            setup, replay=replay.shards[0], num_ranks=len(self._devices), captured=captured
        )
        names = state_names(setup.algorithm)
        self._ranks = [Updater(setup)]
        for shard, seed in zip(replay.shards[1:], seeds, strict=True):
            copies = (named(setup.state)[name].to(shard.device, copy=True) for name in names)
            state = to_state(names, copies)
            self._ranks.append(Updater(replace(setup, replay=shard, state=state, seed=seed)))
        self._first, *others = self._ranks
        self._first.followers = others
        self.algorithm, self.layout = setup.algorithm, replay.layout
        self.device, self.chunk = self._first.device, self._first.chunk
        self._threads: list[ThreadPoolExecutor] = []
        self._failures: list[BaseException] = []

    @property
    def parts(self) -> list[Updater]:
        """The updaters that are compiled separately: the first one, which the others follow."""
        return [self._first]

    @property
    def batch_size(self) -> int:
        """Rows per update, of all ranks together."""
        return self._first.batch_size

    @batch_size.setter
    def batch_size(self, size: int) -> None:
        for rank in self._ranks:
            rank.batch_size = size

    @property
    def state(self) -> TrainingState:
        """The newest networks and moments."""
        return self._first.state

    @property
    def policy(self) -> Tensor:
        """The newest policy, as samplers run it."""
        return self._first.policy

    def run(self) -> None:
        """One chunk of updates. On GPUs this only enqueues them."""
        self.prepare()  # of all ranks: one for which memory is short must not leave another in an update
        self._on_all(Updater.run)

    def prepare(self) -> None:
        """Get ready to run with the current batch size. This needs no transitions yet."""
        if not all(rank.is_prepared for rank in self._ranks):
            self._on_all(Updater.prepare)

    def pause(self) -> None:
        """Stop work in other threads until the next `run`: there is none between two."""

    def close(self) -> None:
        """End the threads, and the connections between them, which captured graphs use."""
        self.release()
        for thread in self._threads:
            thread.shutdown()
        self._threads, self._groups = [], None

    def release(self) -> None:
        """Free captured graphs and batches. Compiled forms stay."""
        for rank in self._ranks:
            with on_device(rank.device):
                rank.release()

    def restore(self, state: TrainingState) -> None:
        """Continue from this state on all devices."""
        for rank in self._ranks:
            with on_device(rank.device):
                rank.restore(state)

    def set_learning_rate(self, rate: float) -> None:
        """Learn at this rate from the next chunk on."""
        for rank in self._ranks:
            rank.set_learning_rate(rate)

    def set_entropy_shift(self, shift: float) -> None:
        """Add this to the entropy from the next chunk on."""
        for rank in self._ranks:
            rank.set_entropy_shift(shift)

    def metrics(self) -> dict[str, float]:
        """Metrics of the last update, over all ranks. This waits for the devices, so call it rarely."""
        found = [rank.metrics() for rank in self._ranks]
        return {name: sum(of[name] for of in found) / len(found) for name in found[0]}

    def _on_all(self, work: Callable[[Updater], None]) -> None:
        """Have all ranks do this at once; raises what the first one to fail has raised."""
        if self._groups is None:
            self.close()
            self._groups = Groups(self._devices)
            self._threads = [
                ThreadPoolExecutor(1, f"rank {i}", _begin, (device, torch.get_num_threads()))
                for i, device in enumerate(self._devices[1:], 1)
            ]
        futures: list[Future[None]] = [
            thread.submit(self._work, i, work) for i, thread in enumerate(self._threads, 1)
        ]
        self._work(0, work)
        wait(futures)
        if self._failures:
            failure, self._failures, self._groups = self._failures[0], [], None
            raise failure

    def _work(self, rank: int, work: Callable[[Updater], None]) -> None:
        """Do the part of one rank, in its thread. If it fails, none of the others waits for it."""
        groups = self._groups
        assert groups is not None
        try:
            ranks.join(groups.join(rank))
            work(self._ranks[rank])
        except BaseException as error:
            if not self._failures:
                error.add_note(f"This was rank {rank}, on {self._devices[rank]}.")
            self._failures.append(error)
            ranks.join(None)
            groups.abort(rank)
        finally:
            ranks.join(None)


def _begin(device: torch.device, num_threads: int) -> None:
    """Get the thread of a rank ready."""
    torch.set_num_threads(num_threads)
    torch.set_flush_denormal(True)
    if device.type == "cuda":
        torch.cuda.set_device(device)
