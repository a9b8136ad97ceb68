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
    pso     the same, but stores to different words may overtake each other (ARM does so too)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

Actor = Callable[[], Any]


class Crash(Exception):
    """Hits the crashing actor once, in place of any one of its steps.

    The actor may catch it and go on as its own successor. Its queue stays: what a dead process
    has stored still arrives, and in order.
    """


class _Pause(BaseException):
    """An actor has come to the end of the known answers."""


class _History:
    """The answers that an actor has got; `step` is what it does next, once that is known."""

    def __init__(self, answers: tuple[Any, ...] = ()) -> None:
        self.answers, self._after = answers, dict[Any, _History]()
        self.step: tuple[str, Any, Any] | None = None

    def after(self, answer: Any) -> _History:
        """This history and one more answer; always the same object."""
        if answer not in self._after:
            self._after[answer] = _History((*self.answers, answer))
        return self._after[answer]


class Memory:
    """Shared words, handed out as fake arrays. Outside of an exploration they are plain memory."""

    def __init__(self) -> None:
        self.cells: list[Any] = []
        self._running: _History | None = None
        self._answers: Iterator[Any] = iter(())

    def words(self, count: int) -> Words:
        """A line of words, all 0."""
        self.cells += [0] * count
        return Words(self, range(len(self.cells) - count, len(self.cells)))

    def access(self, kind: str, address: int, value: Any = None) -> Any:
        """One step; returns what is loaded."""
        if self._running is None:
            if kind == "store":
                self.cells[address] = value
            return self.cells[address]
        for answer in self._answers:
            if answer is Crash:
                raise Crash
            return answer
        self._running.step = (kind, address, value)  # here begins what was not known yet
        if kind == "load":
            raise _Pause
        self._running = self._running.after(None)  # a store is not answered: just go on

    def next_step(self, actor: Actor, history: _History) -> tuple[str, Any, Any]:
        """("load", address, None), ("store", address, value) or ("done", None, outcome)."""
        if history.step is None:
            self._running, self._answers, outcome = history, iter(history.answers), None
            try:
                outcome = actor()
                self._running.step = ("done", None, outcome)
            except Crash:
                self._running.step = ("done", None, None)
            except _Pause:
                pass
            finally:
                self._running = None
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


class Rows:
    """Stands for an array of rows: a slice is a view, assignment copies word by word."""

    def __init__(self, rows: list[Words]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return map(tuple, self._rows)

    def __getitem__(self, key: Any) -> Any:
        return Rows(self._rows[key]) if isinstance(key, slice) else self._rows[key]

    def __setitem__(self, key: Any, new: Any) -> None:
        rows, new = (self._rows[key], new) if isinstance(key, slice) else ([self[key]], [new])
        for row, values in zip(rows, new, strict=True):
            for index, value in enumerate(values):
                row[index] = value


class Explored(NamedTuple):
    """The size of a complete exploration."""

    states: int
    schedules: int


def explore(
    memory: Memory,
    actors: dict[str, Actor],
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
    schedules: dict[Any, int] = {}
    trail: list[str] = []

    def moves(cells: Any, parts: Any) -> Iterator[tuple[str, Any]]:
        for i, (name, (history, queue)) in enumerate(zip(actors, parts, strict=True)):

            def state(history: Any, queue: Any, *stored: Any, i: int = i) -> Any:
                after = list(cells)
                for address, value in stored:
                    after[address] = value
                return tuple(after), (*parts[:i], (history, queue), *parts[i + 1 :])

            kind, at, value = memory.next_step(actors[name], history)
            if kind == "load":
                value = next((v for a, v in reversed(queue) if a == at), cells[at])
                yield f"{name} loads {at}: {value}", state(history.after(value), queue)
            if kind == "store" and order == "sc":
                yield f"{name} stores {at}: {value}", state(history.after(None), queue, (at, value))
            elif kind == "store":
                yield f"{name} queues {at}: {value}", state(history.after(None), (*queue, (at, value)))
            if kind != "done" and name == crashing and Crash not in history.answers:
                yield f"{name} crashes", state(history.after(Crash), queue)
            for n, (at, value) in enumerate(queue if order == "pso" else queue[:1]):
                if all(at != earlier for earlier, _ in queue[:n]):
                    rest = (*queue[:n], *queue[n + 1 :])
                    yield f"{name} flushes {at}: {value}", state(history, rest, (at, value))

    def count(state: Any) -> int:
        if state not in schedules:
            assert_room = len(schedules) < max_states
            if not assert_room:
                raise RuntimeError(f"more than {max_states} states")
            schedules[state] = 0
            for label, after in moves(*state):
                trail.append(label)
                schedules[state] += count(after)
                trail.pop()
            if not schedules[state]:
                cells, parts = state
                memory.cells[:] = cells
                check({n: memory.next_step(actors[n], h)[2] for n, (h, _) in zip(actors, parts)})
                schedules[state] = 1
        return schedules[state]

    try:
        total = count((start, tuple((_History(), ()) for _ in actors)))
    except AssertionError as error:
        error.add_note("\n".join(trail))
        raise
    finally:
        memory.cells[:] = start
    return Explored(len(schedules), total)
