"""The acting wire: samplers ask what to do, and one process answers for all of them in batches.

Each group of environments of each sampler has a slot with its observations, the answer to them, and two words that
count questions. Each word has one writer:

    Sampler:   write the observations; asked += 1
    Answerer:  number = asked; if it is not `answered`: compute the answer, write it; answered = number
    Sampler:   when answered is its own number, read the answer

The observations of a question do not change until it is answered. A sampler that is killed leaves a question, whose
answer nobody reads: its successor asks the next one. While that one writes its observations, an answer may be computed
from a mixture, but under the old number, and the new one is answered again. An answerer that is killed has answered
or not; its successor answers what is open.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spreeze.wires.arena import Arena, Block

NUMBER, VERSION = 0, 1
GROUPS = 2
"""Groups of environments of each sampler: while one waits for its answer, the other is stepped."""


def acting_blocks(num_samplers: int, num_envs: int, obs_bytes: int, outputs: int) -> list[Block]:
    """Memory for samplers whose groups have `num_envs` environments, with so many outputs of the policy for each."""
    slots = num_samplers, GROUPS
    return [
        # The words of each slot and each side have their own cache line.
        Block("acting.asked", (*slots, 8), np.int64),
        Block("acting.answered", (*slots, 8), np.int64),
        Block("acting.obs", (*slots, num_envs, obs_bytes), np.uint8),
        Block("acting.outputs", (*slots, num_envs, outputs), np.float32),
    ]


def obs_of(arena: Arena) -> NDArray[np.uint8]:
    """The observations of all slots: [samplers, groups, environments, bytes]."""
    return arena["acting.obs"]


class End:
    """One end of a slot."""

    def __init__(
        self,
        asked: NDArray[np.int64],
        answered: NDArray[np.int64],
        obs: NDArray[np.uint8],
        outputs: NDArray[np.float32],
    ) -> None:
        """Go on after the last question of the process before this one."""
        self._asked, self._answered = asked, answered
        self.obs, self._outputs = obs, outputs
        self._number = int(asked[NUMBER])


class Question(End):
    """A sampler's end: one group of environments."""

    def ask(self, obs: NDArray[np.uint8]) -> None:
        """Ask what to do; the last question must have been answered."""
        self.obs[:] = obs
        self._number += 1
        self._asked[NUMBER] = self._number

    @property
    def is_answered(self) -> bool:
        """Whether the answer to the last question is there."""
        return int(self._answered[NUMBER]) == self._number

    @property
    def answer(self) -> NDArray[np.float32]:
        """The outputs of the policy's last layer, until the next question."""
        return self._outputs

    @property
    def version(self) -> int:
        """The version of the weights that gave the answer."""
        return int(self._answered[VERSION])


class Slot(End):
    """The other end of a question."""

    def open_question(self) -> int | None:
        """The number of the question that waits for an answer, if there is one."""
        number = int(self._asked[NUMBER])
        return None if number == int(self._answered[NUMBER]) else number

    def answer(self, number: int, outputs: NDArray[np.float32], version: int) -> None:
        """Answer the question of this number, by weights of this version."""
        self._outputs[:] = outputs
        self._answered[VERSION] = version
        self._answered[NUMBER] = number


class Acting:
    """The slots of a run."""

    def __init__(self, arena: Arena) -> None:
        """Open the wire in an arena that was created with `acting_blocks`."""
        names = ("asked", "answered", "obs", "outputs")
        self._arrays = [arena[f"acting.{name}"] for name in names]

    def question(self, sampler: int, group: int) -> Question:
        """A sampler's end; it has one asker at a time."""
        return Question(*(array[sampler, group] for array in self._arrays))

    def slots(self) -> list[Slot]:
        """The other ends of all slots."""
        samplers, groups = self._arrays[0].shape[:2]
        return [
            Slot(*(array[i, j] for array in self._arrays))
            for i in range(samplers)
            for j in range(groups)
        ]
