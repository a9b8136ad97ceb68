"""Kernels for an NVIDIA GPU, compiled by the NVRTC library that comes with torch."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

from spreeze.learning.fusion.nodes import Reduction, Scratch
from spreeze.learning.fusion.program import Binaries, KernelStep, Listing, Program
from spreeze.learning.fusion.schedule import Kernel
from spreeze.learning.fusion.source import COMBINE, FIRST, PRELUDE, Body
from spreeze.learning.fusion.writing import Sum, split_values
from spreeze.machine.affinity import other_cores

HEADER = """
#define HERE static __device__ __forceinline__
#define ADD(place, value) atomicAdd(place, value)
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
HERE float bits_to_float(unsigned x) { return __uint_as_float(x); }
HERE unsigned float_to_bits(float x) { return __float_as_uint(x); }
"""
WARP, BLOCK, LARGEST_BLOCK = 32, 256, 1024
FEW_ROWS, WIDE_ROW = 512, 64
"""With fewer rows than this, rows wider than this have a block each."""
UNROLLED = 8
BLOCKS = 264
"""Blocks that keep a large GPU busy."""
NUM_PARTS = 8
"""Kernels are compiled in this many parts at the same time."""


class _Rows(NamedTuple):
    """How a kernel's rows are shared among threads."""

    threads: int
    """Of one row."""
    block: int
    """Threads of a block."""
    blocks: int


class _Split(NamedTuple):
    """How a split kernel is shared among threads."""

    across: int
    """Rows of a block."""
    blocks: int
    """Blocks next to each other, each with other rows."""
    shares: int
    """Blocks that share the columns of the same rows."""


def _rows_of(kernel: Kernel) -> _Rows:
    if kernel.columns == 1:
        block = min(BLOCK, -(-kernel.rows // WARP) * WARP)
        return _Rows(1, block, -(-kernel.rows // block))
    if kernel.rows < FEW_ROWS and kernel.columns > WIDE_ROW:
        threads = min(LARGEST_BLOCK, 1 << (kernel.columns - 1).bit_length())
        return _Rows(threads, threads, kernel.rows)
    threads = WARP
    while threads // 2 >= kernel.columns and kernel.rows % (2 * WARP // threads) == 0:
        threads //= 2
    per_block = max(1, (BLOCK if kernel.rows * threads >= BLOCK * BLOCKS else WARP * 2) // threads)
    return _Rows(threads, threads * per_block, -(-kernel.rows // per_block))


def _split_of(kernel: Kernel) -> _Split:
    across = min(WARP, 1 << (kernel.rows - 1).bit_length())
    blocks = -(-kernel.rows // across)
    most = max(1, kernel.columns // (4 * BLOCK // across))
    return _Split(across, blocks, min(most, max(1, BLOCKS // blocks)))


class GpuLoops:
    """Rows and columns as threads."""

    def parts(self, kernel: Kernel) -> list[Kernel]:
        """One thread for each element, if rows need not be together."""
        if kernel.needs_rows or kernel.columns == 1:
            return [kernel]
        return [Kernel(kernel.rows * kernel.columns, 1, members=kernel.members)]

    @contextmanager
    def rows(self, body: Body, kernel: Kernel) -> Iterator[None]:
        """Some threads for each row."""
        threads, block, _ = _rows_of(kernel)
        if threads == 1:
            body.line(f"const unsigned r = blockIdx.x * {block}u + threadIdx.x;")
        else:
            body.line(f"const unsigned lane = threadIdx.x % {threads}u;")
            body.line(
                f"const unsigned r = blockIdx.x * {block // threads}u + threadIdx.x / {threads}u;"
            )
        # What a single row has computed so far is not known before it.
        with body.scope(f"if (r < {kernel.rows}u)", ["r"], branch=kernel.rows == 1):
            yield

    @contextmanager
    def columns(self, body: Body, kernel: Kernel) -> Iterator[None]:
        """Each thread has every n-th column."""
        if kernel.columns == 1:
            yield
            return
        threads = _rows_of(kernel).threads
        rounds = -(-kernel.columns // threads)
        unroll = "#pragma unroll\n" if rounds <= UNROLLED else ""
        guard = "" if kernel.columns % threads == 0 else f"if (c < {kernel.columns}u)"
        with body.scope(f"{unroll}for (unsigned k = 0; k < {rounds}u; ++k)"):
            body.line(f"const unsigned c = k * {threads}u + lane;")
            with body.scope(guard, ["c"]):
                yield

    @contextmanager
    def once_per_row(self, body: Body, kernel: Kernel) -> Iterator[None]:
        """Only the row's first thread."""
        if kernel.columns == 1:
            yield
            return
        with body.scope("if (lane == 0)", branch=True):
            yield

    def finish(self, body: Body, kernel: Kernel, total: Sum) -> None:
        """Through registers, and through shared memory if a row has several warps."""
        threads, name = _rows_of(kernel).threads, total.variable
        distance = min(threads, WARP) // 2
        while distance:
            other = f"__shfl_xor_sync(0xffffffffu, {name}, {distance})"
            body.line(f"{name} = {total.combine(name, other)};")
            distance //= 2
        if threads > WARP:
            warps, shared = threads // WARP, body.fresh()
            body.line(f"__shared__ {total.node.c_type} {shared}[{warps}];")
            body.line(f"if (lane % {WARP}u == 0) {shared}[lane / {WARP}u] = {name};")
            body.line("__syncthreads();")
            body.line(f"{name} = {shared}[0];")
            step = total.combine(name, f"{shared}[w]")
            body.line(f"for (unsigned w = 1; w < {warps}u; ++w) {name} = {step};")

    def write_split(self, body: Body, kernel: Kernel) -> None:
        """Blocks share the columns; the last one that is done adds up what all have found."""
        across, _, shares = _split_of(kernel)
        deep = BLOCK // across
        body.line(
            f"const unsigned across = threadIdx.x % {across}u, deep = threadIdx.x / {across}u;"
        )
        body.line(f"const unsigned r = blockIdx.x * {across}u + across;")
        names = [body.fresh() for _ in kernel.members]
        nodes = [node for node in kernel.members if isinstance(node, Reduction)]
        for node, name in zip(nodes, names, strict=True):
            body.line(f"{node.c_type} {name} = {FIRST[node.kind]};")
        step = deep * shares
        loop = (
            f"for (unsigned c = blockIdx.y * {deep}u + deep; c < {kernel.columns}u; c += {step}u)"
        )
        with body.scope(f"if (r < {kernel.rows}u)", ["r"]), body.scope(loop, ["c"]):
            for (node, value), name in zip(split_values(body, kernel), names, strict=True):
                body.line(f"{name} = {COMBINE[node.kind].format(name, value)};")
        for node, name in zip(nodes, names, strict=True):
            shared = body.fresh()
            body.line(f"__shared__ {node.c_type} {shared}[{BLOCK}];")
            body.line(f"{shared}[threadIdx.x] = {name};")
            both = COMBINE[node.kind].format(
                f"{shared}[threadIdx.x]", f"{shared}[threadIdx.x + n * {across}u]"
            )
            with body.scope(f"for (unsigned n = {deep // 2}u; n > 0; n /= 2)"):
                body.line("__syncthreads();")
                body.line(f"if (deep < n) {shared}[threadIdx.x] = {both};")
            body.line(f"{name} = {shared}[threadIdx.x];")
        if shares == 1:
            with body.scope(f"if (deep == 0 && r < {kernel.rows}u)", ["r"]):
                for node, name in zip(nodes, names, strict=True):
                    body.store(node, kernel.row, name)
            return
        self._meet(body, kernel, list(zip(nodes, names, strict=True)))

    def _meet(self, body: Body, kernel: Kernel, totals: Sequence[tuple[Reduction, str]]) -> None:
        _, blocks, shares = _split_of(kernel)
        counters = body.pointer(Scratch((blocks,), torch.int32, stored=True, kept=True))
        places = []
        with body.scope(f"if (deep == 0 && r < {kernel.rows}u)", ["r"]):
            for node, name in totals:
                wide = torch.float32 if node.dtype == torch.bfloat16 else node.dtype
                places.append(body.pointer(Scratch((shares * kernel.rows,), wide, stored=True)))
                body.line(
                    f"((volatile {node.c_type}*){places[-1]})[blockIdx.y * {kernel.rows}u + r] = {name};"
                )
            body.line("__threadfence();")
        body.line("__shared__ bool last;")
        body.line("__syncthreads();")
        body.line(
            f"if (threadIdx.x == 0) last = atomicAdd(&{counters}[blockIdx.x], 1) == {shares - 1};"
        )
        body.line("__syncthreads();")
        with body.scope("if (last)"):
            body.line(f"if (threadIdx.x == 0) {counters}[blockIdx.x] = 0;")
            with body.scope(f"if (deep == 0 && r < {kernel.rows}u)", ["r"]):
                body.line("__threadfence();")
                for (node, name), place in zip(totals, places, strict=True):
                    part = f"((volatile {node.c_type}*){place})[n * {kernel.rows}u + r]"
                    body.line(f"{name} = {FIRST[node.kind]};")
                    body.line("#pragma unroll 8")
                    body.line(
                        f"for (unsigned n = 0; n < {shares}u; ++n) {name} = {COMBINE[node.kind].format(name, part)};"
                    )
                    body.store(node, kernel.row, name)


def kernels_of(program: Program) -> tuple[dict[str, str], list[Listing]]:
    """The source of each kernel by name, and how each step starts one."""
    names: dict[str, str] = {}
    starts: list[Listing] = []
    for step in program.steps:
        if not isinstance(step, KernelStep):
            continue
        parameters = ", ".join(f"{kind}* __restrict__ {name}" for kind, name in step.parameters)
        code = f"({parameters}) {{\n" + "\n".join(step.body.lines) + "\n}\n"
        name = names.setdefault(code, f"k{len(names)}")
        starts.append({"kernel": name, **_geometry(step.kernel)})
    sources = {name: f'extern "C" __global__ void {name}{code}' for code, name in names.items()}
    return sources, starts


def _geometry(kernel: Kernel) -> Listing:
    """Blocks and threads of a kernel."""
    if kernel.split:
        _, blocks, shares = _split_of(kernel)
        return {"grid": [blocks, shares, 1], "block": [BLOCK, 1, 1], "shared": 0}
    (kernel,) = GpuLoops().parts(kernel)
    _, block, blocks = _rows_of(kernel)
    return {"grid": [blocks, 1, 1], "block": [block, 1, 1], "shared": 0}


def build(program: Program, device: torch.device) -> tuple[Binaries, list[Listing]]:
    """The machine code of all kernels, compiled in several threads, and how each step starts one."""
    sources, starts = kernels_of(program)
    major, minor = torch.cuda.get_device_capability(device)
    names = list(sources)
    parts = [names[i::NUM_PARTS] for i in range(min(NUM_PARTS, len(names)))]

    def compiled(part: list[str]) -> bytes:
        os.sched_setaffinity(0, other_cores())  # of this thread: the learner may have one core only
        source = "".join((HEADER, PRELUDE, *(sources[name] for name in part)))
        return compile_source(source, f"sm_{major}{minor}")

    with ThreadPoolExecutor(NUM_PARTS) as pool:
        pairs = zip(parts, pool.map(compiled, parts), strict=True)
        return {f"{i}.cubin": pair for i, pair in enumerate(pairs)}, starts


@cache
def _nvrtc() -> ctypes.CDLL:
    """The compiler's library: torch brings it, or links to that of the system."""
    home = Path(torch.__file__).parent
    found = [
        *home.parent.glob("nvidia/*/lib/libnvrtc.so.*"),
        *home.glob("lib/libnvrtc*.so*"),
    ]
    names = [
        str(path) for path in found if "builtins" not in path.name and ".alt." not in path.name
    ]
    major = str(torch.version.cuda).split(".")[0]
    for name in (*sorted(names), f"libnvrtc.so.{major}", "libnvrtc.so"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise RuntimeError("CUDA's run-time compiler (libnvrtc) was not found")


def compile_source(source: str, architecture: str) -> bytes:
    """The machine code of CUDA C++; raises RuntimeError with what the compiler says."""
    library, program, size = _nvrtc(), c_void_p(), c_size_t()
    library.nvrtcCreateProgram(byref(program), source.encode(), b"update.cu", c_int(0), None, None)
    options = [f"--gpu-architecture={architecture}".encode(), b"--std=c++17"]
    failed = library.nvrtcCompileProgram(
        program, c_int(len(options)), (c_char_p * len(options))(*options)
    )
    if failed:
        library.nvrtcGetProgramLogSize(program, byref(size))
        log = ctypes.create_string_buffer(size.value)
        library.nvrtcGetProgramLog(program, log)
        raise RuntimeError(log.value.decode())
    library.nvrtcGetCUBINSize(program, byref(size))
    binary = ctypes.create_string_buffer(size.value)
    library.nvrtcGetCUBIN(program, binary)
    library.nvrtcDestroyProgram(byref(program))
    return binary.raw
