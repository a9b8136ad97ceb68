"""Every interleaving of a few actors over shared memory, by exhaustive search.

An actor is a plain function that runs product code over the fake arrays of a `Memory`. Each load
and store of a single word is a step. Between two steps an actor is deterministic: its next step
follows from the answers that its steps so far have got, its *history*. So no threads are needed:
to learn the next step, the actor is run from its start with the known answers and stopped where
they end. Histories form a tree, so that each step is learned only once.

A state is then the memory, and a history and a queue of stores per actor. The search visits each
reachable state once and counts the schedules that lead through it. It stops early only by
raising: an exploration that returns was complete. Actors must be free of side effects.

    order   a store ...
    sc      is seen by all at once (sequential consistency)
    tso     waits in its actor's queue, first in, first out; each flush is a choice (x86)
    pso     the same, but stores to different words may overtake each other (ARM does this too)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np


class Crash(Exception):
    """Hits the crashing actor once, in place of any one of its steps.

    The actor may catch it and go on as its own successor. Its queue stays: what a dead process
    has stored still arrives, and in order.
    """


class Pause(BaseException):
    """An actor has come to the end of the known answers."""


class History:
    """The answers that an actor has got; `step` is what it does next."""

    def __init__(self, answers: tuple[Any, ...] = ()) -> None:
        self.answers = answers
        self.step: tuple[str, Any, Any] | None = None
        self._after: dict[Any, History] = {}

    def after(self, answer: Any) -> History:
        """This history and one more answer; always the same object."""
        if answer not in self._after:
            self._after[answer] = History((*self.answers, answer))
        return self._after[answer]


class Memory:
    """Shared words, handed out as fake arrays. Outside of an exploration they are plain memory."""

    def __init__(self) -> None:
        self.cells: list[Any] = []
        self._history: History | None = None  # of the actor that is being run
        self._answers: Iterator[Any] = iter(())

    def words(self, count: int) -> Words:
        """A line of words, all 0."""
        self.cells += [0] * count
        return Words(self, range(len(self.cells) - count, len(self.cells)))

    def access(self, kind: str, address: int, value: Any = None) -> Any:
        """One step: returns what is loaded."""
        if self._history is None:
            if kind == "store":
                self.cells[address] = value
            return self.cells[address]
        for answer in self._answers:
            if answer is Crash:
                raise Crash
            return answer
        self._history.step = (kind, address, value)  # here starts what is not known yet
        if kind == "load":
            raise Pause
        self._history = self._history.after(None)  # nobody answers a store: just go on

    def next_step(self, actor: Callable[[], Any], history: History) -> tuple[str, Any, Any]:
        """("load", address, None), ("store", address, value) or ("done", outcome, None)."""
        if history.step is None:
            self._history, self._answers = history, iter(history.answers)
            try:
                outcome = actor()
                self._history.step = ("done", outcome, None)
            except Crash:
                self._history.step = ("done", None, None)
            except Pause:
                pass
            finally:
                self._history = None
        assert history.step is not None
        return history.step


class Words:
    """Stands for an array of words."""

    def __init__(self, memory: Memory, addresses: range) -> None:
        self._memory, self._addresses = memory, addresses

    def __getitem__(self, index: int) -> Any:
        return self._memory.access("load", self._addresses[index])

    def __setitem__(self, index: int, value: Any) -> None:
        self._memory.access("store", self._addresses[index], value)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(list(self), dtype)


class Rows(list[Words]):
    """Stands for an array of rows: a slice is a view, assignment copies word by word."""

    def __getitem__(self, key: Any) -> Any:
        return Rows(super().__getitem__(key)) if isinstance(key, slice) else super().__getitem__(key)

    def __setitem__(self, key: Any, values: Iterable[Any]) -> None:
        rows, values = (self[key], values) if isinstance(key, slice) else ([self[key]], [values])
        for row, new in zip(rows, values, strict=True):
            for index, value in enumerate(new):
                row[index] = value


class Explored(NamedTuple):
    """The size of a complete exploration."""

    states: int
    schedules: int


def explore(
    memory: Memory,
    actors: dict[str, Callable[[], Any]],
    check: Callable[[dict[str, Any]], None],
    order: str = "sc",
    crashing: str = "",
    max_states: int = 500_000,
) -> Explored:
    """Run the actors in every possible order, with a crash of `crashing` at every possible point.

    At each end `check` gets what the actors returned, and finds `memory` as they left it. An
    AssertionError, of `check` or of an actor, comes out with its schedule as a note.
    """
    start = tuple(memory.cells)
    counts: dict[Any, int] = {}
    trail: list[str] = []

    def moves(cells: tuple[Any, ...], parts: tuple[Any, ...]) -> Iterator[tuple[str, Any, Any]]:
        for i, (name, (history, queue)) in enumerate(zip(actors, parts, strict=True)):

            def become(history: History, queue: tuple[Any, ...]) -> tuple[Any, ...]:
                return (*parts[:i], (history, queue), *parts[i + 1 :])

            def put(address: int, value: Any) -> tuple[Any, ...]:
                return (*cells[:address], value, *cells[address + 1 :])

            kind, at, value = memory.next_step(actors[name], history)
            ...
    ...
