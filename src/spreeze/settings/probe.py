"""The probe: measures what this machine can do with this environment and this algorithm.

It takes a few seconds in a throw-away process, so running out of memory there is harmless. The result is
cached in the user's cache folder, keyed by everything it depends on. `settings.auto` turns it into settings.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from spreeze.algos import build_algorithm, find_algorithm
from spreeze.algos.base import update_knobs
from spreeze.machine.cache import cache_folder
from spreeze.machine.facts import cpu_name
from spreeze.policy import Policy, PolicyForm
from spreeze.rows import as_matrix, row_layout
from spreeze.settings.speed import learning_speed
from spreeze.spec import EnvSpec
from spreeze.store.files import write_atomic

if TYPE_CHECKING:
    import torch

    from spreeze.algos.base import Algorithm
    from spreeze.learning.replay import Replay
    from spreeze.learning.updater import UpdateSetup

ENVS = (4, 8, 16, 32)
CPU_BATCHES = (128, 256, 512, 1024, 2048)
GPU_BATCHES = (256, 1024, 2048, 4096, 8192, 16384, 32768)
THREADS = (1, 2, 4, 8, 16)
ROWS, CHUNK, SPLIT_CHUNKS = 50_000, 4, 8
TURN_S, SLOWEST_S = 0.12, 0.25
"""How long each rate is measured; an update slower than the second ends the search for larger batches."""
PROBE_RATES = (1e-4, 0.005)
"""Learning rate and tau; they do not change how long an update takes."""


def probe_allowed() -> bool:
    """Whether runs may measure the machine first: SPREEZE_PROBE=0 forbids it, and rules of thumb decide."""
    return os.environ.get("SPREEZE_PROBE") != "0"


@dataclass(frozen=True, kw_only=True)
class ProbeRequest:
    """What to measure, as plain data: all that the result depends on."""

    algo: str
    hyper: dict[str, Any]
    spec: dict[str, Any]
    device: str
    second: str | None = None
    """A second device for the actor: training on both is measured too."""
    ranks: tuple[str, ...] = ()
    """Devices that may share each batch: training on all of them is measured too."""
    gpu: str
    precision: str
    cores: int
    threads: int | None
    """CPU threads of the learner; None: find the best number."""

    def path(self) -> Path:
        """The cache file of the result."""
        facts = dataclasses.asdict(self)
        kind = find_algorithm(self.algo).config
        facts["hyper"] = update_knobs(kind, self.hyper, own=":" in self.algo)
        facts["spec"] = {k: self.spec[k] for k in ("id", "obs_shape", "action_shape")}
        facts["cpu"] = cpu_name()
        facts["versions"] = [version(name) for name in ("spreeze", "torch", "numpy", "gymnasium")]
        facts["batches"] = self.batches  # other versions may try others
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]
        return cache_folder() / "tuned" / f"{digest}.json"

    @property
    def batches(self) -> tuple[int, ...]:
        """The batch sizes to try."""
        return CPU_BATCHES if self.device == "cpu" else GPU_BATCHES


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """What the machine can do."""

    act_us: dict[int, float]
    """Microseconds of a forward pass of the policy, by environments per process."""
    thread_hz: dict[int, float]
    """Updates per second by CPU threads, at the smallest batch; empty on a GPU."""
    update_hz: dict[int, float]
    """Updates per second by batch size, before compilation."""
    split_hz: dict[int, float] = dataclasses.field(default_factory=dict)
    """The same with the actor on a second device."""
    shared_hz: dict[int, float] = dataclasses.field(default_factory=dict)
    """The same on several devices that share each batch."""
    not_shared: str | None = None
    """Why they cannot."""
    too_large: int | None
    """A batch size that did not fit in memory."""
    seconds: float
    file: Path | None = dataclasses.field(default=None, compare=False)
    """Where it is kept for later runs; None: nowhere."""

    def to_json(self) -> dict[str, Any]:
        """As plain data, without the file's name."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "file"}


def load_cached(request: ProbeRequest) -> ProbeResult | None:
    """The cached result, if there is one."""
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError, KeyError):
        stored = json.loads(request.path().read_text())
        for name in ("act_us", "thread_hz", "update_hz", "split_hz", "shared_hz"):
            stored[name] = {int(key): float(value) for key, value in stored[name].items()}
        return ProbeResult(**stored, file=request.path())
    return None


def save_cached(request: ProbeRequest, measured: ProbeResult) -> ProbeResult:
    """The result with its file, cached for later runs; without that they measure again."""
    with contextlib.suppress(OSError):
        path = request.path()
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, measured.to_json())
        return dataclasses.replace(measured, file=path)
    return measured


def best_threads(thread_hz: dict[int, float], cores: int) -> int:
    """The best number of learner threads on a CPU: each one takes a core from the samplers."""
    return max(thread_hz, key=lambda num: learning_speed(thread_hz[num], 1, max(cores - num, 1)))


def measure(request: ProbeRequest) -> ProbeResult:
    """Measure this machine."""
    began = time.monotonic()
    spec = EnvSpec.from_json(request.spec)
    config = find_algorithm(request.algo).config(**request.hyper)
    form = config.policy_form(spec)
    act_us = {num: _act_us(spec, form, num) for num in ENVS}

    import torch

    from spreeze.learning.updater import out_of_memory

    torch.set_flush_denormal(True)
    batches = request.batches
    threads, thread_hz = request.threads, {}
    if threads is None:
        for num in [num for num in THREADS if num < max(request.cores, 2)]:
            torch.set_num_threads(num)
            thread_hz[num] = _update_hz(request, spec, batches[0])
        threads = best_threads(thread_hz, request.cores)
    torch.set_num_threads(threads)
    update_hz: dict[int, float] = {}
    too_large = None
    for batch in batches:
        try:
            update_hz[batch] = _update_hz(request, spec, batch)
        except RuntimeError as error:
            if not out_of_memory(error) or not update_hz:
                raise
            too_large = batch
            break
        if update_hz[batch] < 1 / SLOWEST_S:
            break
    split_hz = {batch: _split_hz(request, spec, batch) for batch in update_hz if request.second}
    shared_hz, not_shared = (
        _shared_hz(request, spec, list(update_hz)) if request.ranks else ({}, None)
    )
    return ProbeResult(
        act_us=act_us,
        thread_hz=thread_hz,
        update_hz=update_hz,
        split_hz=split_hz,
        shared_hz=shared_hz,
        not_shared=not_shared,
        too_large=too_large,
        seconds=round(time.monotonic() - began, 2),
    )


def _act_us(spec: EnvSpec, form: PolicyForm, num_envs: int) -> float:
    policy = Policy(spec, form)
    policy.vector[:] = np.random.default_rng(0).normal(0, 0.05, policy.vector.size)
    obs = np.zeros((num_envs, spec.obs_size), np.float32)
    return 1e6 / _rate(lambda: policy.act(obs, True), TURN_S / 6)


def _update_hz(request: ProbeRequest, spec: EnvSpec, batch: int) -> float:
    """Updates per second on one device, before compilation."""
    import torch

    from spreeze.learning.updater import Updater

    updater = Updater(_update_setup(request, spec, batch))

    def run() -> None:
        updater.run()
        if updater.device.type == "cuda":
            torch.cuda.synchronize(updater.device)

    return updater.chunk * _rate(run, TURN_S)


def _split_hz(request: ProbeRequest, spec: EnvSpec, batch: int) -> float:
    """The same on two devices, over several chunks: after a single one, one device waits for the other."""
    import torch

    from spreeze.learning.two_devices.updater import TwoDeviceUpdater

    second = torch.device(str(request.second))
    pair = TwoDeviceUpdater(_update_setup(request, spec, batch), second)

    def run() -> None:
        for _ in range(SPLIT_CHUNKS):
            pair.run()
        pair.pause()
        if pair.device.type == "cuda":
            torch.cuda.synchronize(pair.device)

    return SPLIT_CHUNKS * pair.chunk * _rate(run, TURN_S)


def _shared_hz(
    request: ProbeRequest, spec: EnvSpec, batches: Sequence[int]
) -> tuple[dict[int, float], str | None]:
    """The same on several devices that share each batch, by batch size; or why that fails."""
    import torch

    from spreeze.learning.data_parallel.shards import ShardedReplay
    from spreeze.learning.data_parallel.updater import DataParallelUpdater

    hz: dict[int, float] = {}
    devices = [torch.device(name) for name in request.ranks]
    try:
        for batch in batches:
            setup = _update_setup(
                dataclasses.replace(request, device=request.ranks[0]), spec, batch
            )
            replay = ShardedReplay([_replay(setup.algorithm, device) for device in devices])
            updater = DataParallelUpdater(setup, replay, seeds=range(1, len(devices)))

            def run(updater: DataParallelUpdater = updater) -> None:
                updater.run()
                for device in devices:
                    if device.type == "cuda":
                        torch.cuda.synchronize(device)

            hz[batch] = updater.chunk * _rate(run, TURN_S)
            updater.close()
    except RuntimeError as error:  # such as NCCL's, on an unusual machine: one device is enough
        return {}, str(error).partition("\n")[0]
    return hz, None


def _update_setup(request: ProbeRequest, spec: EnvSpec, batch: int) -> UpdateSetup:
    """What an updater needs, with random transitions."""
    import torch

    from spreeze.learning.state import init_state
    from spreeze.learning.updater import UpdateSetup
    from spreeze.networks import unfused_arithmetic

    device = torch.device(request.device)
    if device.index is not None:
        torch.cuda.set_device(device)
    arithmetic = unfused_arithmetic(request.precision)
    algorithm = build_algorithm(request.algo, request.hyper, spec, arithmetic)
    state, chunk = init_state(algorithm, 0, device), CHUNK if device.type == "cuda" else 1
    return UpdateSetup(algorithm, _replay(algorithm, device), state, batch, PROBE_RATES, chunk)


def _replay(algorithm: Algorithm, device: torch.device) -> Replay:
    """A replay of random rows."""
    from spreeze.learning.replay import Replay

    layout = row_layout(algorithm.spec, algorithm.config.row_format())
    replay = Replay(layout, ROWS, device, prioritised=algorithm.config.prioritised)
    rows = np.zeros(ROWS, layout.dtype)
    as_matrix(rows)[:] = np.random.default_rng(0).random((ROWS, layout.width), np.float32)
    replay.insert(rows)
    return replay


def _rate(function: Callable[[], Any], seconds: float) -> float:
    """Calls per second."""
    function()  # first-time costs do not count
    began, calls = time.perf_counter(), 0
    while calls < 2 or time.perf_counter() - began < seconds:
        function()
        calls += 1
    return calls / (time.perf_counter() - began)
