"""Kernels for a CPU, compiled by the C++ compiler."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from spreeze.learning.fusion.nodes import Node, Reduction
from spreeze.learning.fusion.places import Scatter
from spreeze.learning.fusion.program import Binaries, KernelStep, Listing, Program
from spreeze.learning.fusion.schedule import Kernel, domain
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


PARALLEL_FROM = 32_768
"""Elements from which a loop is worth several threads."""


class CpuLoops:
    """Plain loops; the compiler makes vector instructions of them."""

    def __init__(self, threads: int) -> None:
        """Loops for this many threads."""
        self._threads = threads

    def is_parallel(self, kernel: Kernel) -> bool:
        """Whether the threads share the rows of a kernel, or of all its parts."""
        adds = any(isinstance(node, Scatter) for node in kernel.members)  # maybe to the same place
        work = max(
            domain(node) * (node.count if isinstance(node, Reduction) else 1)
            for node in kernel.members
        )
        several = kernel.columns == 1 or kernel.rows > 1
        return self._threads > 1 and several and not adds and work >= PARALLEL_FROM

    def _loop(self, body: Body, kernel: Kernel) -> str:
        """The head of a loop over the rows of this thread."""
        if not self.is_parallel(kernel):
            return f"for (unsigned r = 0; r < {kernel.rows}u; ++r)"
        first, last = (f"{kernel.rows}ul * (thread + {i}) / {self._threads}" for i in range(2))
        end = body.let("const unsigned", last)
        # Otherwise indices might overflow, for all that the compiler knows, and it makes no vector instructions.
        body.line(f"if ({end} > {kernel.rows}u) __builtin_unreachable();")
        return f"for (unsigned r = {first}; r < {end}; ++r)"

    def parts(self, kernel: Kernel) -> list[Kernel]:
        """Branches are outside of the loops."""
        return [kernel] if kernel.columns > 1 else kernel.segments()

    @contextmanager
    def rows(self, body: Body, kernel: Kernel) -> Iterator[None]:
        """One row after the other."""
        # What a single row has computed so far is not known before the loop.
        with body.scope(self._loop(body, kernel), ["r"], branch=kernel.rows == 1):
            yield

    @contextmanager
    def columns(self, body: Body, kernel: Kernel) -> Iterator[None]:
        """One element after the other."""
        if kernel.columns == 1:
            yield
            return
        with body.scope(f"for (unsigned long c = 0; c < {kernel.columns}u; ++c)", ["c"]):
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
            with body.scope(self._loop(body, kernel), ["r"]):
                body.line(f"{names[node]}[r] = {FIRST[node.kind]};")  # type: ignore[attr-defined]
        columns = f"for (unsigned c = 0; c < {kernel.columns}u; ++c)"
        with body.scope(columns, ["c"]), body.scope(self._loop(body, kernel), ["r"]):
            for node, value in split_values(body, kernel):
                place = f"{names[node]}[r]"
                body.line(f"{place} = {COMBINE[node.kind].format(place, value)};")
        with body.scope(self._loop(body, kernel), ["r"]):
            for node, name in names.items():
                body.store(node, kernel.row, f"{name}[r]")


def build(program: Program, library: str, threads: int) -> tuple[Binaries, list[Listing]]:
    """The machine code of all kernels as one library, and how each step starts one."""
    found = compiler()
    if found is None:
        raise RuntimeError("no C++ compiler was found")
    source, starts = kernels_of(program, threads)
    with TemporaryDirectory() as folder:
        path = Path(folder) / library
        try:
            compile_source(source, found, path, ["-fopenmp"] if threads > 1 else [])
        except RuntimeError:
            if threads == 1:
                raise
            compile_source(source, found, path)  # some compilers come without OpenMP
        return {library: ([], path.read_bytes())}, starts


def kernels_of(program: Program, threads: int) -> tuple[str, list[Listing]]:
    """The source of all kernels, and how each step starts one."""
    names: dict[_Function, str] = {}
    starts: list[Listing] = []
    for step in program.steps:
        if isinstance(step, KernelStep):
            shared = threads if CpuLoops(threads).is_parallel(step.kernel) else 1
            function = _Function(tuple(step.parameters), tuple(step.body.lines), shared)
            starts.append({"kernel": names.setdefault(function, f"k{len(names)}")})
    functions = [function.source(name) for function, name in names.items()]
    return HEADER + PRELUDE + "".join(functions), starts


class _Function(NamedTuple):
    """A kernel as a function."""

    parameters: tuple[tuple[str, str], ...]
    lines: tuple[str, ...]
    threads: int
    """How many threads run it, each with a part of the rows."""

    def source(self, name: str) -> str:
        """The function, and its entry, which takes an array of pointers. Only parameters are known not to overlap."""
        taken = [f"{kind}* __restrict__ {name}" for kind, name in self.parameters]
        given = [f"({kind}*)p[{i}]" for i, (kind, _) in enumerate(self.parameters)]
        loop = ""
        if self.threads > 1:
            taken.append("const unsigned thread")
            given.append("thread")
            loop = f"""
#pragma omp parallel for schedule(static, 1) num_threads({self.threads})
for (unsigned thread = 0; thread < {self.threads}u; ++thread)
"""
        body = "\n".join(self.lines)
        return f"""
static __attribute__((noinline)) void {name}_of({", ".join(taken)}) {{
{body}
}}
extern "C" void {name}(void** p) {{ {loop}{name}_of({", ".join(given)}); }}
"""


def compile_source(source: str, compiler: str, to: Path, flags: Sequence[str] = ()) -> None:
    """Compile C++ to a shared library; raises RuntimeError with what the compiler says."""
    command = [compiler, *FLAGS, *flags, "-o", str(to), "-"]
    done = subprocess.run(command, input=source.encode(), capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.decode(errors="replace"))
