"""How fast the update is, against plain PyTorch in the same run and against the device's limits."""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from spreeze.algos import find_algorithm
from spreeze.algos.base import Algorithm
from spreeze.bench.reference import PLAIN
from spreeze.learning.compiled.job import compile_and_wait
from spreeze.learning.compiled.key import CompileKey, set_precision
from spreeze.learning.compiled.verify import find_mismatch
from spreeze.learning.minibatch import draw, gather
from spreeze.learning.replay import Replay
from spreeze.learning.state import init_state
from spreeze.learning.updater import Updater, UpdateSetup
from spreeze.networks import unfused_arithmetic
from spreeze.rows import as_matrix, row_layout
from spreeze.settings.auto.images import IMAGE_HIDDEN, SHIFT
from spreeze.spec import EnvSpec

REPLAY_CAPACITY, FILLED_ROWS = 1_000_000, 200_000
FILLED_BYTES = 1 << 28
LR_AND_TAU = (3e-4, 0.005)
GPU_CHUNK = 16
"""Updates per launch on a GPU."""
NUM_ALTERNATIONS = 6
"""How often the two sides of a comparison take turns."""
MATMULS = {"mm", "addmm", "bmm", "baddbmm"}


def default_key(
    spec: EnvSpec, algo: str, batch_size: int, device: str, precision: str, threads: int
) -> CompileKey:
    """The update that is measured by default: two layers of 256, a replay of a million transitions.

    With images, one layer of 512 behind the encoder `nature`.
    """
    hyper = vars(find_algorithm(algo).config(hidden=IMAGE_HIDDEN if spec.images else (256, 256)))
    if spec.images:
        hyper["encoder"] = "nature"
        if "shift" in hyper:
            hyper["shift"] = 0 if spec.discrete else SHIFT
    return CompileKey(
        algo=algo,
        hyper=hyper,
        spec=spec.to_json(),
        capacity=REPLAY_CAPACITY,
        batch_size=batch_size,
        device=device,
        precision=precision,
        threads=threads,
        fused=device == "cpu",
    )


def measure(key: CompileKey, seconds: float) -> dict[str, Any]:
    """Updates per second of the compiled update and of plain PyTorch, in turns."""
    device, precision, batch_size = key.device, key.precision, key.batch_size
    algorithm, replay = set_up(key)
    state = init_state(algorithm, 0, replay.data.device)
    chunk = GPU_CHUNK if device != "cpu" else 1
    setup = UpdateSetup(algorithm, replay, state, batch_size, LR_AND_TAU, chunk)
    fast = Updater(setup)
    began = time.monotonic()
    step = compile_and_wait(key)
    compile_s = time.monotonic() - began
    if wrong := find_mismatch(key, fast, step):
        raise RuntimeError(f"the compiled update differs from the plain one: {wrong}")
    cost = Cost(fast, batch_size)
    fast.install_compiled(batch_size, step)
    plain_round, num_plain = _plain_round(key.algo, setup)
    rates: dict[str, list[float]] = {"fast": [], "plain": []}
    for _ in range(NUM_ALTERNATIONS):
        share = seconds / (2 * NUM_ALTERNATIONS)
        rates["fast"].append(rate(fast.run, fast.chunk, share, device))
        rates["plain"].append(rate(plain_round, num_plain, share, device))
    hz, eager = float(np.median(rates["fast"])), float(np.median(rates["plain"]))
    peak_flops, peak_bytes = limits(device, precision)
    return {
        "batch_size": batch_size,
        "update_hz": hz,
        "update_frame_hz": hz * batch_size,
        "eager_update_hz": eager,
        "ratio": hz / eager,
        "precision": precision,
        "mflop_per_update": cost.flops / 1e6,
        "mbytes_per_update": cost.bytes / 1e6,
        "share_of_arithmetic_limit": cost.flops * hz / peak_flops,
        "share_of_memory_limit": cost.bytes * hz / peak_bytes,
        "compile_s": round(compile_s, 1),
    }


def set_up(key: CompileKey) -> tuple[Algorithm, Replay]:
    """Set torch up as the learner does; build the algorithm and a filled replay."""
    torch.set_num_threads(key.threads)
    torch.set_flush_denormal(True)
    set_precision(key.precision)
    algorithm = key.algorithm(unfused_arithmetic(key.precision))
    return algorithm, filled_replay(algorithm, torch.device(key.device), key.capacity)


def _plain_round(algo: str, setup: UpdateSetup) -> tuple[Callable[[], None], int]:
    """A function that does the same updates in plain PyTorch, and how many updates a call does.

    For an algorithm without a plain version, and with images, it is the same update without compiler and CUDA graphs.
    """
    algorithm, replay, batch_size = setup.algorithm, setup.replay, setup.batch_size
    own = copy.deepcopy(setup.state)
    num = algorithm.config.critic_updates()
    if algo not in PLAIN or algorithm.spec.images:
        return Updater(dataclasses.replace(setup, state=own, chunk=num)).run_eager, num
    plain, layout, rows = (
        PLAIN[algo](algorithm, own, LR_AND_TAU),
        replay.layout,
        num * batch_size,
    )

    def plain_round() -> None:
        uniform = torch.rand(rows, device=replay.device)
        noise = torch.randn(2, rows, algorithm.spec.action_size, device=replay.device)
        plain.update(gather(replay.data, draw(replay.data, replay.window, uniform), layout), noise)

    return plain_round, num


class Cost(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Floating-point operations of one update, and bytes that its matrix products read and write."""

    def __init__(self, updater: Updater, batch_size: int) -> None:
        """Run one update and count."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0
        inputs = updater.inputs(batch_size)
        counter = FlopCounterMode(display=False)
        with torch.no_grad(), counter, self:
            updater.plain(*inputs)
        num = updater.algorithm.config.critic_updates()  # updates in the round that was counted
        self.flops, self.bytes = counter.get_total_flops() / num, self.bytes // num

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count one operation."""
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in MATMULS:
            tensors = [*(a for a in args if isinstance(a, Tensor)), out]
            self.bytes += sum(t.numel() * t.element_size() for t in tensors)
        return out


def limits(device: str, precision: str) -> tuple[float, float]:
    """Highest floating-point operations and bytes per second that are measured on this device."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    size = 8192 if device != "cpu" else 1024
    a = torch.randn(size, size, device=device, dtype=dtype)
    flops = 2 * size**3 * rate(lambda: torch.mm(a, a), 1, 0.3, device)
    block = torch.zeros(1 << 27 if device != "cpu" else 1 << 25, device=device)
    other = torch.empty_like(block)
    moved = 2 * block.numel() * 4 * rate(lambda: other.copy_(block), 1, 0.3, device)
    return flops, moved


def rate(function: Callable[[], Any], count: int, seconds: float, device: str) -> float:
    """Calls per second times `count`. The device is synchronized before and after."""

    def synchronize() -> None:
        if device != "cpu":
            torch.cuda.synchronize(device)

    function()
    synchronize()
    began, calls = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        for _ in range(4):
            function()
        calls += 4
        synchronize()
    return calls * count / (time.perf_counter() - began)


def filled_replay(algorithm: Algorithm, device: torch.device, capacity: int) -> Replay:
    """A replay filled with random transitions; of films only some, which exceed every cache."""
    layout = row_layout(algorithm.spec, algorithm.config.row_format())
    replay = Replay(layout, layout.rows_for(capacity), device)
    num_rows = min(layout.rows_for(FILLED_ROWS), replay.capacity, FILLED_BYTES // layout.row_bytes)
    rows = np.zeros(num_rows, layout.dtype)
    random = np.random.default_rng(0)
    as_matrix(rows)[:] = random.standard_normal((num_rows, layout.width), np.float32)
    rows["discount"] = 0.99
    if algorithm.spec.discrete:
        rows["action"] = 0
    if layout.film is not None:  # where a transition's frames are in its film
        step = np.arange(layout.film.steps)
        rows["obs"], rows["next_obs"], rows["back"] = step, step + 1, step
    replay.insert(rows)
    return replay
