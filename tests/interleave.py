"""Every interleaving of a few actors over shared memory, by exhaustive search.

An actor is a function without side effects that runs product code over the fake arrays of a
`Memory`; each load or store of a word is a step. To learn its next step, it is run from its start
with the answers that its steps so far have got, its log, and stopped where they end: no threads.
A state is the memory, and a log and a queue of stores per actor. The search visits each reachable
state once and counts the schedules through it. It stops early only by raising: an exploration
that returns was complete. The order says when a store is seen by the other actors:

    sc     at once (sequential consistency)
    tso    it waits in its actor's queue, first in, first out; each flush is a choice (x86)
    pso    the same, but stores to different words may overtake each other (ARM does so too)
"""

import functools
from collections import UserList
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

MAX_STATES = 500_000
Actors = Mapping[str, Callable[[], Any]]
Check = Callable[[dict[str, Any]], None]


class Crash(Exception):
    """Hits the crashing actor in place of a step, to be caught there; its queue still arrives."""


class _Pause(BaseException):
    """An actor has come to the end of its log; this is its next step."""


@dataclass
class Memory:
    """Shared words, handed out as fake arrays; plain memory while no actor is being run."""

    cells: list[Any] = field(default_factory=list)
    log: Iterator[Any] | None = None  # what is left of the log of the running actor

    def words(self, count: int) -> "Words":
        """A line of words, all 0."""
        self.cells += [0] * count
        return Words(self, range(len(self.cells) - count, len(self.cells)))

    def access(self, kind: str, at: int, value: Any = None) -> Any:
        """One step; returns what is loaded."""
        if self.log is None:
            self.cells[at] = value if kind == "store" else self.cells[at]
            return self.cells[at]
        answer = next(self.log, _Pause(kind, at, value))
        if answer is Crash or isinstance(answer, _Pause):
            raise answer
        return answer


@dataclass
class Words:
    """Stands for an array of words."""

    memory: Memory
    addresses: range

    def __getitem__(self, index: int) -> Any:
        return self.memory.access("load", self.addresses[index])

    def __setitem__(self, index: int, value: Any) -> None:
        self.memory.access("store", self.addresses[index], value)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array([self[i] for i in range(len(self.addresses))], dtype)


class Rows(UserList[Any]):
    """Stands for an array of rows: a slice is a view, to copy from it or to it is word by word."""

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return map(tuple, self.data)

    def __setitem__(self, key: Any, new: Any) -> None:
        rows, new = (self.data[key], new) if isinstance(key, slice) else ([self[key]], [new])
        for row, values in zip(rows, new, strict=True):
            for index, value in enumerate(values):
                row[index] = value


def explore(
    memory: Memory, actors: Actors, check: Check, order: str = "sc", crashing: str = ""
) -> tuple[int, int]:
    """Run the actors in every order; the one called `crashing` also with a crash at every point.

    At each end `check` gets what the actors returned, and finds `memory` as they left it. Returns
    the number of schedules, and of states; an AssertionError brings its schedule as a note.
    """
    trail: list[str] = []

    @functools.cache
    def next_step(name: str, log: tuple[Any, ...]) -> tuple[Any, ...]:
        memory.log = iter(log)
        try:
            return "done", None, actors[name]()
        except _Pause as step:
            return step.args
        finally:
            memory.log = None

    def put(cells: Any, at: int, value: Any) -> tuple[Any, ...]:
        return (*cells[:at], value, *cells[at + 1 :])

    def moves(cells: Any, name: str, log: Any, queue: Any) -> Iterator[tuple[str, Any, Any, Any]]:
        """What an actor can do: in words, and the memory and its own log and queue afterwards."""
        kind, at, value = next_step(name, log)
        if kind == "load":
            value = next((v for a, v in reversed(queue) if a == at), cells[at])
            yield f"loads {value} from {at}", cells, (*log, value), queue
        elif kind == "store" and order == "sc":
            yield f"stores {value} to {at}", put(cells, at, value), (*log, None), queue
        elif kind == "store":
            yield f"queues {value} for {at}", cells, (*log, None), (*queue, (at, value))
        if kind != "done" and name == crashing and Crash not in log:
            yield "crashes", cells, (*log, Crash), queue
        for n, (at, value) in enumerate(queue if order == "pso" else queue[:1]):
            if all(at != earlier for earlier, _ in queue[:n]):
                rest = queue[:n] + queue[n + 1 :]
                yield f"flushes {value} to {at}", put(cells, at, value), log, rest

    @functools.cache
    def num_schedules(cells: Any, parts: Any) -> int:
        if num_schedules.cache_info().currsize >= MAX_STATES:
            raise RuntimeError(f"this exploration has more than {MAX_STATES} states")
        total = 0
        for i, name in enumerate(actors):
            for text, after, *part in moves(cells, name, *parts[i]):
                trail.append(f"{name} {text}")
                total += num_schedules(after, (*parts[:i], tuple(part), *parts[i + 1 :]))
                trail.pop()
        if total == 0:
            memory.cells[:] = cells
            check({a: next_step(a, log)[2] for a, (log, _) in zip(actors, parts, strict=True)})
        return max(total, 1)

    try:
        total = num_schedules(tuple(memory.cells), (((), ()),) * len(actors))
        return total, num_schedules.cache_info().currsize
    except AssertionError as violation:
        violation.with_traceback(None).add_note("\n".join(trail))
        raise
