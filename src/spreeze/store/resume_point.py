"""Where a run continues: the newest usable checkpoint, and what it says beside the tensors.

An asynchronous run continues from its newest checkpoint. A serial run repeats bit for bit, so it continues
from a boundary: a checkpoint at which the run itself closed all roles and started them again from it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spreeze.errors import DamagedFile
from spreeze.store.checkpoint import LoadedTraining, load_training
from spreeze.store.tensors import MAX_TENSOR_BYTES

STEM = "progress"
"""The name of its file in a checkpoint."""


@dataclass(frozen=True)
class ResumePoint:
    """What a checkpoint stores beside tensors and config."""

    env_steps: list[int]
    """By sampler, like the next."""
    episodes: list[int]
    tuned: dict[str, float]
    """The settings on the control wire that the controller moves."""
    lanes: list[int]
    """The number of the next row to take from each lane."""
    rows: tuple[int, int]
    """First and end number of the rows that the replay store has for this checkpoint."""
    serial: bool = False
    boundary: bool = False
    """Whether a serial run can continue from here."""

    def to_json(self) -> dict[str, Any]:
        """As it is stored."""
        return dataclasses.asdict(self)

    @staticmethod
    def of(loaded: LoadedTraining) -> ResumePoint:
        """What a checkpoint says; DamagedFile if that is nonsense. Older ones only count steps."""
        stored = loaded.data.get(STEM)
        if stored is None:
            return ResumePoint([loaded.env_steps], [0], {}, [], (0, 0))
        try:
            first, end = map(_count, stored["rows"])
            return ResumePoint(
                [_count(number) for number in stored["env_steps"]],
                [_count(number) for number in stored["episodes"]],
                {str(name): float(value) for name, value in stored["tuned"].items()},
                [_count(number) for number in stored["lanes"]],
                (first, end),
                bool(stored["serial"]),
                bool(stored["boundary"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise DamagedFile(f"{loaded.path / STEM}.json cannot be used: {error!r}.") from None

    def spread(self, numbers: list[int], num_samplers: int) -> list[int]:
        """Counts by sampler; if there are more or fewer samplers now, the total in equal shares."""
        if len(numbers) == num_samplers:
            return numbers
        share, rest = divmod(sum(numbers), num_samplers)
        return [share + (i < rest) for i in range(num_samplers)]


def _count(number: Any) -> int:
    """A stored count; ValueError if it cannot be one."""
    if type(number) is not int or not 0 <= number < 2**53:
        raise ValueError(f"{number!r:.40} is not a count")
    return number


def find_resume_point(
    run: str, serial: bool, *, keep: bool = True, limit: int = MAX_TENSOR_BYTES
) -> tuple[LoadedTraining, ResumePoint] | None:
    """The checkpoint to continue from, and what it says; `keep` and `limit` as in `load_training`.

    None if a serial run has not reached its first boundary: it starts from the beginning.
    """

    def wanted(data: dict[str, dict[str, Any]]) -> bool:
        stored = data.get(STEM, {})
        return not serial or not stored.get("serial") or bool(stored.get("boundary"))

    folder = Path(run) / "checkpoints"
    try:
        loaded = load_training(folder, limit, keep=keep, wanted=wanted)
    except DamagedFile:
        if not serial:
            raise
        load_training(folder, keep=False)  # DamagedFile, unless one is whole but no boundary
        return None
    return loaded, ResumePoint.of(loaded)
