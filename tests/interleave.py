"""Every interleaving of a few actors over shared memory, by exhaustive search.

An actor is a function without side effects that runs product code on the fake arrays of a `Memory`.
Each load or store of a word is a step. There are no threads: to find the next step of an actor, it is
run from its start with the answers that its steps have received so far, its log, and stopped where the
log ends. A state is the memory, plus a log and a queue of stores per actor. The search visits each
reachable state once and counts the schedules through it. It stops early only by raising, so an
exploration that returns was complete. The memory order says when other actors see a store:

    sc     at once (sequential consistency)
    tso    when it leaves its actor's queue, first in, first out; each flush is a choice (x86)
    pso    the same, but stores to different words may overtake each other (as on ARM)
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
    """Raised in the crashing actor instead of a step, and caught there; its queue is still flushed."""


class _Pause(BaseException):
    """An actor has reached the end of its log; the arguments are its next step."""


@dataclass
class Memory:
    """Shared words, accessed through fake arrays; plain memory while no actor runs."""

    cells: list[Any] = field(default_factory=list)
    log: Iterator[Any] | None = None  # the rest of the running actor's log

    def words(self, count: int) -> "Words":
        """An array of `count` words, all 0."""
        self.cells += [0] * count
        return Words(self, range(len(self.cells) - count, len(self.cells)))

    def access(self, kind: str, at: int, value: Any = None) -> Any:
        """One step; a load returns the value."""
        if self.log is None:
            self.cells[at] = value if kind == "store" else self.cells[at]
            return self.cells[at]
        answer = next(self.log, _Pause(kind, at, value))
        if answer is Crash or isinstance(answer, _Pause):
            raise answer
        return answer


@dataclass
class Words:
    """A fake array of words."""

    memory: Memory
    addresses: range

    def __getitem__(self, index: int) -> Any:
        return self.memory.access("load", self.addresses[index])

    def __setitem__(self, index: int, value: Any) -> None:
        self.memory.access("store", self.addresses[index], value)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array([self[i] for i in range(len(self.addresses))], dtype)


class Rows(UserList[Any]):
    """A fake array of rows: a slice is a view, and copies go word by word."""

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
    """Run the actors in every order; the one named `crashing` also with a crash at every point.

    At the end of each schedule, `check` gets what the actors returned and finds `memory` as they left
    it. Returns the number of schedules and of states. An AssertionError has its schedule as a note.
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
        """What an actor can do next: a description, and the memory, its log and its queue afterwards."""
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
