"""Rows: how transitions and segments are laid out in memory, and where the replay keeps them.

Samplers write rows into shared memory, the replay stores them, batches are cut from them: one layout for all.
Imports no torch, so that every package can import it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from spreeze.images import FrameLayout
from spreeze.spec import EnvSpec, Floats

if TYPE_CHECKING:
    from torch import Tensor

Rows = NDArray[np.void]
"""A record array whose dtype is `Layout.dtype`."""

Placement = Literal["gpu", "pinned", "host"]
"""Where the replay is stored: in GPU memory; in pinned host memory, which the GPU reads; in pageable host memory,
which it cannot read."""
PLACEMENTS: tuple[Placement, ...] = get_args(Placement)


@dataclass(frozen=True)
class Field:
    """A named field of a row: `size` numbers of one type."""

    name: str
    size: int
    dtype: str = "<f4"


@dataclass(frozen=True)
class Film:
    """A row with images: consecutive transitions of one environment, and each of their frames once.

    Transitions name their frames by position. At its start a film repeats the few frames of the film before it that
    its first stacks need.
    """

    frames: FrameLayout
    steps: int
    """Transitions in a film."""
    capacity: int
    """Frames in a film: those that its transitions start from, their context, and the last ones of truncated episodes."""
    whole: bool
    """Whether updates draw whole films, as segments, and not transitions."""


@dataclass(frozen=True)
class Layout:
    """The fields of a row and their offsets, in shared memory, in the replay and in batches.

    Every number has four bytes, so a block of rows is also one float32 matrix: the learner copies
    rows to its device as such a matrix and gathers a batch with one indexing operation.
    """

    fields: tuple[Field, ...]
    film: Film | None = None
    """How a row keeps frames; None without images."""

    @property
    def dtype(self) -> np.dtype[np.void]:
        """The dtype of a row as a numpy record."""
        return np.dtype([(f.name, f.dtype, (f.size,) if f.size > 1 else ()) for f in self.fields])

    @property
    def width(self) -> int:
        """Numbers in a row: columns of the matrix view."""
        return sum(field.size for field in self.fields)

    @property
    def row_bytes(self) -> int:
        """Size of a row in bytes."""
        return 4 * self.width

    @property
    def slack_rows(self) -> int:
        """Spare rows of a replay, for rows that arrive while the GPU reads the others: up to 64 MB of them."""
        fewest = 64 if self.film is not None else 1024
        return max(fewest, min(32_768, (64 << 20) // self.row_bytes))

    @property
    def drawn_steps(self) -> int:
        """How many transitions of a row can be drawn, each for itself; 1 if rows are drawn whole."""
        return self.film.steps if self.film is not None and not self.film.whole else 1

    @property
    def drawn_bytes(self) -> int:
        """Bytes of what updates draw: a row, or a transition's part of it."""
        return -(-self.row_bytes // self.drawn_steps)

    def rows_for(self, drawn: int) -> int:
        """The rows that have so many of what updates draw."""
        return max(drawn // self.drawn_steps, 1)

    def size(self, name: str) -> int:
        """Numbers in the field `name`."""
        return next(field.size for field in self.fields if field.name == name)

    def columns(self) -> dict[str, slice]:
        """The columns of each field in the matrix view."""
        ends = np.cumsum([field.size for field in self.fields]).tolist()
        return {
            field.name: slice(end - field.size, end)
            for field, end in zip(self.fields, ends, strict=True)
        }


@dataclass(frozen=True, kw_only=True)
class RowFormat:
    """What samplers put into a row; the algorithm chooses it."""

    gamma: float = 1.0
    """Discount per env step."""
    n_step: int = 1
    """Env steps in one transition."""
    segment: int = 1
    """Consecutive transitions in one row; with more than one, each has the log-probability of its action."""
    termination_cost: float = 0.0
    """Subtracted from the reward of a step that terminates its episode."""
    past_return: bool = False
    """Whether rows hold the discounted return of their episode so far, which reward normalisation needs."""


TRANSITION = RowFormat()
"""One step, undiscounted, nothing optional."""
FILM_STEPS = 128
"""Transitions in a film of which updates draw single ones. With more, rows arrive later; with fewer, more frames are
kept twice."""
SPARE_FRAMES = 1
"""Frames of a film for the ends of truncated episodes. With more of those, it ends early and repeats transitions."""


def steps_in_row(spec: EnvSpec, form: RowFormat) -> int:
    """Transitions that are stored in one row."""
    return FILM_STEPS if spec.images and form.segment == 1 else form.segment


def film_of(spec: EnvSpec, form: RowFormat) -> Film | None:
    """How rows of this form keep frames; None without images."""
    if not spec.images:
        return None
    steps = steps_in_row(spec, form)
    capacity = spec.stack - 1 + steps + form.n_step + SPARE_FRAMES
    return Film(spec.frames, steps, capacity, form.segment > 1)


def row_layout(spec: EnvSpec, form: RowFormat = TRANSITION) -> Layout:
    """The layout of one transition, or of a segment: each field then holds all steps in a row.

    `discount` replaces `done`: gamma to the power of the steps covered, and 0 after a true termination,
    so no loss has to know about truncation. `action` is in [-1, 1], or an index. `version` is that of
    the weights that chose it. In a segment `ended` marks the last step of an episode, across which
    no return may be summed. With images, `obs` and `next_obs` are the positions of frames in the row's film, and
    `back` is how many frames before `obs` belong to its episode, as far as a stack reaches.
    """
    film, steps = film_of(spec, form), steps_in_row(spec, form)
    size = spec.obs_size if film is None else 1
    fields = [
        Field("obs", steps * size),
        Field("action", steps * spec.action_size),
        Field("reward", steps),
        Field("discount", steps),
        Field("next_obs", steps * size),
    ]
    if film is not None:
        fields.insert(0, Field("frames", film.capacity * film.frames.words))
        fields.append(Field("back", steps))
    if form.segment > 1:
        fields += [Field("log_prob", steps), Field("ended", steps)]
    if form.past_return:
        fields.append(Field("past_return", steps))
    return Layout((*fields, Field("version", 1, "<u4")), film)


class Batch(NamedTuple):
    """The tensors of one update: B transitions, or B segments of T steps as [B, T, ...]."""

    obs: Tensor  # [B, obs]
    action: Tensor  # [B, action], in [-1, 1]; or [B, 1], an index
    reward: Tensor  # [B]
    discount: Tensor  # [B]
    next_obs: Tensor  # [B, obs]
    log_prob: Tensor  # [B, T]; empty if the rows do not have it, like the next two
    ended: Tensor  # [B, T]
    past_return: Tensor  # [B] or [B, T]
    weight: Tensor  # [B], the weight of each row in the critic's loss
    entropy_shift: (
        Tensor  # [B], what a schedule adds to the target entropy or to the weight of a bonus
    )


def as_matrix(rows: Rows) -> Floats:
    """A view of the same memory as a float32 matrix, one line per row."""
    return rows.view(np.float32).reshape(len(rows), -1)
