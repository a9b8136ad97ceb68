"""A fused update as a list of steps over memory, before a device compiles it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import spreeze.learning.fusion.operations  # noqa: F401  (makes them known)
from spreeze.learning.fusion.lowering import Lowering
from spreeze.learning.fusion.nodes import Call, Input, Node, Result, Scratch, View
from spreeze.learning.fusion.places import in_memory
from spreeze.learning.fusion.record import NotRecordable, Recording
from spreeze.learning.fusion.schedule import Kernel, schedule
from spreeze.learning.fusion.source import STORED_TYPES, Body, memory
from spreeze.learning.fusion.writing import Device, write_kernel

Listing = dict[str, Any]
"""A program as plain data: see `running`."""
Binaries = dict[str, tuple[list[str], bytes]]
"""Files of machine code: the kernels in each, and its contents."""

ALIGNMENT = 256
REUSE_AFTER = 8
"""Steps after which memory that is free is used again."""
ARENA = -1
"""The memory of everything that an update computes; other memories are its inputs and constants."""


@dataclass(frozen=True)
class KernelStep:
    """A kernel, its body and the nodes whose memory it is given."""

    kernel: Kernel
    body: Body

    @property
    def arguments(self) -> list[Node]:
        """In the order of its parameters."""
        return list(self.body.arguments)

    @property
    def parameters(self) -> list[tuple[str, str]]:
        """Type and name of its parameters. Kernels that do the same to other memory have the same code."""
        return [(STORED_TYPES[node.dtype], name) for node, name in self.body.arguments.items()]


Step = KernelStep | Call


@dataclass
class Program:
    """The steps of a fused update, and where its values are in the arena."""

    outputs: list[Node]
    constants: list[Tensor]
    steps: list[Step]
    offsets: dict[Node, int] = field(default_factory=dict)
    """Where in the arena each stored node is, in bytes."""
    arena_bytes: int = 0


def build_program(recording: Recording, device: Device) -> Program:
    """Lower, schedule and write a recorded update."""
    lowering = Lowering(recording)
    steps: list[Step] = []
    for step in schedule(lowering.outputs):
        steps.append(
            KernelStep(step, write_kernel(step, device)) if isinstance(step, Kernel) else step
        )
    program = Program(lowering.outputs, lowering.constants, steps)
    _plan_memory(program)
    return program


def touched(step: Step) -> list[Node]:
    """The nodes whose memory a step reads or writes."""
    if isinstance(step, KernelStep):
        return step.arguments
    made = [node for node in step.results if node is not None]
    return [*made, *(memory(root(source)) for source in step.sources)]


def root(node: Node) -> Node:
    """The stored node that a view shows."""
    while isinstance(node, View) and not node.stored:
        node = node.sources[0]
    return node


def _plan_memory(program: Program) -> None:
    """Give every stored node a place; memory is used again when nothing reads it any more."""
    first: dict[Node, int] = {}
    last: dict[Node, int] = {}
    for number, step in enumerate(program.steps):
        for node in touched(step):
            if not isinstance(node, Input):
                first.setdefault(node, number)
                last[node] = number
    for node in program.outputs:
        if isinstance(memory(node), Input):
            raise NotRecordable("an output is an input")
        last[memory(node)] = len(program.steps)
    for node in first:
        if (
            isinstance(node, Scratch) and node.kept
        ):  # before all others, so that it shares with none
            program.offsets[node] = _take([], _num_bytes(node), program)
            last[node] = len(program.steps)
    free: list[tuple[int, int]] = []  # offset, size
    ending: dict[int, list[Node]] = {}
    for node, number in last.items():
        # Memory that is used again at once would make the next step wait for this one.
        ending.setdefault(number + REUSE_AFTER, []).append(node)
    for number in range(len(program.steps)):
        for node in (n for n, at in first.items() if at == number and n not in program.offsets):
            program.offsets[node] = _take(free, _num_bytes(node), program)
        for node in ending.get(number, []):
            _give_back(free, program.offsets[node], _num_bytes(node))


def _num_bytes(node: Node) -> int:
    return -(-node.size * node.dtype.itemsize // ALIGNMENT) * ALIGNMENT


def _take(free: list[tuple[int, int]], size: int, program: Program) -> int:
    fitting = [(have, offset) for offset, have in free if have >= size]
    if not fitting:
        program.arena_bytes += size
        return program.arena_bytes - size
    have, offset = min(fitting)
    free.remove((offset, have))
    if have > size:
        free.append((offset + size, have - size))
    return offset


def _give_back(free: list[tuple[int, int]], offset: int, size: int) -> None:
    for other in list(free):
        if other[0] + other[1] == offset:
            offset, size = other[0], other[1] + size
            free.remove(other)
        elif offset + size == other[0]:
            size += other[1]
            free.remove(other)
    free.append((offset, size))


def waits(program: Program) -> list[list[int]]:
    """The earlier steps that each step must wait for, because they touch the same memory."""
    spans = [_spans(program, step) for step in program.steps]
    found: list[list[int]] = []
    before: list[set[int]] = []  # all that a step waits for, directly or not
    for number, span in enumerate(spans):
        needed: list[int] = []
        implied: set[int] = set()
        for earlier in reversed(range(number)):
            if earlier not in implied and _clash(span, spans[earlier]):
                needed.append(earlier)
                implied |= before[earlier] | {earlier}
        found.append(needed)
        before.append(implied)
    return found


_Span = tuple[int, int, bool]
"""Where memory begins and ends, and whether it is written."""


def _spans(program: Program, step: Step) -> list[_Span]:
    written = set(step.results) if isinstance(step, Call) else set(map(memory, step.kernel.members))
    return [
        (start, start + _num_bytes(node), node in written or isinstance(node, Scratch))
        for node in touched(step)
        if (start := program.offsets.get(node, -1)) >= 0
    ]


def _clash(spans: list[_Span], others: list[_Span]) -> bool:
    return any(
        (writes or written) and start < end and first < last
        for first, end, writes in spans
        for start, last, written in others
    )


class _Places:
    """Where the values of a program are."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def of(self, node: Node) -> tuple[int, int]:
        """Which memory, and the offset in bytes."""
        if isinstance(node, Input):
            return node.number, 0
        return ARENA, self._program.offsets[memory(node)]

    def tensor(self, node: Node) -> Listing:
        """A stored node, or a view of one."""
        base, seen = in_memory(node)
        which, offset = self.of(base)
        return {
            "place": [which, offset + seen.storage_offset() * base.dtype.itemsize],
            "shape": list(seen.shape),
            "stride": list(seen.stride()),
            "dtype": _name(seen.dtype),
        }

    def result(self, node: Call | Result) -> Listing:
        """A result of the library, in the order of its dimensions."""
        seen = self.tensor(node)
        for part in ("shape", "stride"):
            seen[part] = [seen[part][node.order.index(dim)] for dim in range(len(node.order))]
        return seen

    def argument(self, value: Any) -> Any:
        """An argument of a call as JSON."""
        if isinstance(value, Node):
            return {"tensor": self.tensor(value)}
        if isinstance(value, list | tuple):
            return [self.argument(x) for x in value]
        if isinstance(value, torch.dtype):
            return {"torch": _name(value)}
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise NotRecordable(f"an argument of type {type(value).__name__}")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def listing_of(program: Program, kernels: Iterable[Listing]) -> Listing:
    """The program as plain data; `kernels` says how each kernel is started."""
    places, starts = _Places(program), iter(kernels)
    calls: list[Listing] = []
    for step in program.steps:
        if isinstance(step, KernelStep):
            arguments = [places.of(node) for node in step.arguments]
            calls.append({**next(starts), "arguments": arguments})
        else:
            results = [
                None if node is None or node not in program.offsets else places.result(node)
                for node in step.results
            ]
            calls.append(
                {
                    "operator": str(step.function),
                    "arguments": places.argument(step.arguments),
                    "options": {
                        k: None if k == "device" else places.argument(v)
                        for k, v in step.options.items()
                    },
                    "results": results,
                }
            )
    return {
        "arena_bytes": program.arena_bytes,
        "calls": calls,
        "waits": waits(program),
        "outputs": [places.tensor(node) for node in program.outputs],
    }
