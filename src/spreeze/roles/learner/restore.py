"""What a learner continues from: a checkpoint of its own run or of another, and the rows stored beside it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from spreeze.errors import DamagedFile
from spreeze.learning.data_parallel.shards import AnyReplay
from spreeze.learning.state import TrainingState, named
from spreeze.roles.context import Context
from spreeze.store.checkpoint import check_tensors, has_training_checkpoint
from spreeze.store.replay_store import FoundRows, ReplayStore
from spreeze.store.resume_point import find_resume_point
from spreeze.store.rundir import RunDir
from spreeze.store.tensors import MAX_HEADER_BYTES


@dataclass(frozen=True)
class Restored:
    """What was restored; nothing, for a run that starts from the beginning."""

    updates: int = 0
    same_run: bool = False
    """Whether this run itself goes on: its learner was killed, or a serial run passed a boundary."""
    rows_end: int = 0
    """The number that the next row gets, if it is the same run."""
    lanes: list[int] | None = None
    """The next row to take from each lane, if it is the same run."""
    random: dict[str, Tensor] = field(default_factory=dict)
    """The states of the random number generators."""
    resumed: bool = False


def replay_store(ctx: Context, folder: Path) -> ReplayStore | None:
    """The replay on disk in this folder; None if none is kept."""
    capacity_bytes = ctx.layout.drawn_bytes * int(ctx.config.replay.capacity)
    max_bytes = min(ctx.config.checkpoint.replay_mb * 1_000_000, capacity_bytes)
    if max_bytes < ctx.layout.row_bytes:
        return None
    return ReplayStore(folder, ctx.layout, ctx.config.hyper.row_format(), max_bytes)


def restore(ctx: Context, state: TrainingState, replay: AnyReplay) -> Restored:
    """Fill the networks, moments, statistics and the replay from the run that is resumed."""
    run = ctx.config.resume
    if run is None:
        return Restored()
    same_run = Path(run).absolute() == ctx.job.run_path.absolute()
    if same_run and not has_training_checkpoint(ctx.run.checkpoints):
        ctx.note("there is no checkpoint yet, so the networks start from the beginning")
        return Restored()
    vectors = named(state)
    # The state is the largest file of a checkpoint. Beside a header, this leaves room for the others.
    limit = sum(vector.nbytes for vector in vectors.values()) + MAX_HEADER_BYTES
    found = find_resume_point(run, ctx.config.serial, limit=limit)
    if found is None:
        ctx.note(
            f"{run} ended before its first boundary, so this serial run starts from the beginning"
        )
        return Restored()
    loaded, point = found
    for path, why in loaded.refused:
        ctx.note(f"{path.name} is damaged and was passed over: {why}")
    ctx.counters["checkpoints_refused"] += len(loaded.refused)
    stored = loaded.tensors["train"]
    shapes = {name: tuple(vector.shape) for name, vector in vectors.items()}
    if problems := check_tensors(stored, shapes):
        raise DamagedFile(f"{loaded.path} does not fit these networks: {'; '.join(problems)}.")
    for name, vector in vectors.items():
        vector.copy_(torch.from_numpy(stored[name]))
    _restore_rows(ctx, RunDir(Path(run)), replay, point.rows)
    random = {name: torch.from_numpy(x) for name, x in loaded.tensors.get("random", {}).items()}
    ctx.note(f"continues from {loaded.path}, with {replay.num_drawable:,} rows in the replay")
    lanes = point.lanes if same_run else None
    return Restored(loaded.updates, same_run, point.rows[1], lanes, random, resumed=True)


def _restore_rows(ctx: Context, run: RunDir, replay: AnyReplay, rows: tuple[int, int]) -> None:
    """Insert the stored rows that belong to the checkpoint; drop and name the blocks that are damaged."""
    store = replay_store(ctx, run.replay)
    if store is None:
        return
    first, end = rows
    found = FoundRows()
    for block in store.read(max(first, end - replay.capacity), end, found):
        replay.insert(block.view(replay.layout.dtype).reshape(-1))
    if found.damaged:
        names = ", ".join(found.damaged)
        ctx.note(f"{len(found.damaged)} damaged blocks of the stored replay were dropped: {names}")
    if found.refused:
        ctx.note(
            f"{len(found.refused)} blocks of the stored replay were not used: their rows have another "
            f"format (observation, n_step or gamma changed): {', '.join(found.refused)}"
        )
