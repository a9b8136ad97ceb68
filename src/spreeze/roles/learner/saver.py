"""Saves checkpoints and the newest rows of the replay without stopping the updates.

A save is a generator that does a little at each unit of work of the learner: it copies rows a few
megabytes at a time, then the last good state. A thread writes them to disk. There is at most one save at
a time: one that is due while the disk is still busy is skipped. In serial mode everything happens at once.

The state matters most. So if the disk refuses rows, the checkpoint is written without them, and those
that the replay still holds are written with the next one. When the run ends, rows get a few seconds.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, cast

import torch
from torch import Tensor

from spreeze.errors import RunFailed
from spreeze.faults import fault_point
from spreeze.learning.data_parallel.shards import AnyReplay
from spreeze.learning.last_good import LastGood
from spreeze.learning.state import TrainingState, policy_vector
from spreeze.roles.context import Context
from spreeze.roles.learner.intake import Intake
from spreeze.roles.learner.restore import Restored, replay_store
from spreeze.spec import Floats
from spreeze.store.checkpoint import save_training
from spreeze.store.replay_store import ReplayStore
from spreeze.store.resume_point import STEM, ResumePoint
from spreeze.wires.control import Control

MOST_WAITING = 4
"""Blocks of rows that may wait for a slow disk."""
LAST_ROWS_S = 4.0
"""How long rows may take at the end of a run: the supervisor waits 10 s, and the checkpoint comes after them."""
POLL_S = 0.001
TUNED = ("active_samplers", "batch_size", "min_updates_per_step")


class Saver:
    """Writes the checkpoints of one learner."""

    def __init__(
        self,
        ctx: Context,
        restored: Restored,
        last_good: LastGood,
        replay: AnyReplay,
        intake: Intake,
    ) -> None:
        """Number rows as the run did before, if it is the same run that goes on."""
        self._ctx, self._last_good, self._replay, self._intake = ctx, last_good, replay, intake
        self._policy = ctx.make_policy()
        self._store = replay_store(ctx, ctx.run.replay)
        self._base = restored.rows_end - replay.num_inserted if restored.same_run else 0
        """What a row's number on disk is more than its number in the replay."""
        self._stored = self._own = restored.rows_end if restored.same_run else 0
        """Rows before the first number are on disk; those from the second on, this learner has numbered."""
        self._refused = False
        """Whether the disk has refused rows of the save that is under way."""
        self._rows_until_s = math.inf
        """When to stop writing rows. In serial mode time stands still here, so all of them are written."""
        self._pool = None if ctx.config.serial else ThreadPoolExecutor(1, "saver")
        self._writing: deque[Future[None]] = deque()
        self._under_way: Generator[None, None, None] | None = None
        self._saved_s, self._updates = ctx.now(), restored.updates
        self._asked = self._asked_now()
        if self._store is not None:
            self._prepare_store(self._store)

    def _prepare_store(self, store: ReplayStore) -> None:
        """Tidy up after a learner that was killed, and say how much room the rows may take."""
        store.clear_drafts()
        store.cut(self._stored)
        layout, on_gpu = self._replay.layout, self._replay.device.type == "cuda"
        self._staging = torch.empty(store.block_rows, layout.width, pin_memory=on_gpu)
        self._ctx.note(
            f"checkpoints keep the newest {store.max_rows:,} rows of the replay, up to "
            f"{store.max_rows * layout.row_bytes / 1e6:,.0f} MB in {self._ctx.run.replay}"
        )

    def advance(self, updates: int) -> None:
        """Do a little of the save that is under way, or start one if it is due; `updates` are done now."""
        self._updates = updates
        if self._ctx.config.serial:
            return  # the runner decides: a serial run saves at its boundaries
        self._collect()
        if self._under_way is None:
            due = self._ctx.now() - self._saved_s >= self._ctx.config.checkpoint.every_s
            if not due and self._asked == self._asked_now():
                return
            self._saved_s, self._asked = self._ctx.now(), self._asked_now()
            if self._writing:
                self._ctx.note("a checkpoint is still being written, so this one is skipped")
                return
            self._under_way = self._save(boundary=False, newest=True)
        try:
            next(self._under_way)
        except StopIteration:
            self._under_way = None

    def _asked_now(self) -> int:
        """How often someone has asked for a checkpoint at once."""
        return int(self._ctx.control.supervisor["checkpoints_asked"])

    def finish(self, boundary: bool) -> None:
        """Save the last good state, and before it the rows that the disk takes in time."""
        try:
            self._under_way = None
            self._drop_waiting()
            self._rows_until_s = self._ctx.now() + LAST_ROWS_S
            for _ in self._save(boundary, newest=False):
                self._collect()
                time.sleep(POLL_S)
            while self._writing:
                self._writing.popleft().result()
        finally:
            if self._pool is not None:
                self._pool.shutdown()

    def _save(self, boundary: bool, newest: bool) -> Generator[None, None, None]:
        """One save, in small pieces; with `newest`, a newer state becomes the last good one first."""
        end, lanes = self._base + self._replay.num_inserted, self._intake.positions
        rows = (end, end)
        if self._store is not None:
            first = max(self._base + self._replay.oldest, end - self._store.max_rows)
            stored = yield from self._store_rows(first, end)
            rows = (min(first, stored), stored)
        if newest:
            while not self._last_good.take(self._updates):
                yield
            while self._last_good.examining:  # by the guard
                yield
        self._last_good.start_copy_to_host()
        good = self._last_good.good
        while (state := self._last_good.host_copy()) is None:
            yield
        control = self._ctx.control
        point = ResumePoint(
            env_steps=_by_sampler(control, "env_steps"),
            episodes=_by_sampler(control, "episodes"),
            tuned={name: float(control.supervisor[name]) for name in TUNED},
            lanes=lanes,
            rows=rows,
            serial=self._ctx.config.serial,
            boundary=boundary,
        )
        self._submit(self._write, state, good.random, good.updates, point)

    def _store_rows(self, first: int, end: int) -> Generator[None, None, int]:
        """Have the rows that are not on disk yet written, a block at a time; returns up to which they are."""
        store, replay = self._store, self._replay
        assert store is not None
        while self._writing and not self._late:
            yield
        self._refused = False
        # The last block was not full: it is written again, with the rows that fill it.
        first = max(first, self._stored - self._stored % store.block_rows, self._own)
        while first < end and not (self._refused or self._late):
            if len(self._writing) >= MOST_WAITING:
                yield
                continue
            # While the disk was busy, the window has moved on. From here to the copy it cannot.
            first = max(first, self._base + replay.oldest)
            stop = min(end, first - first % store.block_rows + store.block_rows)
            if first >= stop:
                break
            rows = self._staging[: stop - first]
            replay.start_reading(first - self._base, rows)
            while not replay.has_read:
                yield
            self._submit(self._write_block, first, rows.numpy().copy())
            first = stop
            yield
        while self._writing and not self._late:
            yield
        self._drop_waiting()
        stored = self._stored
        if self._late and stored < end:
            self._ctx.note(f"the disk is slow: the newest {end - stored:,} rows are not saved")
        return stored

    @property
    def _late(self) -> bool:
        return self._ctx.now() >= self._rows_until_s

    def _write_block(self, first: int, rows: Floats) -> None:
        """Write rows, unless the disk has refused those before them; called in the thread."""
        assert self._store is not None
        if self._refused:
            return
        try:
            self._store.write(first, rows)
            self._stored = first + len(rows)
        except OSError as error:
            self._refused = True
            self._ctx.counters["saves_failed"] += 1
            print(
                f"rows of the replay were not saved, from number {first:,} on: {error}", flush=True
            )

    def _write(
        self, state: dict[str, Tensor], random: dict[str, Tensor], updates: int, point: ResumePoint
    ) -> None:
        """Write a checkpoint; called in the thread."""
        fault_point("learner.saving")
        ctx, policy = self._ctx, self._policy
        policy.vector[:] = policy_vector(
            self._last_good.algorithm, cast(TrainingState, state)
        ).numpy()
        config = {
            "policy": policy.describe(),
            "config": ctx.config.to_json(),
            "updates": updates,
            "env_steps": sum(point.env_steps),
            "critic": self._last_good.algorithm.critic_shapes.items,
        }
        tensors = {
            "policy": policy.named(),
            "train": {name: vector.numpy() for name, vector in state.items()},
            "random": {name: numbers.numpy() for name, numbers in random.items()},
        }
        # A serial run may end between two boundaries: its last checkpoint comes on top.
        keep = ctx.config.checkpoint.keep + (point.serial and not point.boundary)
        data = {"config": config, STEM: point.to_json()}
        if save_training(ctx.run.checkpoints, updates, tensors, data, keep):
            ctx.counters["checkpoints"] += 1
        else:
            ctx.counters["saves_failed"] += 1
            if point.boundary:
                raise RunFailed(
                    f"A serial run continues from each of its checkpoints, and one could not be written "
                    f"to {ctx.run.checkpoints}. Is the disk full? Make room and use --resume."
                )

    def _submit(self, function: Callable[..., None], *arguments: Any) -> None:
        if self._pool is None:
            function(*arguments)
        else:
            self._writing.append(self._pool.submit(function, *arguments))

    def _collect(self) -> None:
        """Forget what is written. If the thread has raised, this raises."""
        while self._writing and self._writing[0].done():
            self._writing.popleft().result()

    def _drop_waiting(self) -> None:
        """Give up what the thread has not begun: the last first, so that it cannot begin one meanwhile."""
        self._writing = deque(work for work in reversed(self._writing) if not work.cancel())


def _by_sampler(control: Control, name: str) -> list[int]:
    """A count of each sampler; those on other machines count as one, if there were any."""
    elsewhere = int(control.relay[name])
    return [*control.samplers[name].tolist(), *([elsewhere] if elsewhere else [])]
