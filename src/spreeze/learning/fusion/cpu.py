"""Kernels for a CPU, compiled by the C++ compiler."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from spreeze.learning.fusion.nodes import Node
from spreeze.learning.fusion.program import Binaries, KernelStep, Listing, Program
from spreeze.learning.fusion.schedule import Kernel
from spreeze.learning.fusion.source import COMBINE, FIRST, PRELUDE, Body
from spreeze.learning.fusion.writing import Sum, split_values
from spreeze.machine.facts import compiler

HEADER = """
#include <cmath>
#include <cstring>
using namespace std;
#define HERE static inline
#define ADD(place, value) (*(place) += (value))
HERE float bits_to_float(unsigned x) { float y; memcpy(&y, &x, 4); return y; }
HERE unsigned float_to_bits(float x) { unsigned y; memcpy(&y, &x, 4); return y; }
"""
FLAGS = (
    *("-x", "c++", "-std=c++17", "-O3", "-march=native", "-shared", "-fPIC", "-w"),
    *("-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-fassociative-math"),
)


class CpuLoops:
    """Plain loops; the compiler makes vector instructions of them."""

    def parts(self, kernel: Kernel) -> list[Kernel]:
        """Branches are outside of the loops."""
        return [kernel] if kernel.columns > 1 else kernel.segments()

    @contextmanager
    def rows(self, body: Body, kernel: Kernel) -> Iterator[None]:
        """One row after the other."""
        # What a single row has computed so far is not known before the loop.
        with body.scope(_rows_of(kernel), ["r"], branch=kernel.rows == 1):
            yield

    @contextmanager
    def columns(self, body: Body, kernel: Kernel) -> Iterator[None]:
        """One element after the other."""
        if kernel.columns == 1:
            yield
            return
        with body.scope(f"for (unsigned c = 0; c < {kernel.columns}u; ++c)", ["c"]):
            yield

    @contextmanager
    def once_per_row(self, body: Body, kernel: Kernel) -> Iterator[None]:
        """There is one thread."""
        yield

    def finish(self, body: Body, kernel: Kernel, total: Sum) -> None:
        """There is one thread."""

    def write_split(self, body: Body, kernel: Kernel) -> None:
        """Rows in the inner loop: their elements are next to each other."""
        names: dict[Node, str] = {}
        for node in kernel.members:
            names[node] = body.fresh()
            body.line(f"static {node.c_type} {names[node]}[{kernel.rows}];")
            with body.scope(_rows_of(kernel), ["r"]):
                body.line(f"{names[node]}[r] = {FIRST[node.kind]};")  # type: ignore[attr-defined]
        columns = f"for (unsigned c = 0; c < {kernel.columns}u; ++c)"
        with (
            body.scope(columns, ["c"]),
            body.scope(_rows_of(kernel), ["r"]),
        ):
            for node, value in split_values(body, kernel):
                place = f"{names[node]}[r]"
                body.line(f"{place} = {COMBINE[node.kind].format(place, value)};")
        with body.scope(_rows_of(kernel), ["r"]):
            for node, name in names.items():
                body.store(node, kernel.row, f"{name}[r]")


def _rows_of(kernel: Kernel) -> str:
    """The head of a loop over all rows."""
    return f"for (unsigned r = 0; r < {kernel.rows}u; ++r)"


def build(program: Program, library: str) -> tuple[Binaries, list[Listing]]:
    """The machine code of all kernels as one library, and how each step starts one."""
    found = compiler()
    if found is None:
        raise RuntimeError("no C++ compiler was found")
    source, starts = kernels_of(program)
    with TemporaryDirectory() as folder:
        path = Path(folder) / library
        compile_source(source, found, path)
        return {library: ([], path.read_bytes())}, starts


def kernels_of(program: Program) -> tuple[str, list[Listing]]:
    """The source of all kernels, and how each step starts one."""
    names: dict[str, str] = {}
    starts: list[Listing] = []
    for step in program.steps:
        if not isinstance(step, KernelStep):
            continue
        parameters = ", ".join(f"{kind}* __restrict__ {name}" for kind, name in step.parameters)
        given = ", ".join(f"({kind}*)p[{i}]" for i, (kind, _) in enumerate(step.parameters))
        code = "\n".join((f"({parameters}) {{", *step.body.lines, "}", f"given({given})"))
        starts.append({"kernel": names.setdefault(code, f"k{len(names)}")})
    functions = [_function(name, *code.split("\ngiven")) for code, name in names.items()]
    return HEADER + PRELUDE + "".join(functions), starts


def _function(name: str, body: str, arguments: str) -> str:
    """A kernel, and its entry, which takes an array of pointers. Only parameters are known not to overlap."""
    return (
        f"static __attribute__((noinline)) void {name}_of{body}\n"
        f'extern "C" void {name}(void** p) {{ {name}_of{arguments}; }}\n'
    )


def compile_source(source: str, compiler: str, to: Path) -> None:
    """Compile C++ to a shared library; raises RuntimeError with what the compiler says."""
    command = [compiler, *FLAGS, "-o", str(to), "-"]
    done = subprocess.run(command, input=source.encode(), capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.decode(errors="replace"))
