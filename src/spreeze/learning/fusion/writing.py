"""Writes whole kernels: loops, levels and reductions, in the form that a device needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from spreeze.learning.fusion.indices import unflatten
from spreeze.learning.fusion.nodes import Node, Reduction
from spreeze.learning.fusion.schedule import Kernel, write_member
from spreeze.learning.fusion.source import COMBINE, FIRST, Body


class Sum(NamedTuple):
    """A reduction while it is computed."""

    node: Reduction
    variable: str
    """Where it is accumulated."""

    def combine(self, a: str, b: str) -> str:
        """Code that puts two parts together."""
        return COMBINE[self.node.kind].format(a, b)


class Device(Protocol):
    """How loops run on a device."""

    def parts(self, kernel: Kernel) -> list[Kernel]:
        """Kernels with loops of their own that are written in place of this one."""

    @contextmanager
    def rows(self, body: Body, kernel: Kernel) -> Iterator[None]:
        """Around the code for one row."""

    @contextmanager
    def columns(self, body: Body, kernel: Kernel) -> Iterator[None]:
        """Around the code for one element."""

    @contextmanager
    def once_per_row(self, body: Body, kernel: Kernel) -> Iterator[None]:
        """Around what only one thread of a row may do."""

    def finish(self, body: Body, kernel: Kernel, total: Sum) -> None:
        """Put together what the threads of a row have accumulated."""

    def write_split(self, body: Body, kernel: Kernel) -> None:
        """Write a whole kernel of reductions whose rows are shared by many threads."""


def write_kernel(kernel: Kernel, device: Device) -> Body:
    """The body of a kernel."""
    body = Body()
    if kernel.split:
        device.write_split(body, kernel)
        return body
    for part in device.parts(kernel):
        with device.rows(body, part):
            for level in range(max(part.members.values()) + 1):
                _write_level(body, part, device, level)
    return body


def _write_level(body: Body, kernel: Kernel, device: Device, level: int) -> None:
    members = [node for node, at in kernel.members.items() if at == level]
    for node in members:
        if kernel.is_per_row(node):
            _write_per_row(body, kernel, device, node)
    rest = [node for node in members if not kernel.is_per_row(node)]
    if not rest:
        return
    totals = [start(body, node) for node in rest if isinstance(node, Reduction)]
    waiting = {total.node: total for total in totals}
    with device.columns(body, kernel):
        for node in rest:
            value = write_member(body, kernel, node)
            if (total := waiting.get(node)) is not None:  # type: ignore[call-overload]
                body.line(f"{total.variable} = {total.combine(total.variable, value)};")
    for total in totals:
        device.finish(body, kernel, total)
        body.know(total.node, kernel.row, total.variable)
        with device.once_per_row(body, kernel):
            body.store(total.node, kernel.row, total.variable)


def _write_per_row(body: Body, kernel: Kernel, device: Device, node: Node) -> None:
    body.computing = node
    value = body.read(node, unflatten(kernel.row, node.shape))
    with device.once_per_row(body, kernel):
        body.store(node, kernel.row, value)


def start(body: Body, node: Reduction) -> Sum:
    """Declare what a reduction is accumulated in."""
    name = body.fresh()
    body.line(f"{node.c_type} {name} = {FIRST[node.kind]};")
    return Sum(node, name)


def split_values(body: Body, kernel: Kernel) -> list[tuple[Reduction, str]]:
    """Each reduction of a split kernel and the code of one element."""
    return [
        (node, write_member(body, kernel, node))
        for node in kernel.members
        if isinstance(node, Reduction)
    ]
