"""Rows: how transitions and segments are laid out in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spreeze.spec import EnvSpec, Floats

if TYPE_CHECKING:
    from torch import Tensor


Rows = NDArray[np.void]


@dataclass(frozen=True)
class Field:
    """One named part of a row."""

    name: str
    size: int
    dtype: str = "<f4"


@dataclass(frozen=True)
class Layout:
    """The format of one row: shared memory, replay and batches are all cut by the same offsets.

    Every part is four bytes wide, so a block of rows is also one matrix of 32-bit words: the
    learner moves rows to its device as such a matrix and gathers a batch with one indexing.
    """

    fields: tuple[Field, ...]

    @property
    def dtype(self) -> np.dtype[np.void]:
        """The row as a numpy record."""
        return np.dtype([(f.name, f.dtype, (f.size,) if f.size > 1 else ()) for f in self.fields])

    @property
    def width(self) -> int:
        """32-bit words in one row."""
        return sum(field.size for field in self.fields)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return 4 * self.width

    @property
    def slack_rows(self) -> int:
        """Rows that may arrive while a GPU reads the others: many of a usual size, fewer of large ones."""
        return max(1024, min(32_768, (64 << 20) // self.row_bytes))

    def size(self, name: str) -> int:
        """Numbers in a field."""
        return next(field.size for field in self.fields if field.name == name)

    def columns(self) -> dict[str, slice]:
        """Where each field lies in the matrix view of the rows."""
        ends = np.cumsum([field.size for field in self.fields]).tolist()
        return {
            field.name: slice(end - field.size, end)
            for field, end in zip(self.fields, ends, strict=True)
        }


@dataclass(frozen=True, kw_only=True)
class RowFormat:
    """What one row of experience is: the algorithm says it, samplers make it."""

    gamma: float = 1.0
    """Discount per env step."""
    n_step: int = 1
    """Env steps folded into one transition."""
    segment: int = 1
    """Transitions side by side in one row, each with how likely its action was."""
    termination_cost: float = 0.0
    """What is taken from the reward of a step that terminates its episode."""
    past_return: bool = False
    """Whether rows carry the discounted rewards of their episode so far, by which rewards are scaled."""


TRANSITION = RowFormat()


def row_layout(spec: EnvSpec, form: RowFormat = TRANSITION) -> Layout:
    """The row of one transition, or of a segment of them, each field's steps side by side.

    `discount` is stored instead of `done`: gamma to the power of the steps covered, 0 after a
    true termination, so that no loss ever mentions truncation. `action` is in [-1, 1], or an index;
    `version` names the weights that chose it. In a segment `ended` says where an episode did, so
    that nothing is added up across it.
    """
    steps = form.segment
    fields = [
        Field("obs", steps * spec.obs_size),
        Field("action", steps * spec.action_size),
        Field("reward", steps),
        Field("discount", steps),
        Field("next_obs", steps * spec.obs_size),
    ]
    if steps > 1:
        fields += [Field("log_prob", steps), Field("ended", steps)]
    if form.past_return:
        fields.append(Field("past_return", steps))
    return Layout((*fields, Field("version", 1, "<u4")))


class Batch(NamedTuple):
    """Transitions as one update reads them: B of each, or B segments of T steps, [B, T, ...]."""

    obs: Tensor  # [B, obs]
    action: Tensor  # [B, action], in [-1, 1]; or [B, 1], an index
    reward: Tensor  # [B]
    discount: Tensor  # [B]
    next_obs: Tensor  # [B, obs]
    log_prob: Tensor  # [B, T] in segments, else empty; as the two below where rows have them not
    ended: Tensor
    past_return: Tensor
    weight: Tensor  # [B], how much each row counts in the critic's loss


def as_matrix(rows: Rows) -> Floats:
    """The same memory as a matrix of 32-bit words, one line per row."""
    return rows.view(np.float32).reshape(len(rows), -1)
